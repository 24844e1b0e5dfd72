// GEMM with FP4 matrices in float64, eight rows at a time. A panel holds eight dequantized rows
// side by side, [k][8], so that the eight sums of a token run in the order of k and the compiler
// can keep them in vector registers. The value of an element of the result depends on its row and
// token alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fp4moe/formats/weight_format.hpp"

namespace fp4moe::moe::reference {

inline constexpr std::size_t kPanelRows = 8;

// Canonical rows without gaps.
struct Fp4Matrix {
  formats::WeightFormat format = formats::WeightFormat::mxfp4;
  const std::byte* codes = nullptr;   // [rows, k / 2]
  const std::byte* scales = nullptr;  // [rows, k / block]
  std::uint64_t rows = 0, k = 0;
  // NVFP4 emulation: elements are multiplied by the global scale and rounded to bf16.
  std::optional<float> bf16_global{};
};

// Rows [first, first + kPanelRows) into `panel`; rows past the last become zero.
void dequantize_panel(const Fp4Matrix& matrix, std::uint64_t first, std::span<double> panel);

// out[t][r] = sum over k of panel[k][r] * tokens[t][k], in the order of k.
void gemm_panel(std::span<const double> panel, std::span<const double* const> tokens,
                double (*out)[kPanelRows]);

}  // namespace fp4moe::moe::reference
