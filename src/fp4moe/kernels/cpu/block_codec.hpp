// The contract of the bulk codecs: whole blocks in, whole blocks out, from and to plain memory.
// Included by files compiled for one instruction set: plain structs only, no inline functions.
//
// Every implementation gives the bytes that the functions of formats/ give, for every input: NaN,
// infinities, subnormals, -0 and ties included. Pointers need no alignment; codes are the canonical
// ones (two to a byte, the even element in the low nibble).
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp4moe::formats {
enum class Mxfp4Rule : std::uint8_t;
enum class Mxfp8Rule : std::uint8_t;
enum class Nvfp4Rule : std::uint8_t;
}  // namespace fp4moe::formats

namespace fp4moe::kernels::cpu {

enum class Element : std::uint8_t { bf16, f16, f32 };

// Blocks are quantized in passes over so many, which stay in the first-level cache.
inline constexpr std::size_t kPassBlocks = 64;

// MXFP4: 32 values, 16 bytes of codes. NVFP4: 16 values, 8 bytes. MXFP8: 32 values, 32 bytes.
// Each block has one scale byte.
struct QuantizeBlocks {
  const void* input = nullptr;
  Element element = Element::bf16;
  std::size_t blocks = 0;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  formats::Mxfp4Rule mxfp4_rule{};  // each operation reads its own rule
  formats::Mxfp8Rule mxfp8_rule{};
  formats::Nvfp4Rule nvfp4_rule{};
  float global_scale = 1.0f;  // NVFP4: g
};

// How the global scale of an NVFP4 tensor is applied: value = (e2m1 * scale) / divisor, or
// e2m1 * (scale * multiplier).
enum class GlobalScaleUse : std::uint8_t { divisor, multiplier };

// Scales are read strictly: E8M0 0 is 2^-127 and 255 is NaN. Results beyond the largest finite
// value of the output become that value for the MX formats; NVFP4 results overflow to infinity.
struct DequantizeBlocks {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::size_t blocks = 0;
  void* output = nullptr;
  Element element = Element::bf16;
  GlobalScaleUse global_kind = GlobalScaleUse::divisor;  // NVFP4 only
  float global_scale = 1.0f;
};

// max |x| over `count` values; NaN when any value is NaN; 0 for none.
struct MaxMagnitude {
  const void* input = nullptr;
  Element element = Element::bf16;
  std::size_t count = 0;
};

// Canonical blocks against the blocks of a GGUF file, which are packed without padding:
//   MXFP4   17 bytes: E8M0, then byte j = element j (low) and j + 16 (high)
//   NVFP4   36 bytes for four blocks: 4 scales, then per block byte j = element j and j + 8
// Bits move, nothing is rounded. Packing drops the sign bit of NVFP4 scales, because GGUF's have
// none; unpacking hands on what is there, so that readers can refuse it. `blocks` counts canonical
// blocks; for NVFP4 it is a multiple of 4.
struct PackGguf {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::size_t blocks = 0;
  std::uint8_t* gguf = nullptr;
};

struct UnpackGguf {
  const std::uint8_t* gguf = nullptr;
  std::size_t blocks = 0;
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
};

// How an MXFP4 rule finds its scale code, as numbers a vector kernel can use:
//   max(0, ((bits(amax / divisor) + bits_added) >> 23) - exponent_lowered)
struct Mxfp4Recipe {
  float divisor;
  std::uint32_t bits_added;
  std::uint32_t exponent_lowered;
  bool ties_away;
};

// Null for rules that do not have this form: their blocks take the portable path.
const Mxfp4Recipe* mxfp4_recipe(formats::Mxfp4Rule rule) noexcept;

// True for the rule that vector kernels implement.
bool is_ceil448(formats::Mxfp8Rule rule) noexcept;
bool is_reference(formats::Nvfp4Rule rule) noexcept;

}  // namespace fp4moe::kernels::cpu
