#include "fp4moe/moe/numerics.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"

namespace fp4moe::moe {
namespace {

constexpr std::array<std::string_view, 3> kFirstWords{"-", "accumulator + bias",
                                                      "accumulator; then with its bias"};
constexpr std::array<std::string_view, 3> kMiddleWords{"-", "result", "activated gate; result"};
constexpr std::array<std::string_view, 4> kSecondWords{
    "-", "(accumulator + bias) * weight", "accumulator + bias",
    "accumulator; then with its bias; then * weight"};
constexpr std::array<std::string_view, 3> kWeightWords{"-", "bf16",
                                                       "bf16; NVFP4: with the global scale"};

template <typename Word, std::size_t count>
std::string_view word(const std::array<std::string_view, count>& words, Word value) {
  return words[static_cast<std::size_t>(value)];
}

}  // namespace

std::string numerics_markdown() {
  std::string page =
      "| numerics | (1) GEMM1 | (2) activation | (3) GEMM2 | router's weight | "
      "(4) sum | |\n|---|---|---|---|---|---|---|\n";
  for (const Numerics& row : kNumerics)
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} | {}{} |\n", row.id,
                        word(kFirstWords, row.first), word(kMiddleWords, row.middle),
                        word(kSecondWords, row.second), word(kWeightWords, row.weight),
                        row.rounds_sum ? "bf16" : "-", row.says,
                        row.weights_in_bf16 ? "; NVFP4 weights are rounded, too" : "");
  return page;
}

Result<const Numerics*> require_numerics(std::string_view id) {
  std::string all;
  for (const Numerics& row : kNumerics) {
    if (row.id == id) return &row;
    all += fmt::format("{}{}", all.empty() ? "" : ", ", row.id);
  }
  return usage("numerics.unknown", fmt::format("there are no numerics \"{}\"", id))
      .expects(fmt::format("one of {}", all), id);
}

Result<NumericsKind> numerics_from_name(std::string_view id) {
  const Result<const Numerics*> found = require_numerics(id);
  if (!found) return found.why();
  return static_cast<NumericsKind>(*found - kNumerics.data());
}

Tolerance tolerance(const Numerics& numerics, oracle::ActivationKey quantizes,
                    std::string_view engine) {
  using oracle::ActivationKey;
  switch (quantizes) {
    case ActivationKey::none:
      break;
    case ActivationKey::mxfp8:
    case ActivationKey::fp8_static_tensor:
    case ActivationKey::fp8_block128:
    case ActivationKey::fp8_token:
      return {.of_largest = 0.15, .cosine = 0.995};
    case ActivationKey::mxfp4:
    case ActivationKey::nvfp4:
    case ActivationKey::nvfp4_token:
      return {.of_largest = 0.5, .cosine = 0.95};
  }
  if (numerics.activation_bits == 8) return {.of_largest = 0.05, .cosine = 0.999};
  if (numerics.id == "exact") return exactness(engine).tolerance;
  return {.of_largest = 2e-2, .cosine = 0.9999};
}

const Exactness& exactness(std::string_view engine) {
  const auto* found = std::ranges::find(kExactness, engine, &Exactness::engine);
  return found == kExactness.end() ? kExactness[1] : *found;
}

double rounded_to_bf16(double value) {
  return static_cast<double>(
      formats::Bf16::decode(formats::Bf16::encode(static_cast<float>(value))));
}

}  // namespace fp4moe::moe
