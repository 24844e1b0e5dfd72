// MXFP8: blocks of 32 E4M3FN codes that share one E8M0 scale.
//
//   block   | scale: 1 byte | codes: 32 bytes |
//   value   = e4m3fn(code) * 2^(scale - 127)
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/formats/block.hpp"
#include "fp4moe/formats/mxfp4.hpp"

namespace fp4moe::formats {

inline constexpr std::size_t kMxfp8Block = 32;
inline constexpr BlockShape kMxfp8Shape{.elements = kMxfp8Block, .code_bytes = kMxfp8Block};

enum class Mxfp8Rule : std::uint8_t { ceil448, flashinfer_cuda, flashinfer_cutedsl, log2 };

struct Mxfp8RuleRow {
  Mxfp8Rule rule;
  std::string_view name;     // as golden files and the command line spell it
  std::string_view used_by;  // where it was read
};

// clang-format off
inline constexpr std::array<Mxfp8RuleRow, 4> kMxfp8Rules{{
    {Mxfp8Rule::ceil448,            "mxfp8_e4m3.ceil448",            "triton_kernels MXFP8 ROUND_UP"},
    {Mxfp8Rule::flashinfer_cuda,    "mxfp8_e4m3.flashinfer_cuda",    "FlashInfer mxfp8_quantize, CUDA source"},
    {Mxfp8Rule::flashinfer_cutedsl, "mxfp8_e4m3.flashinfer_cutedsl", "FlashInfer mxfp8_quantize, cute-dsl, as vLLM selects on SM100"},
    {Mxfp8Rule::log2,               "mxfp8_e4m3.log2",               "vLLM's torch reference"},
}};
// clang-format on

constexpr std::string_view name(Mxfp8Rule rule) {
  return kMxfp8Rules[static_cast<std::size_t>(rule)].name;
}
std::optional<Mxfp8Rule> mxfp8_rule_from_name(std::string_view name);

// The scale code of a block with this maximum of magnitudes.
std::uint8_t mxfp8_scale(Mxfp8Rule rule, float amax);

// Quantizes one block of at most 32 values into exactly 32 codes. The rules agree for maxima of
// 448 * 2^-126 and more that are finite and not within a few units in the last place above a power
// of two times 448 (there `log2` may be one lower). Below: `ceil448` gives scale 1, the others 0,
// where `flashinfer_cuda` multiplies by infinity (the hardware's reciprocal flushes 2^-127 to zero)
// and `flashinfer_cutedsl` by zero. With infinity in the block `ceil448` gives 255, the others 254.
void quantize_mxfp8(Mxfp8Rule rule, std::span<const float> x, std::uint8_t& scale,
                    std::span<std::uint8_t> codes);

// The first out.size() values of a block, at most 32; overflow becomes the largest finite float32.
void dequantize_mxfp8(std::uint8_t scale, std::span<const std::uint8_t> codes, std::span<float> out,
                      ScaleReading reading = ScaleReading::strict);

// The same for whole rows: [rows, columns] values, [rows, ceil(columns / 32)] scales and 32 bytes
// of codes for each scale. The errors are about sizes only.
Result<Done> quantize_mxfp8_rows(Mxfp8Rule rule, Rows<const float> x,
                                 std::span<std::uint8_t> scales, std::span<std::uint8_t> codes);
Result<Done> dequantize_mxfp8_rows(std::span<const std::uint8_t> scales,
                                   std::span<const std::uint8_t> codes, Rows<float> out,
                                   ScaleReading reading = ScaleReading::strict);

}  // namespace fp4moe::formats
