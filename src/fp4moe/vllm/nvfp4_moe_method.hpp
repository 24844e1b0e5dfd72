// vLLM's NVFP4 layer methods (ModelOptNvFp4FusedMoE, CompressedTensorsW4A4Nvfp4MoEMethod) on weights
// in memory. See mxfp4_moe_method.hpp.
#pragma once
#include "fp4moe/vllm/moe_method.hpp"
#include "fp4moe/vllm/nvfp4.hpp"

namespace fp4moe::vllm {

class NvFp4MoeMethod : public MoeMethod {
 public:
  // `activation_key` nothing: the checkpoint quantizes weights alone, and has no input scales.
  // Errors: those of select_nvfp4_moe_backend, sizes.*.
  static Result<NvFp4MoeMethod> make(MoeConfig moe,
                                     std::optional<ActivationKey> activation_key = kNvfp4Dynamic,
                                     MethodOptions options = {}, oracle::Record* refused = nullptr);

  NvFp4MoeBackend nvfp4_backend() const { return nvfp4_backend_; }

  // As Mxfp4MoeMethod's. compressed-tensors' global scales are reciprocals, and are taken so.
  Result<Done> process_weights_after_loading();
  Result<FusedMoeQuantConfig> get_fused_moe_quant_config() const;
  const std::optional<NvFp4KernelWeights>& kernel_weights() const { return nvfp4_weights_; }

 private:
  using MoeMethod::MoeMethod;

  NvFp4MoeBackend nvfp4_backend_{};
  std::optional<NvFp4KernelWeights> nvfp4_weights_{};
};

}  // namespace fp4moe::vllm
