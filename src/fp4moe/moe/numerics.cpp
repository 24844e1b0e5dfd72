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

double rounded_to_bf16(double value) {
  return static_cast<double>(
      formats::Bf16::decode(formats::Bf16::encode(static_cast<float>(value))));
}

}  // namespace fp4moe::moe
