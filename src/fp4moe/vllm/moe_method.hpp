// Shared by vLLM's MXFP4 and NVFP4 layer methods: the life of a layer whose weights lie in memory.
//
//   make                            the backend is chosen
//   create_weights                  parameters by vLLM's names, zeros; the caller fills them
//   process_weights_after_loading   packed, scales prepared, kernel made; again after a change
//   apply or apply_monolithic       tokens in, tokens out
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/oracle/vllm/buffers.hpp"
#include "fp4moe/tensor/tensor.hpp"
#include "fp4moe/vllm/moe_kernel.hpp"

namespace fp4moe::vllm {

struct MethodOptions {
  KernelOptions kernel{};
  // The order of w13's rows with a gate; absent: interleaved for MXFP4 with swigluoai, else in
  // halves.
  std::optional<checkpoint::RowOrder> w13_order{};
  oracle::BufferNames names = oracle::BufferNames::modelopt;  // of NVFP4's parameters
};

struct Parameter {
  std::string name{};  // "w13_weight", ...
  tensor::Tensor tensor{};
};

class MoeMethod {
 public:
  const MoeConfig& moe() const { return moe_; }
  ExpertsClass experts_cls() const { return experts_cls_; }
  const oracle::Record& record() const { return record_; }  // of the choice

  // The sizes of the parameters and the kernel: the exchange's rule, then the backend's.
  const oracle::Sizes& sizes() const { return sizes_; }
  // The kernel's quantizer pads tokens itself. Calls here take tokens of either size in any case.
  bool skip_forward_padding() const;
  bool is_monolithic() const;

  // Parameters of the rounded sizes, zeroed; what the checkpoint has goes to the leading corner.
  // Errors: buffers.*, those of memory.
  Result<Done> create_weights();
  std::span<Parameter> parameters() { return parameters_; }
  tensor::Tensor* parameter(std::string_view name);  // null when there is none
  // Parameters are read by processing alone: without them the layer runs on and is not reloaded.
  void drop_parameters() { parameters_.clear(); }

  // Errors: vllm.order (not processed), and those of MoeKernel.
  Result<Done> apply(const moe::ConstRows& x, std::span<const float> topk_weights,
                     std::span<const std::int32_t> topk_ids, const moe::MutableRows& out);
  Result<Done> apply_monolithic(const moe::ConstRows& x, const moe::ConstRows& router_logits,
                                const moe::MutableRows& out);

  // Sentences on what is odd about the weights.
  std::vector<std::string> warnings() const;

 protected:
  MoeMethod(MoeConfig moe, MethodOptions options)
      : moe_(std::move(moe)), options_(std::move(options)) {}

  Result<Done> chosen(const oracle::Backend* backend, ExpertsClass experts_cls,
                      oracle::Record record);
  Result<Done> check_created() const;
  Result<MoeKernel*> processed();
  ConversionOptions conversion() const;
  TensorView view(std::string_view name) const;

  MoeConfig moe_;
  MethodOptions options_;
  const oracle::Backend* backend_ = nullptr;
  ExpertsClass experts_cls_ = nullptr;
  oracle::Record record_{};
  oracle::Sizes sizes_{};
  std::vector<Parameter> parameters_{};
  std::optional<KernelWeights> weights_{};
  std::optional<MoeKernel> kernel_{};
};

}  // namespace fp4moe::vllm
