// Searches through scale bytes at memory speed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"

namespace fp4moe::checkpoint {

inline constexpr std::size_t kNoScale = ~std::size_t{0};

// The first byte of which `found` says so, kNoScale if there is none.
template <typename Found>
std::size_t find_scale(std::span<const std::byte> bytes, const Found& found) {
  // No way out of the loop, so that compilers make vector instructions of it.
  constexpr std::size_t kAtOnce = 32;
  const auto any_found = [&](std::size_t at) {
    std::uint8_t any = 0;
    for (std::size_t j = 0; j < kAtOnce; ++j)
      any |= static_cast<std::uint8_t>(found(std::to_integer<std::uint8_t>(bytes[at + j])));
    return any != 0;
  };
  std::size_t i = 0;
  while (i + kAtOnce <= bytes.size() && !any_found(i)) i += kAtOnce;
  // The rest is shorter: the last full step, which overlaps, covers it.
  if (bytes.size() >= kAtOnce && i + kAtOnce > bytes.size() && !any_found(bytes.size() - kAtOnce))
    return kNoScale;
  for (; i < bytes.size(); ++i)
    if (found(std::to_integer<std::uint8_t>(bytes[i]))) return i;
  return kNoScale;
}

// NaN: 255 in E8M0 (MXFP4); 0x7F and 0xFF in E4M3 (NVFP4).
inline std::size_t find_nan_scale(WeightFormat format, std::span<const std::byte> scales) {
  const std::uint8_t sign = format == WeightFormat::nvfp4 ? 0x80 : 0;
  return find_scale(scales, [=](std::uint8_t scale) { return (scale | sign) == 0xFF; });
}

// A set sign bit, which E4M3 scales have and no scale should use.
inline std::size_t find_negative_scale(std::span<const std::byte> e4m3) {
  return find_scale(e4m3, [](std::uint8_t scale) { return scale >= 0x80; });
}

// Either of the two at once.
inline std::size_t find_nan_or_negative_scale(std::span<const std::byte> e4m3) {
  return find_scale(e4m3, [](std::uint8_t scale) { return scale >= 0x7F; });
}

struct ScalePlace {
  std::uint64_t row = 0, column = 0;
};

// The first scale of some rows that `find` finds; dense rows are searched as one.
template <typename Find>
std::optional<ScalePlace> find_in_rows(const RowsView& scales, const Find& find) {
  const bool dense = scales.is_dense();
  const std::uint64_t runs = dense ? 1 : scales.rows;
  const std::uint64_t length = dense ? scales.rows * scales.row_bytes : scales.row_bytes;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const std::size_t at = find({scales.data + run * scales.stride, length});
    if (at != kNoScale) return ScalePlace{run + at / scales.row_bytes, at % scales.row_bytes};
  }
  return std::nullopt;
}

}  // namespace fp4moe::checkpoint
