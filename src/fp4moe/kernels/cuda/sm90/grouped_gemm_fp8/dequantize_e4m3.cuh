// MXFP4 weights to E4M3, in registers, on their way to the tensor cores. Exact.
//
// A code times 2^k is an E4M3 number for k from -8 to 6: 15 block scales. So a row of weights needs one
// factor of its own, if its block scales (of blocks that are not all zero) span at most 2^14:
//
//   weight = e4m3 * 2^(largest - 259) * expert's factor     largest: the row's largest stored scale
//   e4m3   = e2m1 * 2^(scale - largest + 6)
//
// The eight magnitudes under one block scale are a table of eight bytes; a byte permute looks up
// four codes at once. Tables of all differences scale - largest are in shared memory.
//
//   2 words, 16 codes ── shifts, masks ──► 2 x 2 selectors of 4 codes, 2 x 2 words of 4 signs
//                     ── byte permutes ──► 4 words of 4 E4M3: the A fragment of 32 columns
//
// The order of columns in a fragment is another one than in memory. Tokens have the same order:
//
//   byte 16 h + 4 j + i of 32 columns = column 8 i + 2 j + h     h 0 to 1; i, j 0 to 3
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"
#include "fp4moe/kernels/cuda/sm90/elements.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm_fp8 {

// The table of scale s in a row whose largest is m begins at entry s - m + 254. Only the last 15
// entries up to s = m are looked up for codes other than 0; in all others the byte of code 0 is read.
inline constexpr std::uint32_t kTableEntries = 509, kLargestEntry = 254;
static_assert(kTableEntries * 8 <= Fp8SharedStorage::kTableBytes);

// E4M3 codes of the magnitudes `first` to `first` + 3 under scale largest - `below`.
__device__ inline std::uint32_t e4m3_table(std::uint32_t first, std::uint32_t below) {
  std::uint32_t result = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t code = first + i;
    const float size = code < 2 ? 0.5f * static_cast<float>(code)
                                : __uint_as_float(126u + code / 2 << 23 | (code & 1) << 22);
    const float value = size * __uint_as_float((127u + kMaxE4m3Exponent - below) << 23);
    result |= cvt_e4m3x2(value, 0.0f) << 8 * i;
  }
  return result;
}
// All threads of the block call.
__device__ inline void make_e4m3_tables(std::uint32_t tables) {
  for (std::uint32_t i = threadIdx.x; i < kTableEntries; i += blockDim.x) {
    const std::uint32_t below = kLargestEntry - i;
    const bool is_used = i <= kLargestEntry && below <= kMaxScaleSpan;
    st_shared_8(tables + i * 8,
                is_used ? uint2{e4m3_table(0, below), e4m3_table(4, below)} : uint2{0, 0});
  }
}

// Where the tables of a lane's two rows would be for scale 0.
struct RowTables {
  std::uint32_t g, g8;  // rows g and g + 8

  __device__ RowTables(std::uint32_t tables, std::uint32_t largest, std::uint32_t largest8)
      : g(tables + (kLargestEntry - largest) * 8), g8(tables + (kLargestEntry - largest8) * 8) {}
};

// The factor of a row's sums.
__device__ inline float row_factor(std::uint32_t largest) {
  return __uint_as_float((127u + largest - 259u) << 23);
}

// 16 codes of rows g and g + 8: `first` and `second` are the words of neighboring k steps. See
// unscaled_fragment for the bits of a word; here p0 to p3 are the codes of its columns 2 j, 2 j + 8,
// 2 j + 1, 2 j + 9.
__device__ inline AFragment dequantize_e4m3(std::uint32_t first, std::uint32_t second,
                                            const uint2& table, const uint2& table8) {
  constexpr std::uint32_t kSelectors = 0x77777777u, kSigns = 0x80808080u, kEven = 0x00FF00FFu;
  // Bytes 0 and 2, and bytes 1 and 3 of both words, alternating.
  const std::uint32_t low = prmt(first, second, 0x6240);
  const std::uint32_t high = prmt(first, second, 0x7351);
  // Row g.
  const std::uint32_t codes = (((first >> 6) & kEven) | ((second << 2) & ~kEven)) & kSelectors;
  const std::uint32_t signs = low << 4;  // p3, p1; those of p0, p2 are in `high`
  // Row g + 8. Some bits are the XOR of two.
  const std::uint32_t codes8 = (low ^ (high & 0x70707070u)) & kSelectors;
  const std::uint32_t signs8 = high << 6;                                // p0, p2
  const std::uint32_t odd8 = (high << 2) ^ ((low >> 14) & 0x00008080u);  // p1, p3
  return {prmt(table.x, table.y, codes) | (prmt(high, signs, 0x7160) & kSigns),
          prmt(table8.x, table8.y, codes8) | (prmt(signs8, odd8, 0x5140) & kSigns),
          prmt(table.x, table.y, codes >> 16) | (prmt(high, signs, 0x5342) & kSigns),
          prmt(table8.x, table8.y, codes8 >> 16) | (prmt(signs8, odd8, 0x7362) & kSigns)};
}

// The part of a weight tile that a lane holds.
struct LaneMxfp4 {
  uint4 words;
  std::uint32_t scales;  // of 32 columns each: rows g, g + 8, g, g + 8

  __device__ static LaneMxfp4 load(std::uint32_t tile, std::uint32_t warp, std::uint32_t lane) {
    return {ld_shared_16(tile + warp * 512 + lane * 16),
            Mxfp4::load(tile + kTileCodeBytes + (warp * 8 + lane / 4) * 4)};
  }
  // 32 columns of the 64.
  template <int half>
  __device__ AFragment dequantize(const RowTables& tables) const {
    const uint2 table = ld_shared_8(tables.g + scale<2 * half>() * 8);
    const uint2 table8 = ld_shared_8(tables.g8 + scale<2 * half + 1>() * 8);
    if constexpr (half == 0)
      return dequantize_e4m3(words.x, words.y, table, table8);
    else
      return dequantize_e4m3(words.z, words.w, table, table8);
  }

 private:
  template <int byte>
  __device__ std::uint32_t scale() const {
    return prmt(scales, 0, 0x4440 | byte);
  }
};

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm_fp8
