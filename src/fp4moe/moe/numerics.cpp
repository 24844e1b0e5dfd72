#include "fp4moe/moe/numerics.hpp"

#include <string>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"

namespace fp4moe::moe {

Result<const Numerics*> require_numerics(std::string_view id) {
  std::string all;
  for (const Numerics& row : kNumerics) {
    if (row.id == id) return &row;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", row.id);
  }
  return usage("numerics.unknown", fmt::format("there are no numerics \"{}\"", id))
      .expects(fmt::format("one of {}", all), id);
}

Tolerance tolerance(const Numerics& numerics, oracle::ActivationKey quantises) {
  using oracle::ActivationKey;
  switch (quantises) {
    case ActivationKey::none:
      break;
    case ActivationKey::mxfp8:
    case ActivationKey::fp8_static_tensor:
    case ActivationKey::fp8_block128:
    case ActivationKey::fp8_token:
      return {.of_largest = 0.15, .cosine = 0.995};
    case ActivationKey::mxfp4:
    case ActivationKey::nvfp4:
      return {.of_largest = 0.5, .cosine = 0.95};
  }
  return numerics.id == "exact" ? Tolerance{.of_largest = 1e-6, .cosine = 1 - 1e-12}
                                : Tolerance{.of_largest = 2e-2, .cosine = 0.9999};
}

double rounded_to_bf16(double value) {
  return static_cast<double>(
      formats::Bf16::decode(formats::Bf16::encode(static_cast<float>(value))));
}

}  // namespace fp4moe::moe
