// Activations quantized to E4M3 for grouped_gemm_fp8: a lane has 32 neighboring columns of a row.
// It writes them in the order of its fragments (see grouped_gemm_fp8/dequantize_e4m3.cuh). Codes
// and scales are those of quantize.cuh.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kLaneColumns = 32, kLaneVecs = kLaneColumns / kVecColumns;
inline constexpr std::uint32_t kWarpColumns = 32 * kLaneColumns;
inline constexpr std::uint32_t kScaleLanes = 128 / kLaneColumns;  // that share a block scale

// The columns of a lane in BF16, as they are in memory.
struct LaneWords {
  uint4 vecs[kLaneVecs];

  // Magnitudes are compared as integers: NaN is the largest. As bits of a float32 number.
  __device__ std::uint32_t max_abs_bits() const {
    std::uint32_t pairs = 0;
#pragma unroll
    for (const uint4& vec : vecs)
      for (const std::uint32_t word : {vec.x, vec.y, vec.z, vec.w})
        pairs = __vmaxu2(pairs, word & 0x7FFF7FFFu);
    return max(pairs << 16, pairs & 0xFFFF0000u);
  }
  __device__ float operator[](std::uint32_t column) const {
    const uint4& vec = vecs[column / kVecColumns];
    const std::uint32_t at = column % kVecColumns / 2;
    const std::uint32_t word = at == 0 ? vec.x : at == 1 ? vec.y : at == 2 ? vec.z : vec.w;
    return column % 2 == 0 ? low_bf16(word) : high_bf16(word);
  }
};
// The same in float32.
struct LaneValues {
  Vec8 vecs[kLaneVecs];

  __device__ std::uint32_t max_abs_bits() const {
    std::uint32_t result = 0;
#pragma unroll
    for (const Vec8& vec : vecs) result = max(result, sm90::max_abs_bits(vec));
    return result;
  }
  __device__ float operator[](std::uint32_t column) const {
    return vecs[column / kVecColumns].v[column % kVecColumns];
  }
};

// Rounded quotients by one divisor, equal to __fdiv_rn: a reciprocal, and one correction by the exact
// remainder. Very small and very large divisors are divided by.
class Quotients {
 public:
  __device__ explicit Quotients(float divisor)
      : divisor_(divisor),
        reciprocal_(__frcp_rn(divisor)),
        is_usual_(fabsf(divisor) > 0x1p-80f && fabsf(divisor) < 0x1p80f) {}

  __device__ float of(float value) const {
    if (!is_usual_) return __fdiv_rn(value, divisor_);
    const float near = __fmul_rn(value, reciprocal_);
    return __fmaf_rn(__fmaf_rn(-near, divisor_, value), reciprocal_, near);
  }

 private:
  float divisor_, reciprocal_;
  bool is_usual_;
};

// The two 16-byte chunks of a lane: even and odd columns.
struct LaneCodes {
  uint4 even, odd;
};
template <class Lane>
__device__ inline LaneCodes to_e4m3(const Lane& values, float scale) {
  const Quotients by(scale);
  std::uint32_t words[8];
#pragma unroll
  for (std::uint32_t w = 0; w < 8; ++w) {
    const std::uint32_t column = w % 4 * 2 + w / 4;
    words[w] = cvt_e4m3x2(by.of(values[column]), by.of(values[column + 8])) |
               cvt_e4m3x2(by.of(values[column + 16]), by.of(values[column + 24])) << 16;
  }
  return {{words[0], words[1], words[2], words[3]}, {words[4], words[5], words[6], words[7]}};
}

// Quantizes a row. All lanes of a warp call.
//   segments     columns that the warp holds at once, in kWarpColumns; 0: any, loaded twice where
//                the row has one scale
//   load(group)  32 columns; those behind the last are 0
//   store(group, codes, scale of the lane's columns)
// Returns the scale of the row, if it has one.
template <Quantization kind, int segments, class Load, class Store>
__device__ inline float quantize_row(std::uint32_t groups, const Load& load, const Store& store) {
  const std::uint32_t lane = threadIdx.x % 32;
  float scale = 1.0f;
  const auto set_scale = [&](std::uint32_t largest) {
    scale = block_scale(kind, amax_of(largest), {}).before;
  };
  const auto quantize = [&](std::uint32_t group, const auto& values) {
    if constexpr (kind == Quantization::fp8_block128) {
      std::uint32_t largest = values.max_abs_bits();
#pragma unroll
      for (std::uint32_t step = 1; step < kScaleLanes; step *= 2)
        largest = max(largest, __shfl_xor_sync(kFullWarp, largest, static_cast<int>(step)));
      set_scale(largest);
    }
    store(group, to_e4m3(values, scale), scale);
  };
  if constexpr (segments != 0) {
    decltype(load(0u)) values[segments];
#pragma unroll
    for (int s = 0; s < segments; ++s) values[s] = load(s * 32 + lane);
    if constexpr (kind == Quantization::fp8_token) {
      std::uint32_t largest = 0;
#pragma unroll
      for (const auto& value : values) largest = max(largest, value.max_abs_bits());
      set_scale(__reduce_max_sync(kFullWarp, largest));
    }
#pragma unroll
    for (int s = 0; s < segments; ++s)
      if (s * 32 < groups) quantize(s * 32 + lane, values[s]);
  } else {
    if constexpr (kind == Quantization::fp8_token) {
      std::uint32_t largest = 0;
      for (std::uint32_t group = lane; group < groups; group += 32)
        largest = max(largest, load(group).max_abs_bits());
      set_scale(__reduce_max_sync(kFullWarp, largest));
    }
    for (std::uint32_t first = 0; first < groups; first += 32)
      quantize(first + lane, load(first + lane));
  }
  return scale;
}
inline constexpr int kMaxSegments = 3;  // that registers hold

// Where a row is: in its token tile, and its scales.
struct E4m3RowAddress {
  TileRowAddress codes{};
  std::uint32_t to_scales = 0;  // bytes from the row's first chunk to its first block scale

  __device__ static E4m3RowAddress of(const TokenTile& tile, std::uint32_t row,
                                      std::uint32_t k_blocks, bool has_block_scales) {
    const std::uint32_t r = row - tile.first_row;
    const std::uint32_t row_bytes = grouped_gemm_fp8::token_row_bytes(has_block_scales);
    return {{std::uint64_t{tile.first_row} * grouped_gemm_fp8::token_blocks(k_blocks) * row_bytes +
                 r * kBlockRowBytes,
             tile.rows * row_bytes, r % 8},
            (tile.rows - r) * kBlockRowBytes + r * 4};
  }
  // Group of 32 columns.
  __device__ void store(std::uint8_t* tiles, std::uint32_t group, const LaneCodes& codes_of) const {
    st_global_no_allocate_16(tiles + codes.of(group * 2), codes_of.even);
    st_global_no_allocate_16(tiles + codes.of(group * 2 + 1), codes_of.odd);
  }
  __device__ void store_scale(std::uint8_t* tiles, std::uint32_t group, float scale) const {
    if (group % kScaleLanes != 0) return;
    *reinterpret_cast<float*>(tiles + codes.row + to_scales +
                              std::uint64_t{group / kScaleLanes} * codes.k_block_stride) = scale;
  }
};

}  // namespace fp4moe::kernels::cuda::sm90
