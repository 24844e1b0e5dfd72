// MXFP4 and NVFP4 to bf16, f16 or f32. As in neon/dequantize_e2m1.cpp, the sixteen results of each
// scale are computed once per call by the portable reference and looked up as bytes.
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

// The planes of each scale met so far.
template <std::size_t kBytes>
class Tables {
 public:
  Tables(const DequantizeBlocks& work, portable::Dequantize reference)
      : work_(work), reference_(reference) {}

  const std::uint8_t* of(std::uint8_t scale) {
    if (!known_[scale]) portable::e2m1_planes(work_, reference_, scale, planes_[scale]);
    known_[scale] = true;
    return planes_[scale];
  }

 private:
  const DequantizeBlocks& work_;
  portable::Dequantize reference_;
  bool known_[256] = {};
  std::uint8_t planes_[256][16 * kBytes];
};

// Byte b of 32 results: the first sixteen codes with one table, the others with another.
[[gnu::always_inline]] inline __m256i look_up(const std::uint8_t* first, const std::uint8_t* second,
                                              std::size_t b, __m256i codes) {
  const __m256i table = _mm256_inserti128_si256(_mm256_castsi128_si256(load128(first + 16 * b)),
                                                load128(second + 16 * b), 1);
  return _mm256_shuffle_epi8(table, codes);
}

[[gnu::always_inline]] inline void store_lanes(std::uint8_t* to, __m256i a, __m256i b, int lane) {
  store256(to, lane == 0 ? _mm256_permute2x128_si256(a, b, 0x20)
                         : _mm256_permute2x128_si256(a, b, 0x31));
}

template <std::size_t kBytes>
[[gnu::always_inline]] inline void expand(const std::uint8_t* first, const std::uint8_t* second,
                                          const std::uint8_t* packed, std::uint8_t* to) {
  const __m128i bytes = load128(packed);
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i even = _mm_and_si128(bytes, mask);
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m256i codes = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_unpacklo_epi8(even, odd)), _mm_unpackhi_epi8(even, odd), 1);
  const __m256i byte0 = look_up(first, second, 0, codes);
  const __m256i byte1 = look_up(first, second, 1, codes);
  const __m256i low_a = _mm256_unpacklo_epi8(byte0, byte1);
  const __m256i low_b = _mm256_unpackhi_epi8(byte0, byte1);
  if constexpr (kBytes == 2) {
    store_lanes(to, low_a, low_b, 0);
    store_lanes(to + 32, low_a, low_b, 1);
  } else {
    const __m256i byte2 = look_up(first, second, 2, codes);
    const __m256i byte3 = look_up(first, second, 3, codes);
    const __m256i high_a = _mm256_unpacklo_epi8(byte2, byte3);
    const __m256i high_b = _mm256_unpackhi_epi8(byte2, byte3);
    const __m256i r0 = _mm256_unpacklo_epi16(low_a, high_a);
    const __m256i r1 = _mm256_unpackhi_epi16(low_a, high_a);
    const __m256i r2 = _mm256_unpacklo_epi16(low_b, high_b);
    const __m256i r3 = _mm256_unpackhi_epi16(low_b, high_b);
    store_lanes(to, r0, r1, 0);
    store_lanes(to + 32, r2, r3, 0);
    store_lanes(to + 64, r0, r1, 1);
    store_lanes(to + 96, r2, r3, 1);
  }
}

template <std::size_t kBytes>
void dequantize_mx(const DequantizeBlocks& work) {
  Tables<kBytes> tables(work, portable::dequantize_mxfp4);
  auto* output = static_cast<std::uint8_t*>(work.output);
  for (std::size_t i = 0; i < work.blocks; ++i) {
    const std::uint8_t* planes = tables.of(work.scales[i]);
    expand<kBytes>(planes, planes, work.codes + 16 * i, output + 32 * kBytes * i);
  }
}

template <std::size_t kBytes>
void dequantize_nv(const DequantizeBlocks& work) {
  Tables<kBytes> tables(work, portable::dequantize_nvfp4);
  auto* output = static_cast<std::uint8_t*>(work.output);
  std::size_t i = 0;
  for (; i + 2 <= work.blocks; i += 2) {
    const std::uint8_t* first = tables.of(work.scales[i]);
    const std::uint8_t* second = tables.of(work.scales[i + 1]);
    expand<kBytes>(first, second, work.codes + 8 * i, output + 16 * kBytes * i);
  }
  if (i == work.blocks) return;
  DequantizeBlocks last = work;
  last.codes = work.codes + 8 * i;
  last.scales = work.scales + i;
  last.blocks = 1;
  last.output = output + 16 * kBytes * i;
  portable::dequantize_nvfp4(last);
}

}  // namespace

void dequantize_mxfp4(const DequantizeBlocks& work) noexcept {
  return work.element == Element::f32 ? dequantize_mx<4>(work) : dequantize_mx<2>(work);
}

void dequantize_nvfp4(const DequantizeBlocks& work) noexcept {
  return work.element == Element::f32 ? dequantize_nv<4>(work) : dequantize_nv<2>(work);
}

}  // namespace fp4moe::kernels::cpu::avx2
