// Right operands of tiles: a chunk of 16 MXFP4 rows, decoded to bytes, and the scales that go with
// it.
//
// A chunk is one operand where its two scales can be folded for all rows (gemm.hpp): the lookup
// applies the shift, too, because its table holds the weights four times. Otherwise it is two
// operands, each with zeros for the other block.
#pragma once
#include "fp4moe/kernels/cpu/avx512_vnni/gemm.hpp"

namespace fp4moe::kernels::cpu::amx {
namespace {

inline constexpr std::size_t kOperandBytes = 1024, kMaxParts = 2;

struct Operands {
  alignas(64) std::int8_t weights[kMaxParts][kOperandBytes];
  alignas(64) float scales[kMaxParts][kX86Group];
};

// A chunk of the matrix.
struct ChunkAt {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::size_t blocks = 0;  // from here on
};
[[gnu::always_inline]] inline ChunkAt chunk_at(const GemmWeights& weights, std::size_t group,
                                               std::size_t chunk) {
  const std::size_t block = 2 * chunk;
  return {weights.codes + (group * weights.blocks + block) * kX86TileBytes,
          weights.scales + (group * weights.scale_columns + block) * kX86Group,
          weights.blocks - block};
}

// Doubled weights, shifted by 0 ... 3 in turn.
[[gnu::always_inline]] inline __m512i shifted_table() {
  const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  const __m128i twice = _mm_add_epi8(doubled, doubled), fourfold = _mm_add_epi8(twice, twice);
  __m512i table = _mm512_castsi128_si512(doubled);
  table = _mm512_inserti32x4(table, twice, 1);
  table = _mm512_inserti32x4(table, fourfold, 2);
  return _mm512_inserti32x4(table, _mm_add_epi8(fourfold, fourfold), 3);
}

// A block of 16 rows; `shifts` holds 16 times the shift of each byte's row.
[[gnu::always_inline]] inline void decode_block(const std::uint8_t* codes, __m512i shifts,
                                                std::int8_t* operand) {
  constexpr int kAndOr = 0xEA;  // (a & b) | c
  const __m512i table = shifted_table(), nibble = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kX86Block / 8; ++i) {
    const __m512i bytes = load512(codes + 64 * i);
    const __m512i low = _mm512_ternarylogic_epi32(bytes, nibble, shifts, kAndOr);
    const __m512i high =
        _mm512_ternarylogic_epi32(_mm512_srli_epi16(bytes, 4), nibble, shifts, kAndOr);
    _mm512_store_si512(operand + 128 * i, _mm512_permutexvar_epi8(low, table));
    _mm512_store_si512(operand + 128 * i + 64, _mm512_permutexvar_epi8(high, table));
  }
}

[[gnu::always_inline]] inline void clear_half(std::int8_t* operand) {
  for (std::size_t i = 0; i < kOperandBytes / 2; i += 64)
    _mm512_store_si512(operand + i, _mm512_setzero_si512());
}

// 16 times a byte of each row, four times.
[[gnu::always_inline]] inline __m512i shifts_of(__m128i bytes) {
  const __m128i lowest = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  return _mm512_shuffle_epi8(_mm512_cvtepu8_epi32(_mm_slli_epi16(bytes, 4)),
                             _mm512_broadcast_i32x4(lowest));
}

// Operands of the chunk: 1 or 2.
[[gnu::always_inline]] inline std::size_t parts_of(const ChunkAt& at) {
  if (at.blocks < 2) return 1;
  const __m128i first = load_scales(at.scales), second = load_scales(at.scales + kX86Group);
  const __m128i min = _mm_min_epu8(first, second), max = _mm_max_epu8(first, second);
  const __mmask16 close = _mm_cmple_epu8_mask(_mm_sub_epi8(max, min), _mm_set1_epi8(kFoldSteps));
  const __mmask16 normal =
      _mm_cmple_epu8_mask(_mm_sub_epi8(min, _mm_set1_epi8(kFoldFrom)),
                          _mm_set1_epi8(static_cast<char>(kFoldTo - kFoldFrom)));
  // Rows without scales, which pad a matrix, fold as well.
  const __mmask16 none = _mm_testn_epi8_mask(max, max);
  return ((close & normal) | none) == 0xFFFF ? 1 : 2;
}

[[gnu::always_inline]] inline void decode_operands(const ChunkAt& at, std::size_t parts,
                                                   Operands& result) {
  const __m512i unshifted = _mm512_setzero_si512();
  const __m128i first = load_scales(at.scales);
  std::int8_t* operand = result.weights[0];
  if (at.blocks < 2) {
    decode_block(at.codes, unshifted, operand);
    clear_half(operand + kOperandBytes / 2);
    return _mm512_store_ps(result.scales[0], e8m0_scales(first));
  }
  const __m128i second = load_scales(at.scales + kX86Group);
  if (parts == 1) {
    const __m128i min = _mm_min_epu8(first, second);
    decode_block(at.codes, shifts_of(_mm_sub_epi8(first, min)), operand);
    decode_block(at.codes + kX86TileBytes, shifts_of(_mm_sub_epi8(second, min)),
                 operand + kOperandBytes / 2);
    return _mm512_store_ps(result.scales[0], e8m0_scales(min));
  }
  decode_block(at.codes, unshifted, operand);
  clear_half(operand + kOperandBytes / 2);
  clear_half(result.weights[1]);
  decode_block(at.codes + kX86TileBytes, unshifted, result.weights[1] + kOperandBytes / 2);
  _mm512_store_ps(result.scales[0], e8m0_scales(first));
  _mm512_store_ps(result.scales[1], e8m0_scales(second));
}

}  // namespace
}  // namespace fp4moe::kernels::cpu::amx
