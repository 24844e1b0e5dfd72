// MXFP4: blocks of 32 E2M1 codes that share one E8M0 scale.
//
//   block   | scale: 1 byte | codes: 16 bytes, two per byte, low nibble first |
//   value   = e2m1(code) * 2^(scale - 127)
//
// How a block's scale is chosen and its elements are rounded differs between the projects that make
// such blocks. Each way is a row below; the arithmetic is float32, every operation rounded once.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/formats/block.hpp"

namespace fp4moe::formats {

inline constexpr std::size_t kMxfp4Block = 32;
inline constexpr std::size_t kMxfp4Bytes = 16;
inline constexpr BlockShape kMxfp4Shape{.elements = kMxfp4Block, .code_bytes = kMxfp4Bytes};

enum class Mxfp4Rule : std::uint8_t {
  floor4_rne,
  ceil6_rne,
  ceil6_away,
  floor6_away,
  even_rne,
  even_triton_rne,
  flashinfer_rne,
  llama_cpp,
};

struct Mxfp4RuleRow {
  Mxfp4Rule rule;
  std::string_view name;     // as golden files and the command line spell it
  std::string_view used_by;  // where it was read
};

// clang-format off
inline constexpr std::array<Mxfp4RuleRow, 8> kMxfp4Rules{{
    {Mxfp4Rule::floor4_rne,      "mxfp4.floor4.rne",      "OCP MX 1.0; triton_kernels >= 3.6 ROUND_DOWN; AITER RoundDown"},
    {Mxfp4Rule::ceil6_rne,       "mxfp4.ceil6.rne",       "triton_kernels >= 3.6 ROUND_UP, its default; AITER RoundUp, its default"},
    {Mxfp4Rule::ceil6_away,      "mxfp4.ceil6.away",      "triton_kernels 3.5 ROUND_UP"},
    {Mxfp4Rule::floor6_away,     "mxfp4.floor6.away",     "triton_kernels 3.5 ROUND_DOWN"},
    {Mxfp4Rule::even_rne,        "mxfp4.even.rne",        "Quark 'even'; vLLM's CUDA quantization; AITER dynamic_mxfp4_quant"},
    {Mxfp4Rule::even_triton_rne, "mxfp4.even_triton.rne", "vLLM's Triton quantization: the top of the range becomes 254"},
    {Mxfp4Rule::flashinfer_rne,  "mxfp4.flashinfer.rne",  "FlashInfer mxfp4_quantize"},
    {Mxfp4Rule::llama_cpp,       "mxfp4.llama_cpp",       "llama.cpp: least absolute error, the first code on a tie"},
}};
// clang-format on

constexpr std::string_view name(Mxfp4Rule rule) {
  return kMxfp4Rules[static_cast<std::size_t>(rule)].name;
}
std::optional<Mxfp4Rule> mxfp4_rule_from_name(std::string_view name);

// How the ends of the scale's range are read: strictly, 0 is 2^-127 and 255 NaN; by shifting the
// byte into a float's exponent, as many kernels do, 0 is 0.0 and 255 infinity.
enum class ScaleReading : std::uint8_t { strict, shifted };

// The scale code of a block with this maximum of magnitudes.
std::uint8_t mxfp4_scale(Mxfp4Rule rule, float amax);

// Quantizes one block of at most 32 values into exactly 16 bytes. An all-zero block has scale 0. A
// block with infinity has scale 255 and its finite elements become 0 (`even`: 253, `even_triton`,
// `flashinfer` and `llama_cpp`: 254). NaN in a block is not specified by any rule's users: here the
// formulas run on with amax = NaN (`llama_cpp` passes over it).
void quantize_mxfp4(Mxfp4Rule rule, std::span<const float> x, std::uint8_t& scale,
                    std::span<std::uint8_t> codes);

// The first out.size() values of a block, at most 32. What exceeds float32 becomes its largest
// finite value, as triton_kernels does since 3.6.
void dequantize_mxfp4(std::uint8_t scale, std::span<const std::uint8_t> codes, std::span<float> out,
                      ScaleReading reading = ScaleReading::strict);

// The same for whole rows: [rows, columns] values, [rows, ceil(columns / 32)] scales and 16 bytes
// of codes for each scale. The errors are about sizes only.
Result<Done> quantize_mxfp4_rows(Mxfp4Rule rule, Rows<const float> x,
                                 std::span<std::uint8_t> scales, std::span<std::uint8_t> codes);
Result<Done> dequantize_mxfp4_rows(std::span<const std::uint8_t> scales,
                                   std::span<const std::uint8_t> codes, Rows<float> out,
                                   ScaleReading reading = ScaleReading::strict);

}  // namespace fp4moe::formats
