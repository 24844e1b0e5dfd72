// vLLM's MXFP4 oracle by its own names (vllm.model_executor.layers.fused_moe.oracle.mxfp4): which
// backend, which sizes, weights into the backend's layout, what scales become, a kernel.
//
//   MoeConfig config{.num_experts = 8, ...};
//   config.context.device = *platform::describe_device("h100");
//   auto chosen = select_mxfp4_moe_backend(config);
//   auto weights = convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
//       chosen->backend, {.w13_weight = ..., .w2_weight = ..., ...}, config.context);
//
// Every function takes the policy from its context: those of all dates give their own results.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"
#include "fp4moe/vllm/moe_config.hpp"
#include "fp4moe/vllm/moe_kernel.hpp"
#include "fp4moe/vllm/moe_quant_config.hpp"
#include "fp4moe/vllm/selected.hpp"

namespace fp4moe::vllm {

// Every member of every policy, under the reference's name; the last one is ours.
// NOLINTBEGIN(readability-identifier-naming)
enum class Mxfp4MoeBackend : std::uint8_t {
  NONE,
  B12X_MXFP4_MXFP8,
  B12X_MXFP4_BF16,
  DEEPGEMM_MXFP4,
  FLASHINFER_TRTLLM_MXFP4_MXFP8,
  FLASHINFER_TRTLLM_MXFP4_BF16,
  FLASHINFER_CUTLASS_MXFP4_MXFP8,
  FLASHINFER_CUTLASS_MXFP4_BF16,
  CUTLASS_MXFP4_MXFP4,
  BATCHED_MARLIN,
  MARLIN,
  CK,
  AITER,
  AITER_MXFP4_BF16,
  AITER_TRITON_MXFP4_BF16,
  AITER_MXFP4_FP8,
  AITER_MXFP4_MXFP4,
  AITER_TRITON_MXFP4_MXFP4,
  TRITON,
  TRITON_UNFUSED,
  XPU,
  CPU,
  EMULATION,
  HUMMING,
  FLASHINFER_MOE_EP_CUTEDSL,
  FLASHINFER_MOE_EP_DEEP_GEMM,
  NATIVE_SM90,
  NATIVE_SM80,
};
// NOLINTEND(readability-identifier-naming)
inline constexpr std::array kMxfp4MoeBackends = std::to_array<std::string_view>({
    "None",
    "B12X_MXFP4_MXFP8",
    "B12X_MXFP4_BF16",
    "DEEPGEMM_MXFP4",
    "FLASHINFER_TRTLLM_MXFP4_MXFP8",
    "FLASHINFER_TRTLLM_MXFP4_BF16",
    "FLASHINFER_CUTLASS_MXFP4_MXFP8",
    "FLASHINFER_CUTLASS_MXFP4_BF16",
    "CUTLASS_MXFP4_MXFP4",
    "BATCHED_MARLIN",
    "MARLIN",
    "CK",
    "AITER",
    "AITER_MXFP4_BF16",
    "AITER_TRITON_MXFP4_BF16",
    "AITER_MXFP4_FP8",
    "AITER_MXFP4_MXFP4",
    "AITER_TRITON_MXFP4_MXFP4",
    "TRITON",
    "TRITON_UNFUSED",
    "XPU",
    "CPU",
    "EMULATION",
    "HUMMING",
    "FLASHINFER_MOE_EP_CUTEDSL",
    "FLASHINFER_MOE_EP_DEEP_GEMM",
    "NATIVE_SM90",
    "NATIVE_SM80",
});
static_assert(kMxfp4MoeBackends.size() ==
              static_cast<std::size_t>(Mxfp4MoeBackend::NATIVE_SM80) + 1);

// The member's value: "MARLIN", and "None" for NONE.
constexpr std::string_view to_string(Mxfp4MoeBackend backend) {
  return kMxfp4MoeBackends[static_cast<std::size_t>(backend)];
}
// Errors: vllm.backend, listing the values.
Result<Mxfp4MoeBackend> parse_mxfp4_moe_backend(std::string_view value);

// TRTLLM_BACKENDS and TRITON_BACKENDS.
inline constexpr std::array kTrtllmBackends{Mxfp4MoeBackend::FLASHINFER_TRTLLM_MXFP4_MXFP8,
                                            Mxfp4MoeBackend::FLASHINFER_TRTLLM_MXFP4_BF16};
inline constexpr std::array kTritonBackends{Mxfp4MoeBackend::TRITON,
                                            Mxfp4MoeBackend::TRITON_UNFUSED};

using Mxfp4Selected = Selected<Mxfp4MoeBackend>;

// `activation_key`: how the checkpoint wants activations quantized, instead of the configuration's.
// If the reference raises: an error with id vllm.refused in its sentence; `refused`, if given,
// takes the record with every reason. NONE, off the GPU until April, is a choice and no error.
Result<Mxfp4Selected> select_mxfp4_moe_backend(const MoeConfig& config,
                                               std::optional<ActivationKey> activation_key = {},
                                               oracle::Record* refused = nullptr);
// The same by its name of April.
Result<Mxfp4Selected> select_gpt_oss_mxfp4_moe_backend(
    const MoeConfig& config, std::optional<ActivationKey> activation_key = {},
    oracle::Record* refused = nullptr);
// The entry for DeepSeek-V4 and other MXFP4 checkpoints. Errors: vllm.entry where the policy has
// none.
Result<Mxfp4Selected> select_deepseek_v4_mxfp4_moe_backend(const MoeConfig& config,
                                                           oracle::Record* refused = nullptr);

// The automatic list for this deployment, the first tried first.
Result<std::vector<Mxfp4MoeBackend>> get_priority_backends(const MoeConfig& config);
// The type that the backend wants activations quantized to; nothing: they stay in 16 bits.
Result<std::optional<ActivationKey>> backend_activation_key(Mxfp4MoeBackend backend,
                                                            const Context& context = {});
// The backends that a name of moe_backend stands for; one until April, since then maybe several.
Result<std::vector<Mxfp4MoeBackend>> map_mxfp4_backend(std::string_view runner_backend,
                                                       const Context& context = {});
// Its classes of experts in the order of trial.
Result<std::vector<ExpertsClass>> backend_to_kernel_cls(Mxfp4MoeBackend backend,
                                                        const Context& context = {});

// The sizes that the backend computes with. Errors: vllm.backend, sizes.overflow.
Result<oracle::Sizes> mxfp4_round_up_hidden_size_and_intermediate_size(
    Mxfp4MoeBackend backend, std::uint64_t hidden_size, std::uint64_t intermediate_size,
    const Context& context = {}, std::optional<Activation> activation = {});

// Loaded weights into the backend's layout, bit for bit as the reference's function and as
// `fp4moe convert`. Rows of w13 are interleaved, gate and up, as in gpt-oss. Sizes may be rounded
// already; others are rounded here, padding is zero. A missing bias counts as none. The tensors of
// the result are w13, w2, w13_scale, w2_scale, w13_bias, w2_bias. Errors: vllm.tensor (a type, a
// shape, no memory), vllm.backend, weights.*, layout.*, convert.*, scale.*.
Result<KernelWeights> convert_gpt_oss_weight_to_mxfp4_moe_kernel_format(
    Mxfp4MoeBackend backend, const Mxfp4Tensors& tensors, const Context& context = {},
    const ConversionOptions& options = {});
// The same by its name of March.
Result<KernelWeights> convert_to_mxfp4_moe_kernel_format(Mxfp4MoeBackend backend,
                                                         const Mxfp4Tensors& tensors,
                                                         const Context& context = {},
                                                         const ConversionOptions& options = {});
// The same for other models: all rows of the gate, then all of the up.
Result<KernelWeights> convert_weight_to_mxfp4_moe_kernel_format(
    Mxfp4MoeBackend backend, const Mxfp4Tensors& tensors, const Context& context = {},
    const ConversionOptions& options = {});

// The quant config of the kernel. Errors: vllm.backend.
Result<FusedMoeQuantConfig> make_mxfp4_moe_quant_config(Mxfp4MoeBackend backend,
                                                        const Mxfp4Scales& scales,
                                                        const MoeConfig& config = {});

// A kernel that runs here, by this machine's engines with the backend's numbers; modular or
// monolithic as `experts_cls` is. Errors: vllm.backend, vllm.weights, those of runtime::MoeLayer.
Result<MoeKernel> make_mxfp4_moe_kernel(const FusedMoeQuantConfig& moe_quant_config,
                                        const MoeConfig& moe_config, ExpertsClass experts_cls,
                                        Mxfp4MoeBackend mxfp4_backend, const KernelWeights& weights,
                                        const KernelOptions& options = {});

}  // namespace fp4moe::vllm
