// Nibble moves between canonical blocks and those of GGUF files, for 128 elements at a time. The
// idea is in neon/gguf.cpp: with A and B the bytes of a block's halves,
//
//   even = A.low | B.low << 4      odd = A.high | B.high << 4
#include <immintrin.h>

#include "fp4moe/kernels/cpu/avx2/block_codec.hpp"
#include "fp4moe/kernels/cpu/avx2/lanes.hpp"
#include "fp4moe/kernels/cpu/block_codec.hpp"
#include "fp4moe/kernels/cpu/portable/block_codec.hpp"

namespace fp4moe::kernels::cpu::avx2 {
namespace {

struct Pair {
  __m256i a, b;
};

[[gnu::always_inline]] inline Pair exchange(Pair p) {
  const __m256i low = _mm256_set1_epi8(0x0F);
  const __m256i even =
      _mm256_or_si256(_mm256_and_si256(p.a, low), _mm256_slli_epi16(_mm256_and_si256(p.b, low), 4));
  const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(p.a, 4), low),
                                      _mm256_andnot_si256(low, p.b));
  return {even, odd};
}

[[gnu::always_inline]] inline Pair interleave_bytes(Pair p) {
  return {_mm256_unpacklo_epi8(p.a, p.b), _mm256_unpackhi_epi8(p.a, p.b)};
}

// Sorts bytes: the even ones of each sixteen of both vectors to the first, the odd ones to the
// second.
[[gnu::always_inline]] inline Pair separate_bytes(Pair p) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m256i a = _mm256_shuffle_epi8(p.a, order);
  const __m256i b = _mm256_shuffle_epi8(p.b, order);
  return {_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)};
}

[[gnu::always_inline]] inline Pair transpose_u64(Pair p) {
  return {_mm256_unpacklo_epi64(p.a, p.b), _mm256_unpackhi_epi64(p.a, p.b)};
}

[[gnu::always_inline]] inline Pair separate_u32(Pair p) {
  const __m256 a = _mm256_castsi256_ps(p.a);
  const __m256 b = _mm256_castsi256_ps(p.b);
  return {_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD))};
}

[[gnu::always_inline]] inline Pair interleave_u32(Pair p) {
  return {_mm256_unpacklo_epi32(p.a, p.b), _mm256_unpackhi_epi32(p.a, p.b)};
}

[[gnu::always_inline]] inline void pack_scales_of_four(std::uint8_t* to, const std::uint8_t* from) {
  std::uint32_t scales = 0;
  __builtin_memcpy(&scales, from, sizeof scales);
  scales &= 0x7F7F7F7Fu;
  __builtin_memcpy(to, &scales, sizeof scales);
}

[[gnu::always_inline]] inline __m256i load_two(const std::uint8_t* first,
                                               const std::uint8_t* second) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(first)), load128(second), 1);
}

[[gnu::always_inline]] inline void pack_four_mxfp4(const PackGguf& work, std::size_t i) {
  const std::uint8_t* from = work.codes + 16 * i;
  const Pair canonical{load256(from), load256(from + 32)};
  const Pair moved = interleave_bytes(exchange(transpose_u64(canonical)));
  std::uint8_t* to = work.gguf + 17 * i;
  for (std::size_t j = 0; j < 4; ++j) to[17 * j] = work.scales[i + j];
  store128(to + 1, _mm256_castsi256_si128(moved.a));
  store128(to + 18, _mm256_extracti128_si256(moved.a, 1));
  store128(to + 35, _mm256_castsi256_si128(moved.b));
  store128(to + 52, _mm256_extracti128_si256(moved.b, 1));
}

[[gnu::always_inline]] inline void unpack_four_mxfp4(const UnpackGguf& work, std::size_t i) {
  const std::uint8_t* from = work.gguf + 17 * i;
  const Pair packed{load_two(from + 1, from + 18), load_two(from + 35, from + 52)};
  const Pair canonical = transpose_u64(exchange(separate_bytes(packed)));
  for (std::size_t j = 0; j < 4; ++j) work.scales[i + j] = from[17 * j];
  store256(work.codes + 16 * i, canonical.a);
  store256(work.codes + 16 * i + 32, canonical.b);
}

[[gnu::always_inline]] inline void pack_eight_nvfp4(const PackGguf& work, std::size_t i) {
  const std::uint8_t* from = work.codes + 8 * i;
  const Pair canonical{load256(from), load256(from + 32)};
  const Pair moved = interleave_bytes(exchange(separate_u32(canonical)));
  std::uint8_t* to = work.gguf + 9 * i;
  pack_scales_of_four(to, work.scales + i);
  store256(to + 4, moved.a);
  pack_scales_of_four(to + 36, work.scales + i + 4);
  store256(to + 40, moved.b);
}

[[gnu::always_inline]] inline void unpack_eight_nvfp4(const UnpackGguf& work, std::size_t i) {
  const std::uint8_t* from = work.gguf + 9 * i;
  const Pair packed{load256(from + 4), load256(from + 40)};
  const Pair canonical = interleave_u32(exchange(separate_bytes(packed)));
  __builtin_memcpy(work.scales + i, from, 4);
  __builtin_memcpy(work.scales + i + 4, from + 36, 4);
  store256(work.codes + 8 * i, canonical.a);
  store256(work.codes + 8 * i + 32, canonical.b);
}

// Steps of `Step` blocks; the last one overlaps blocks that are done, so that a row's end needs no
// slow path. False when there are too few blocks for one step.
template <std::size_t Step, class Work, class Move>
[[gnu::always_inline]] inline bool in_steps(const Work& work, Move move) {
  if (work.blocks < Step) return false;
  for (std::size_t i = 0; i + Step <= work.blocks; i += Step) move(work, i);
  if (work.blocks % Step != 0) move(work, work.blocks - Step);
  return true;
}

}  // namespace

void pack_gguf_mxfp4(const PackGguf& work) noexcept {
  if (!in_steps<4>(work, pack_four_mxfp4)) portable::pack_gguf_mxfp4(work);
}

void unpack_gguf_mxfp4(const UnpackGguf& work) noexcept {
  if (!in_steps<4>(work, unpack_four_mxfp4)) portable::unpack_gguf_mxfp4(work);
}

void pack_gguf_nvfp4(const PackGguf& work) noexcept {
  if (!in_steps<8>(work, pack_eight_nvfp4)) portable::pack_gguf_nvfp4(work);
}

void unpack_gguf_nvfp4(const UnpackGguf& work) noexcept {
  if (!in_steps<8>(work, unpack_eight_nvfp4)) portable::unpack_gguf_nvfp4(work);
}

}  // namespace fp4moe::kernels::cpu::avx2
