// The two FP4 weight formats this library is about.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace fp4moe::formats {

enum class WeightFormat : std::uint8_t { mxfp4, nvfp4 };

inline constexpr std::array<std::string_view, 2> kWeightFormatNames{"mxfp4", "nvfp4"};

constexpr std::string_view name(WeightFormat format) {
  return kWeightFormatNames[static_cast<std::size_t>(format)];
}
constexpr std::uint64_t block_size(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 32 : 16;
}
constexpr std::optional<WeightFormat> weight_format_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kWeightFormatNames.size(); ++i)
    if (kWeightFormatNames[i] == name) return static_cast<WeightFormat>(i);
  return std::nullopt;
}

}  // namespace fp4moe::formats
