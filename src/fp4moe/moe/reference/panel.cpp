#include "fp4moe/moe/reference/panel.hpp"

#include <algorithm>
#include <array>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::moe::reference {
namespace {

using formats::WeightFormat;
using Values = std::array<double, 16>;  // of the sixteen codes of a block

constexpr Values kCodes = [] {
  Values result{};
  for (std::uint8_t code = 0; code < 16; ++code) result[code] = formats::E2m1::decode(code);
  return result;
}();

Values values_of(const Fp4Matrix& matrix, std::uint8_t scale) {
  Values result{};
  const float read = matrix.format == WeightFormat::mxfp4 ? formats::E8m0::decode(scale)
                                                          : formats::E4m3fn::decode(scale);
  if (!matrix.bf16_global) {
    for (std::size_t code = 0; code < 16; ++code) result[code] = kCodes[code] * double{read};
    return result;
  }
  const float factor = read * *matrix.bf16_global;
  for (std::size_t code = 0; code < 16; ++code) {
    const float value = static_cast<float>(kCodes[code]) * factor;
    result[code] = double{formats::Bf16::decode(formats::Bf16::encode(value))};
  }
  return result;
}

// Tokens at once: their sums fill the registers of the narrowest machine without spilling much.
constexpr std::size_t kTile = 4;

template <std::size_t Tokens>
void gemm_tile(std::span<const double> panel, const double* const* tokens,
               double (*out)[kPanelRows]) {
  double sums[Tokens][kPanelRows] = {};
  const std::size_t depth = panel.size() / kPanelRows;
  const double* rows = panel.data();
  for (std::size_t k = 0; k < depth; ++k, rows += kPanelRows) {
    for (std::size_t t = 0; t < Tokens; ++t) {
      const double x = tokens[t][k];
      for (std::size_t r = 0; r < kPanelRows; ++r) sums[t][r] += rows[r] * x;
    }
  }
  for (std::size_t t = 0; t < Tokens; ++t)
    for (std::size_t r = 0; r < kPanelRows; ++r) out[t][r] = sums[t][r];
}

}  // namespace

void dequantize_panel(const Fp4Matrix& matrix, std::uint64_t first, std::span<double> panel) {
  const std::uint64_t block = formats::block_size(matrix.format), blocks = matrix.k / block;
  const std::uint64_t count = std::min<std::uint64_t>(kPanelRows, matrix.rows - first);
  if (count < kPanelRows) std::fill(panel.begin(), panel.end(), 0.0);
  for (std::uint64_t b = 0; b < blocks; ++b) {
    for (std::uint64_t r = 0; r < count; ++r) {
      const std::uint64_t row = first + r;
      const Values values =
          values_of(matrix, static_cast<std::uint8_t>(matrix.scales[row * blocks + b]));
      const std::byte* codes = matrix.codes + (row * matrix.k + b * block) / 2;
      double* to = panel.data() + b * block * kPanelRows + r;
      for (std::uint64_t i = 0; i < block / 2; ++i, to += 2 * kPanelRows) {
        const auto pair = static_cast<std::uint8_t>(codes[i]);
        to[0] = values[pair & 15];
        to[kPanelRows] = values[pair >> 4];
      }
    }
  }
}

void gemm_panel(std::span<const double> panel, std::span<const double* const> tokens,
                double (*out)[kPanelRows]) {
  std::size_t t = 0;
  for (; t + kTile <= tokens.size(); t += kTile)
    gemm_tile<kTile>(panel, tokens.data() + t, out + t);
  for (; t < tokens.size(); ++t) gemm_tile<1>(panel, tokens.data() + t, out + t);
}

}  // namespace fp4moe::moe::reference
