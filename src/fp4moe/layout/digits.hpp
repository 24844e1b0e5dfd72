// The notation of maps: digits of rows (n) and columns (k), ((x / divide) % modulo) * stride, and
// the extents of the kernel's tensor. A file of maps says `using namespace layout::digits`.
#pragma once
#include <cstdint>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::layout::digits {

struct Stride {
  std::uint32_t fixed = 0, by_cols = 0, by_rows = 0;
};
constexpr Stride cols(std::uint32_t count) { return {.by_cols = count}; }
constexpr Stride rows(std::uint32_t count) { return {.by_rows = count}; }
constexpr Stride at(std::uint32_t count) { return {.fixed = count}; }

// A modulo of 0: the digit takes all that is left.
constexpr Digit n(std::uint32_t divide, std::uint32_t modulo, Stride stride) {
  return {Axis::row, divide, modulo, stride.fixed, stride.by_cols, stride.by_rows};
}
constexpr Digit k(std::uint32_t divide, std::uint32_t modulo, Stride stride) {
  return {Axis::col, divide, modulo, stride.fixed, stride.by_cols, stride.by_rows};
}

inline constexpr Dim kExpertsDim{.experts = true};
constexpr Dim rows_dim(std::uint32_t times = 1, std::uint32_t divide = 1) {
  return {.rows = true, .times = times, .divide = divide};
}
constexpr Dim cols_dim(std::uint32_t times = 1, std::uint32_t divide = 1) {
  return {.cols = true, .times = times, .divide = divide};
}
constexpr Dim of(std::uint32_t extent) { return {.times = extent}; }

}  // namespace fp4moe::layout::digits
