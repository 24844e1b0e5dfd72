// Our own kernels for Hopper. They are compiled for exactly one architecture, sm_90a.
#include "fp4moe/backends/columns.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::cuda_native {
namespace {

constexpr CapabilityRange kHopper[] = {exactly(9, 0)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kHopper}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, kAnyKey}, {WeightFormat::nvfp4, kAnyKey}};

constexpr Experts experts(std::string_view name, Kind kind, TokenFormat format) {
  return {.name = name,
          .kind = kind,
          .format = format,
          .devices = kDevices,
          .not_gated = true,
          .activations = kGenericEleven,
          .schemes = kSchemes,
          .batch_invariant = true,
          .lora = kind == Kind::modular,
          .takes_unquantised = true,
          .expert_map = true};
}
constexpr Experts kMonolithic = [] {
  Experts made = experts("Sm90ExpertsMonolithic", Kind::monolithic, TokenFormat::standard);
  made.limits = kMonolithicLimits;
  made.routings = {Routing::softmax_topk,   Routing::renormalize,       Routing::deepseek_v3,
                   Routing::llama4,         Routing::renormalize_naive, Routing::topk,
                   Routing::sigmoid_renorm, Routing::minimax2,          Routing::sigmoid};
  return made;
}();
constexpr Experts kModular = experts("Sm90Experts", Kind::modular, TokenFormat::standard);
constexpr Experts kBatched = experts("BatchedSm90Experts", Kind::modular, TokenFormat::batched);
constexpr const Experts* kList[] = {&kMonolithic, &kModular, &kBatched};

constexpr Rounding kRounding[] = {{.intermediate = 64, .hidden = 64}};

constexpr Backend row(WeightFormat format, QuantScheme scheme, std::string_view layout) {
  return {.name = "NATIVE_SM90",
          .family = "cuda_native",
          .format = format,
          .eras = {native},
          .experts = kList,
          .rounding = kRounding,
          .scheme = scheme,
          .layout = layout,
          .any_activation = true};
}
constexpr Backend kBackends[] = {
    row(WeightFormat::mxfp4, QuantScheme::mxfp4_w4a16, "native_sm90.mxfp4"),
    row(WeightFormat::nvfp4, QuantScheme::nvfp4_w4a16, "native_sm90.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::cuda_native
