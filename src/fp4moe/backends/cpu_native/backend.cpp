// Our own kernels on the processor, Arm or x86, for every layer this library knows. They run on
// the host of any device.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::cpu_native {
namespace {

constexpr DeviceNeed kEverywhere[] = {{}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kAnyKey}, {WeightFormat::nvfp4, kAnyKey}};

constexpr Experts experts(std::string_view name, Kind kind, TokenFormat format) {
  return {.name = name,
          .kind = kind,
          .format = format,
          .devices = kEverywhere,
          .not_gated = true,
          .activations = kGenericEleven,
          .schemes = kSchemes,
          .batch_invariant = true,
          .lora = kind == Kind::modular,
          .takes_unquantised = true,
          .expert_map = true};
}
constexpr Experts kMonolithic = [] {
  Experts made = experts("CpuExpertsMonolithic", Kind::monolithic, TokenFormat::standard);
  made.limits = kMonolithicLimits;
  made.routings = {Routing::softmax_topk,   Routing::renormalize,       Routing::deepseek_v3,
                   Routing::llama4,         Routing::renormalize_naive, Routing::topk,
                   Routing::sigmoid_renorm, Routing::minimax2,          Routing::sigmoid,
                   Routing::deepseek_v4,    Routing::simulated};
  return made;
}();
constexpr Experts kModular = experts("CpuExperts", Kind::modular, TokenFormat::standard);
constexpr Experts kBatched = experts("BatchedCpuExperts", Kind::modular, TokenFormat::batched);
constexpr const Experts* kList[] = {&kMonolithic, &kModular, &kBatched};

constexpr Rounding kRounding[] = {{.intermediate = 32, .hidden = 32}};

constexpr Backend row(WeightFormat format, QuantScheme scheme, std::string_view layout) {
  return {.name = "CPU",
          .family = "cpu_native",
          .format = format,
          .eras = {native},
          .experts = kList,
          .rounding = kRounding,
          .scheme = scheme,
          .layout = layout,
          .any_activation = true};
}
constexpr Backend kBackends[] = {
    row(WeightFormat::mxfp4, QuantScheme::mxfp4_w4a16, "cpu_native.mxfp4"),
    row(WeightFormat::nvfp4, QuantScheme::nvfp4_w4a16, "cpu_native.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::cpu_native
