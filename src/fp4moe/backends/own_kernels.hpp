// The properties that our own kernels share: they compute every layer this library knows, whatever
// the batch, on weights of both formats with activations in any form.
#pragma once
#include "fp4moe/backends/columns.hpp"

namespace fp4moe::backends {

inline constexpr Scheme kEverything[] = {{WeightFormat::mxfp4, kAnyKey},
                                         {WeightFormat::nvfp4, kAnyKey}};

constexpr ExpertsClass own_kernel(std::string_view name, std::span<const DeviceNeed> devices,
                                  TokenFormat format = TokenFormat::standard) {
  return {.name = name,
          .format = format,
          .devices = devices,
          .not_gated = true,
          .activations = kGenericActivationsSinceAugust2026,
          .schemes = kEverything,
          .batch_invariant = true,
          .lora = true,
          .takes_unquantized = true,
          .expert_map = true};
}

// The same with routing inside: no LoRA, and all tokens are here already.
constexpr ExpertsClass own_monolithic(std::string_view name, std::span<const DeviceNeed> devices,
                                      Routings routings) {
  ExpertsClass result = own_kernel(name, devices);
  result.kind = Kind::monolithic;
  result.limits = kMonolithicLimits;
  result.routings = routings;
  result.lora = false;
  return result;
}

// A kernel whose plan follows from the number of tokens: last bits depend on the batch.
constexpr ExpertsClass not_batch_invariant(ExpertsClass kernel) {
  kernel.batch_invariant = false;
  return kernel;
}

constexpr Backend own_backend(std::string_view name, std::string_view family, WeightFormat format,
                              std::span<const ExpertsClass* const> experts,
                              std::span<const Rounding> rounding, std::string_view layout) {
  return {
      .name = name,
      .family = family,
      .format = format,
      .policy_dates = {native},
      .experts = experts,
      .rounding = rounding,
      .scheme = format == WeightFormat::mxfp4 ? QuantScheme::mxfp4_w4a16 : QuantScheme::nvfp4_w4a16,
      .layout = layout,
      .numerics = "native",
      .any_activation = true};
}

}  // namespace fp4moe::backends
