// DeepGEMM: FP8 activations in blocks of 128 with MXFP4 weights.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::deepgemm {
namespace {

constexpr CapabilityRange kBlackwells[] = {family(10), family(12)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda,
                                    .capabilities = kBlackwells,
                                    .libraries = {Library::deep_gemm},
                                    .switches = {Variable::use_deep_gemm}}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, {ActivationKey::fp8_block128}}};
constexpr ExpertsClass kExperts{
    .name = "DeepGemmFP4Experts",
    .devices = kDevices,
    .activations = {silu, swiglustep, situ},
    .schemes = kSchemes,
    .limits = kNoFlashinferExchange,
    .expert_map = true,
};
constexpr const ExpertsClass* kList[] = {&kExperts};
constexpr Rounding kRounding[] = {{.intermediate = 128, .hidden = 128}};

constexpr Backend kBackends[] = {
    {.name = "DEEPGEMM_MXFP4",
     .family = "deepgemm",
     .format = WeightFormat::mxfp4,
     .policy_dates = kSinceAugust2026,
     .activation = ActivationKey::fp8_block128,
     .experts = kList,
     .rounding = kRounding,
     .scheme = QuantScheme::mxfp4_fp8,
     .layout = "deepgemm.mxfp4",
     .numerics = "grouped"},
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::deepgemm
