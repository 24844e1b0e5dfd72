// A MoE layer on a device, for callers whose tokens are on the device: raw device pointers and a
// stream. moe::Engine "cuda" (engine.hpp) is built on it.
//
//   const auto device = kernels::cuda::Device::open(0);
//   const auto layer = DeviceLayer::make(*device, problem, source);
//   const auto router = DeviceRouter::make(*device, options);
//   const auto space = layer->reserve({.tokens = 8192, .top_k = 4});
//   layer->apply({.in = {{.x = x, .logits = logits}}, .router = &*router, .out = out}, *space,
//                stream);
//
// apply enqueues and returns. It allocates nothing, waits for nothing and reads nothing back, so a
// stream that is being captured into a graph takes it, too. Which kernels run depends on the number
// of tokens and the shape alone (plan.hpp); the same call gives the same bits every time.
// A layer holds weights only: many threads and streams may use one at once, each with a workspace
// of its own.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/device_lora.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/moe/cuda/device_router.hpp"
#include "fp4moe/moe/cuda/sizes.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::kernels::cuda::sm90 {
struct LayerParams;
struct Gemm;
struct RoutingTables;
}  // namespace fp4moe::kernels::cuda::sm90
namespace fp4moe::kernels::cuda::sm80 {
struct GroupedGemmShape;
}  // namespace fp4moe::kernels::cuda::sm80

namespace fp4moe::moe::cuda {

namespace sm90 = kernels::cuda::sm90;
namespace sm80 = kernels::cuda::sm80;
struct CallPlan;      // plan.hpp
class DeviceWeights;  // device_weights.hpp

// LoRA adapters whose matrices are on the device.
struct DeviceAdapters {
  // [adapters][experts], on the device; null: none
  const kernels::cuda::DeviceLoraExpert* pairs = nullptr;
  std::uint64_t max_rank = 0;  // of all of them
};

// All addresses are device addresses. x and out: bf16, f16 or f32, rows aligned to 16 bytes; f32 rows
// of x are rounded to bf16 for the GEMMs.
struct DeviceCall {
  // The caller promises that all addresses are memory of the layer's device: the driver is not asked.
  // Nulls and alignment are still checked.
  bool is_on_device = false;

  // With ids, with logits for `router`, or in batches. No weights: all 1.
  Prepared in{};
  const DeviceRouter* router = nullptr;

  // The local position of each global expert or -1; empty: position = id - first_expert.
  std::span<const std::int32_t> expert_map{};
  std::int32_t first_expert = 0;

  DeviceAdapters adapters{};     // with in.adapters, not with a router
  bool weight_on_input = false;  // x already contains the weight
  OutputForm form = OutputForm::summed;
  MutableRows out{};  // [T, hidden]; assignments: [T * top_k, hidden]; batches: as x

  std::uint64_t top_k() const {
    if (in.format == TokenFormat::batched) return 1;
    return router != nullptr ? router->top_k() : in.top_k;
  }
};

// Memory for calls of up to a number of tokens. One call at a time.
class Workspace {
 public:
  const WorkspaceLimits& limits() const { return limits_; }
  std::uint64_t bytes() const { return memory_.size(); }

 private:
  friend class DeviceLayer;
  Workspace() = default;
  template <class T>
  T* at(Region region) const {
    const auto index = static_cast<std::size_t>(region);
    return reinterpret_cast<T*>(memory_.data() + plan_.at[index]);
  }
  sm90::RoutingTables tables() const;
  std::shared_ptr<const kernels::cuda::Device> device_{};
  kernels::cuda::Memory memory_{};
  WorkspaceKey key_{};
  WorkspacePlan plan_{};
  WorkspaceLimits limits_{};
};

class DeviceLayer {
 public:
  // Uploads the weights: packed tensors, or rows that the device packs. Errors: those of describe() and
  // DeviceWeights::make, cuda.kernel.
  static Result<DeviceLayer> make(std::shared_ptr<const kernels::cuda::Device> device,
                                  const ExpertsProblem& problem, const ExpertSource& source,
                                  DeviceLayerOptions options = {});

  // The same weights with other numerics, activation and scales. The path decode needs that this layer
  // allows it, too: else its kernels are not loaded. Errors: those of describe(), experts.layout (another
  // shape).
  Result<DeviceLayer> with_numerics(const ExpertsProblem& problem) const {
    return with_numerics(problem, options_);
  }
  Result<DeviceLayer> with_numerics(const ExpertsProblem& problem,
                                    DeviceLayerOptions options) const;

  const ExpertsProblem& problem() const { return problem_; }
  const kernels::cuda::Device& device() const { return *device_; }
  const std::shared_ptr<const kernels::cuda::Device>& shared_device() const { return device_; }
  const sm90::LayerParams& layer() const { return *layer_; }
  std::uint64_t weight_bytes() const;

  // Bytes of the workspace for such calls. Errors: cuda.limits.
  Result<std::uint64_t> workspace_bytes(const WorkspaceLimits& limits) const;
  // Errors: cuda.limits, cuda.memory. A workspace also serves other layers of the same sizes.
  Result<Workspace> reserve(const WorkspaceLimits& limits) const;

  // Errors, before anything is enqueued: cuda.call (parts that do not go together), cuda.pointer
  // (null, misaligned, not the device's), cuda.type, cuda.size (rows, strides, sizes that do not
  // fit), cuda.workspace (more than was reserved, or another layer's sizes); cuda.failed with the
  // driver's words, for a stream that is in error, too.
  Result<Done> apply(const DeviceCall& call, const Workspace& space,
                     kernels::cuda::Stream stream) const;
  // Rows of weights whose block scales span more than E4M3 holds: with one of them FP8 activations are
  // multiplied in bf16. Counted in gated MXFP4 layers on Hopper, else 0.
  std::uint64_t wide_rows() const;
  // True if calls of many tokens are multiplied on FP8 tensor cores.
  bool has_fp8_gemms() const;
  // The kernels of all its calls, as text: "sm90/exact", "sm90/match:marlin", "sm90/exact+fp8_token"
  // (on FP8 tensor cores).
  std::string kernel() const;
  // The path that apply takes, as text: "sm90/decode", "sm90/fp8", "sm90/rows", "sm80/rows".
  std::string_view kernel(const CallSize& size) const;

 private:
  struct Kernels;
  struct Step;
  struct RowsParams;
  DeviceLayer() = default;
  Result<Done> check_shared() const;
  Result<Done> find_kernels();
  sm80::GroupedGemmShape sm80_gemm_shape(std::uint32_t tile_tokens) const;
  CallPlan plan(const CallSize& size) const;
  Result<Done> place_scales();
  Result<Done> check_call(const DeviceCall& call, const Workspace& space) const;
  bool may_use(const Workspace& space) const;
  Result<Done> clear_output(const DeviceCall& call, kernels::cuda::Stream stream) const;
  Result<Done> decode(const Step& step) const;
  float* token_scales(const Step& step, std::size_t gemm) const;
  std::array<sm90::Gemm, 2> gemms(const Step& step) const;
  RowsParams rows_params(const Step& step) const;
  Result<Done> run_rows(const Step& step) const;

  std::shared_ptr<const kernels::cuda::Device> device_{};
  ExpertsProblem problem_{};
  DeviceLayerOptions options_{};
  std::shared_ptr<sm90::LayerParams> layer_{};
  std::shared_ptr<const DeviceWeights> weights_{};
  kernels::cuda::Memory scales_{};
  // Factors of quantized x and h, where all experts share one.
  float input_factor_ = 1.0f, hidden_factor_ = 1.0f;
  std::shared_ptr<Kernels> kernels_{};
};

}  // namespace fp4moe::moe::cuda
