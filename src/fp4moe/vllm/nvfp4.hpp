// vLLM's NVFP4 oracle by its own names (vllm.model_executor.layers.fused_moe.oracle.nvfp4): which
// backend, weights into the backend's layout, what scales become, a kernel. See mxfp4.hpp.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"
#include "fp4moe/vllm/moe_config.hpp"
#include "fp4moe/vllm/moe_kernel.hpp"
#include "fp4moe/vllm/moe_quant_config.hpp"
#include "fp4moe/vllm/selected.hpp"

namespace fp4moe::vllm {

// Every member of every policy, under the reference's name; the last two are ours.
// NOLINTBEGIN(readability-identifier-naming)
enum class NvFp4MoeBackend : std::uint8_t {
  B12X,
  FLASHINFER_TRTLLM,
  FLASHINFER_CUTLASS,
  FLASHINFER_CUTEDSL,
  FLASHINFER_CUTEDSL_BATCHED,
  FLASHINFER_MOE_EP_CUTEDSL,
  FLASHINFER_B12X,
  VLLM_CUTLASS,
  MARLIN,
  HUMMING,
  EMULATION,
  CPU,
  NATIVE_SM90,
  NATIVE_SM80,
};
// NOLINTEND(readability-identifier-naming)
inline constexpr std::array kNvFp4MoeBackends = std::to_array<std::string_view>({
    "B12X",
    "FLASHINFER_TRTLLM",
    "FLASHINFER_CUTLASS",
    "FLASHINFER_CUTEDSL",
    "FLASHINFER_CUTEDSL_BATCHED",
    "FLASHINFER_MOE_EP_CUTEDSL",
    "FLASHINFER_B12X",
    "VLLM_CUTLASS",
    "MARLIN",
    "HUMMING",
    "EMULATION",
    "CPU",
    "NATIVE_SM90",
    "NATIVE_SM80",
});
static_assert(kNvFp4MoeBackends.size() ==
              static_cast<std::size_t>(NvFp4MoeBackend::NATIVE_SM80) + 1);

constexpr std::string_view to_string(NvFp4MoeBackend backend) {
  return kNvFp4MoeBackends[static_cast<std::size_t>(backend)];
}
// Errors: vllm.backend, listing the values.
Result<NvFp4MoeBackend> parse_nvfp4_moe_backend(std::string_view value);

// FLASHINFER_NVFP4_MOE_BACKENDS of the newest policy; flashinfer_nvfp4_moe_backends() has every one.
inline constexpr std::array kFlashInferNvFp4MoeBackends{
    NvFp4MoeBackend::FLASHINFER_TRTLLM, NvFp4MoeBackend::FLASHINFER_CUTLASS,
    NvFp4MoeBackend::FLASHINFER_CUTEDSL, NvFp4MoeBackend::FLASHINFER_CUTEDSL_BATCHED,
    NvFp4MoeBackend::FLASHINFER_B12X};

using NvFp4Selected = Selected<NvFp4MoeBackend>;

// `weight_key` is kNvfp4Static; `activation_key` kNvfp4Dynamic, or nothing for a checkpoint whose
// activations stay in 16 bits. Errors: vllm.key, and where the reference raises vllm.refused in its
// sentence; `refused`, where given, takes the record with every reason.
Result<NvFp4Selected> select_nvfp4_moe_backend(const MoeConfig& config, WeightFormat weight_key,
                                               std::optional<ActivationKey> activation_key,
                                               oracle::Record* refused = nullptr);

// AVAILABLE_BACKENDS: the automatic list, the first tried first.
Result<std::vector<NvFp4MoeBackend>> get_available_nvfp4_backends(const MoeConfig& config);
// FLASHINFER_NVFP4_MOE_BACKENDS of the policy: those that share activation scales, in the order of
// the enumeration.
Result<std::vector<NvFp4MoeBackend>> flashinfer_nvfp4_moe_backends(const Context& context = {});
// True where one activation scale serves the experts of all ranks.
Result<bool> is_global_sf_supported_for_nvfp4_backend(NvFp4MoeBackend backend,
                                                      const Context& context = {});
// The backend that a name of moe_backend stands for. Errors: vllm.name, in the reference's
// sentence.
Result<NvFp4MoeBackend> map_nvfp4_backend(std::string_view runner_backend,
                                          const Context& context = {});
// Its classes of experts in the order of trial. Errors: vllm.no_class.
Result<std::vector<ExpertsClass>> backend_to_kernel_cls(NvFp4MoeBackend backend,
                                                        const Context& context = {});
// The same by its name of January, when there was one class.
Result<ExpertsClass> backend_2_kernel_cls(NvFp4MoeBackend backend, const Context& context = {});

// Loaded weights into the backend's layout, bit for bit as the reference's function and as
// `fp4moe convert`. With a gate, w13 is all rows of the gate, then all of the up. Errors: vllm.tensor,
// vllm.backend, weights.*, layout.*, convert.*, scale.*, sizes.conversion.
Result<NvFp4KernelWeights> convert_to_nvfp4_moe_kernel_format(
    NvFp4MoeBackend backend, const NvFp4Tensors& tensors, bool is_act_and_mul,
    const Context& context = {}, const ConversionOptions& options = {});

// The quant config of the kernel. g1_alphas and g2_alphas are what accumulators are
// multiplied by in the end; newer references multiply activation scales in later. Errors:
// vllm.backend, vllm.scales (numbers of scales that do not fit).
Result<FusedMoeQuantConfig> make_nvfp4_moe_quant_config(NvFp4MoeBackend backend,
                                                        const NvFp4Scales& scales,
                                                        const MoeConfig& config = {});

// See make_mxfp4_moe_kernel.
Result<MoeKernel> make_nvfp4_moe_kernel(const FusedMoeQuantConfig& moe_quant_config,
                                        const MoeConfig& moe_config, ExpertsClass experts_cls,
                                        NvFp4MoeBackend backend, const NvFp4KernelWeights& weights,
                                        const KernelOptions& options = {});

}  // namespace fp4moe::vllm
