// NVFP4: blocks of 16 E2M1 codes that share one E4M3FN scale, and a float32 scale for the tensor.
//
//   block   | scale: 1 byte | codes: 8 bytes, two per byte, low nibble first |
//   value   = e2m1(code) * e4m3fn(scale) / g          g = 448 * 6 / amax(tensor)
//
// Checkpoints store either g or its reciprocal; the functions below say which one they take.
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

inline constexpr std::size_t kNvfp4Block = 16;
inline constexpr std::size_t kNvfp4Bytes = 8;
inline constexpr BlockShape kNvfp4Shape{.elements = kNvfp4Block, .code_bytes = kNvfp4Bytes};

enum class Nvfp4Rule : std::uint8_t { reference, flashinfer_exact, no_global };

struct Nvfp4RuleRow {
  Nvfp4Rule rule;
  std::string_view name;
  std::string_view used_by;
};

// clang-format off
inline constexpr std::array<Nvfp4RuleRow, 3> kNvfp4Rules{{
    {Nvfp4Rule::reference,        "nvfp4.reference",        "vLLM's reference; its and FlashInfer's kernels up to approximate reciprocals"},
    {Nvfp4Rule::flashinfer_exact, "nvfp4.flashinfer_exact", "FlashInfer with fast math disabled"},
    {Nvfp4Rule::no_global,        "nvfp4.no_global",        "triton_kernels of August 2026: scale = E4M3FN(amax / 6)"},
}};
// clang-format on

constexpr std::string_view name(Nvfp4Rule rule) {
  return kNvfp4Rules[static_cast<std::size_t>(rule)].name;
}
std::optional<Nvfp4Rule> nvfp4_rule_from_name(std::string_view name);

// 2688 / amax, the g that gives the block with the tensor's maximum the largest scale. It is kept
// finite for tiny maxima, and is 1 for a maximum of 0, infinity or NaN.
float nvfp4_global_scale(float tensor_amax);

// The scale code of a block with this maximum of magnitudes. `no_global` ignores `global_scale`.
std::uint8_t nvfp4_scale(Nvfp4Rule rule, float global_scale, float amax);

// Quantizes one block of at most 16 values into exactly 8 bytes; `global_scale` is g. When the
// scale rounds to 0 all codes are 0 with the signs of their values.
struct Nvfp4Quantizer {
  Nvfp4Rule rule = Nvfp4Rule::reference;
  float global_scale = 1.0f;
};
void quantize_nvfp4(Nvfp4Quantizer how, std::span<const float> x, std::uint8_t& scale,
                    std::span<std::uint8_t> codes);
inline void quantize_nvfp4(float global_scale, std::span<const float> x, std::uint8_t& scale,
                           std::span<std::uint8_t> codes) {
  quantize_nvfp4({.rule = Nvfp4Rule::reference, .global_scale = global_scale}, x, scale, codes);
}

// The first out.size() values of a block, at most 16: (e2m1 * scale) / divisor, where the divisor
// is the g of quantize_nvfp4 (compressed-tensors stores it).
void dequantize_nvfp4(std::uint8_t scale, float global_divisor, std::span<const std::uint8_t> codes,
                      std::span<float> out);

// e2m1 * (scale * multiplier), where the multiplier is 1 / g (ModelOpt's weight_scale_2).
void dequantize_nvfp4_by_multiplier(std::uint8_t scale, float global_multiplier,
                                    std::span<const std::uint8_t> codes, std::span<float> out);

// The same for whole rows: [rows, columns] values, [rows, ceil(columns / 16)] scales and 8 bytes of
// codes for each scale. The errors are about sizes only.
Result<Done> quantize_nvfp4_rows(Nvfp4Quantizer how, Rows<const float> x,
                                 std::span<std::uint8_t> scales, std::span<std::uint8_t> codes);
Result<Done> dequantize_nvfp4_rows(float global_divisor, std::span<const std::uint8_t> scales,
                                   std::span<const std::uint8_t> codes, Rows<float> out);

}  // namespace fp4moe::formats
