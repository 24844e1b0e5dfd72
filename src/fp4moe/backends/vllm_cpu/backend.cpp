// The reference's CPU kernel: x86 with AMX tiles only.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::vllm_cpu {
namespace {

constexpr DeviceNeed kDevices[] = {{.kinds = kCpu,
                                    .architecture = oracle::CpuArchitecture::x86,
                                    .cpu = {oracle::CpuFeature::amx_int8}}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kSixteenBit}};
constexpr ExpertsClass kExperts{
    .name = "CPUExpertsMxfp4",
    .kind = Kind::monolithic,
    .devices = kDevices,
    .activations = {silu, swigluoai},
    .schemes = kSchemes,
    .routings = {Routing::softmax_topk, Routing::renormalize, Routing::renormalize_naive},
    .takes_unquantized = true,
};
constexpr ExpertsClass kModular = [] {
  ExpertsClass result = kExperts;
  result.kind = Kind::modular;  // and still asks how tokens are routed
  result.activations = {silu, swigluoai, gelu, gelu_tanh};
  result.routings = {Routing::softmax_topk, Routing::renormalize, Routing::renormalize_naive,
                     Routing::deepseek_v4};
  return result;
}();
constexpr const ExpertsClass* kList[] = {&kExperts};
constexpr const ExpertsClass* kModularList[] = {&kModular};
constexpr Rounding kRounding[] = {
    {.kinds = kRocm, .intermediate = 256, .hidden = 256},
    {.intermediate = 32, .hidden = 32},
};
constexpr Backend row(PolicyDates policy_dates, std::span<const ExpertsClass* const> experts) {
  return {.name = "CPU",
          .family = "vllm_cpu",
          .format = WeightFormat::mxfp4,
          .policy_dates = policy_dates,
          .experts = experts,
          .rounding = kRounding,
          .scheme = QuantScheme::mxfp4_w4a16,
          .layout = "vllm_cpu.mxfp4",
          .numerics = "fused"};
}
constexpr Backend kBackends[] = {row(kAugust2026, kList), row(kVllm033, kModularList)};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::vllm_cpu
