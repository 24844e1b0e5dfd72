// The driver of the bulk codecs for every instruction set: chunks and their tails, blocks that the
// portable reference does again, element types, tables of results. A file of an instruction set
// includes this and brings the code that computes. In an unnamed namespace on purpose: each file
// has functions of its own, compiled with its flags.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces)

[[gnu::always_inline]] inline float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

struct Mxfp4Blocks {
  static constexpr std::size_t kValues = 32, kCodes = 16;
  static constexpr auto kReference = portable::quantize_mxfp4;
};
struct Nvfp4Blocks {
  static constexpr std::size_t kValues = 16, kCodes = 8;
  static constexpr auto kReference = portable::quantize_nvfp4;
};
struct Mxfp8Blocks {
  static constexpr std::size_t kValues = 32, kCodes = 32;
  static constexpr auto kReference = portable::quantize_mxfp8;
};

template <class Blocks, class Lanes>
[[gnu::always_inline]] inline QuantizeBlocks part_of(const QuantizeBlocks& work, std::size_t first,
                                                     std::size_t blocks) {
  constexpr std::size_t kStride = Blocks::kValues * Lanes::kBytes;
  QuantizeBlocks part = work;
  part.input = static_cast<const std::uint8_t*>(work.input) + first * kStride;
  part.codes += first * Blocks::kCodes;
  part.scales += first;
  part.blocks = blocks;
  return part;
}

// quantize_chunk(part) gets at most kPassBlocks blocks, whole groups of kGroup; what is left at the
// end goes to the reference.
template <class Blocks, class Lanes, std::size_t kGroup = 1, class QuantizeChunk>
[[gnu::always_inline]] inline void quantize_chunks(const QuantizeBlocks& work,
                                                   const QuantizeChunk& quantize_chunk) {
  for (std::size_t done = 0; done != work.blocks;) {
    const std::size_t left = work.blocks - done, fits = left < kPassBlocks ? left : kPassBlocks;
    const std::size_t whole = fits / kGroup * kGroup;
    if (whole == 0) return Blocks::kReference(part_of<Blocks, Lanes>(work, done, left));
    quantize_chunk(part_of<Blocks, Lanes>(work, done, whole));
    done += whole;
  }
}

// The largest magnitude. largest16(from, groups) and largest32 give the bits of the largest one in
// groups of 64 bytes; the reference takes the rest. NaN gets one form.
template <class Largest16, class Largest32>
inline float drive_max_magnitude(const MaxMagnitude& work, const Largest16& largest16,
                                 const Largest32& largest32) {
  const std::size_t per_group = work.element == Element::f32 ? 16 : 32;
  const std::size_t groups = work.count / per_group;
  const auto* input = static_cast<const std::uint8_t*>(work.input);
  MaxMagnitude rest = work;
  rest.input = input + 64 * groups;
  rest.count = work.count - groups * per_group;
  const auto rest_bits = __builtin_bit_cast(std::uint32_t, portable::max_magnitude(rest));
  std::uint32_t bits = 0;
  if (work.element == Element::f32) {
    bits = largest32(input, groups);
  } else if (work.element == Element::bf16) {
    bits = largest16(input, groups) << 16;
  } else {
    const auto code = static_cast<std::uint16_t>(largest16(input, groups));
    bits = __builtin_bit_cast(
        std::uint32_t,
        portable::max_magnitude({.input = &code, .element = Element::f16, .count = 1}));
  }
  const std::uint32_t largest = bits > rest_bits ? bits : rest_bits;
  return float_of(largest > 0x7F800000 ? 0x7FC00000 : largest);
}

// Quantizes the marked blocks of a chunk again, by the reference.
template <class Blocks, class Lanes>
inline void redo_marked(const QuantizeBlocks& work, const std::uint8_t* is_unusual) {
  for (std::size_t i = 0; i < work.blocks; ++i)
    if (is_unusual[i] != 0) Blocks::kReference(part_of<Blocks, Lanes>(work, i, 1));
}
template <class Blocks, class Lanes>
inline void redo_marked(const QuantizeBlocks& work, std::uint64_t unusual) {
  for (; unusual != 0; unusual &= unusual - 1)
    Blocks::kReference(
        part_of<Blocks, Lanes>(work, static_cast<std::size_t>(__builtin_ctzll(unusual)), 1));
}

// Calls run(lanes) with the lanes of the input's element type.
template <class Bf16Lanes, class F16Lanes, class F32Lanes, class Run>
[[gnu::always_inline]] inline void with_lanes(Element element, const Run& run) {
  switch (element) {
    case Element::bf16:
      return run(Bf16Lanes{});
    case Element::f16:
      return run(F16Lanes{});
    case Element::f32:
      return run(F32Lanes{});
  }
}

// A global scale that vector kernels know: positive and finite.
[[gnu::always_inline]] inline bool is_usual(const QuantizeBlocks& work) {
  return is_reference(work.nvfp4_rule) && work.global_scale > 0.0f &&
         work.global_scale <= __FLT_MAX__;
}

// The sixteen results of each scale met so far, made once per call by the reference:
// Isa::kMakeTable is portable::e2m1_results or e2m1_planes.
template <class Isa, std::size_t kBytes>
class E2m1Tables16 {
 public:
  E2m1Tables16(const DequantizeBlocks& work, portable::Dequantize reference)
      : work_(work), reference_(reference) {}

  [[gnu::always_inline]] const std::uint8_t* of(std::uint8_t scale) {
    if (!known_[scale]) Isa::kMakeTable(work_, reference_, scale, tables_[scale]);
    known_[scale] = true;
    return tables_[scale];
  }

 private:
  const DequantizeBlocks& work_;
  portable::Dequantize reference_;
  bool known_[256] = {};
  alignas(64) std::uint8_t tables_[256][16 * kBytes];
};

// Isa::expand<kBytes>(first, second, packed, to): 32 codes, the first sixteen with one table and
// the others with another.
template <class Isa, std::size_t kBytes>
void expand_mxfp4(const DequantizeBlocks& work) {
  E2m1Tables16<Isa, kBytes> tables(work, portable::dequantize_mxfp4);
  auto* output = static_cast<std::uint8_t*>(work.output);
  for (std::size_t i = 0; i < work.blocks; ++i) {
    const std::uint8_t* table = tables.of(work.scales[i]);
    Isa::template expand<kBytes>(table, table, work.codes + 16 * i, output + 32 * kBytes * i);
  }
}

template <class Isa, std::size_t kBytes>
void expand_nvfp4(const DequantizeBlocks& work) {
  E2m1Tables16<Isa, kBytes> tables(work, portable::dequantize_nvfp4);
  auto* output = static_cast<std::uint8_t*>(work.output);
  std::size_t i = 0;
  for (; i + 2 <= work.blocks; i += 2) {
    const std::uint8_t* first = tables.of(work.scales[i]);
    const std::uint8_t* second = tables.of(work.scales[i + 1]);
    Isa::template expand<kBytes>(first, second, work.codes + 8 * i, output + 16 * kBytes * i);
  }
  if (i == work.blocks) return;
  DequantizeBlocks last = work;
  last.codes += 8 * i;
  last.scales += i;
  last.blocks = 1;
  last.output = output + 16 * kBytes * i;
  portable::dequantize_nvfp4(last);
}

template <class Isa>
inline void expand_mxfp4(const DequantizeBlocks& work) {
  return work.element == Element::f32 ? expand_mxfp4<Isa, 4>(work) : expand_mxfp4<Isa, 2>(work);
}
template <class Isa>
inline void expand_nvfp4(const DequantizeBlocks& work) {
  return work.element == Element::f32 ? expand_nvfp4<Isa, 4>(work) : expand_nvfp4<Isa, 2>(work);
}

// MXFP8 by way of f16: E4M3FN's fields read as the value times 2^-8, and the factor goes into the
// scale. From scale 3 on every result is exact in bf16 even where it is subnormal; up to 246 none
// overflows and the scale times 2^8 is a float. Other blocks, and those with NaN, go to the
// reference.
template <class Isa, class Stored>
void decode_mxfp8(const DequantizeBlocks& work) {
  constexpr std::uint8_t kFirstPlainScale = 3, kLastPlainScale = 246;
  auto* output = static_cast<std::uint8_t*>(work.output);
  for (std::size_t i = 0; i < work.blocks; ++i, output += 32 * sizeof(Stored)) {
    const auto codes = Isa::load(work.codes + 32 * i);
    const std::uint8_t scale = work.scales[i];
    if (scale < kFirstPlainScale || scale > kLastPlainScale || Isa::has_nan(codes)) {
      DequantizeBlocks one = work;
      one.codes += 32 * i;
      one.scales += i;
      one.blocks = 1;
      one.output = output;
      portable::dequantize_mxfp8(one);
      continue;
    }
    Isa::store(codes, (std::uint32_t{scale} + 8) << 23, output, Stored{});
  }
}

template <class Isa>
inline void decode_mxfp8(const DequantizeBlocks& work) {
  switch (work.element) {
    case Element::bf16:
      return decode_mxfp8<Isa, std::uint16_t>(work);
    case Element::f16:
      return portable::dequantize_mxfp8(work);
    case Element::f32:
      return decode_mxfp8<Isa, float>(work);
  }
}

}  // namespace
}  // namespace fp4moe::kernels::cpu
