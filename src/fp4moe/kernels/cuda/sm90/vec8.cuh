// Vec8: eight neighboring columns of activations, 16 bytes of BF16, the share of one lane. A warp
// takes a segment of 32 Vec8 at once; blocks of quantized activations are whole lanes of it.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/quantize.cuh"
#include "fp4moe/kernels/cuda/sm90/routing_tables.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kVecColumns = 8;
inline constexpr std::uint32_t kBlockVecs = kBlockK / kVecColumns;  // of a row of a K block

struct Vec8 {
  float v[kVecColumns];
};

__device__ inline Vec8 zero_vec8() { return {{0, 0, 0, 0, 0, 0, 0, 0}}; }

__device__ inline uint4 to_bf16(const Vec8& vec) {
  return {pack_bf16x2(vec.v[0], vec.v[1]), pack_bf16x2(vec.v[2], vec.v[3]),
          pack_bf16x2(vec.v[4], vec.v[5]), pack_bf16x2(vec.v[6], vec.v[7])};
}
// Times a power of two.
__device__ inline Vec8 prescaled(Vec8 vec, float by) {
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns; ++i) vec.v[i] *= by;
  return vec;
}
__device__ inline Vec8 from_bf16(const uint4& words) {
  return {{low_bf16(words.x), high_bf16(words.x), low_bf16(words.y), high_bf16(words.y),
           low_bf16(words.z), high_bf16(words.z), low_bf16(words.w), high_bf16(words.w)}};
}
__device__ inline Vec8 from_f16(const uint4& words) {
  const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
  Vec8 result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    result.v[2 * i] = from_f16(static_cast<std::uint16_t>(w[i]));
    result.v[2 * i + 1] = from_f16(static_cast<std::uint16_t>(w[i] >> 16));
  }
  return result;
}
__device__ inline uint4 to_f16(const Vec8& vec) {
  std::uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    w[i] = to_f16(vec.v[2 * i]) | std::uint32_t{to_f16(vec.v[2 * i + 1])} << 16;
  return {w[0], w[1], w[2], w[3]};
}

__device__ inline bool is_aligned16(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

// Float32, aligned to 16 bytes.
__device__ inline Vec8 load_f32x8(const float* at) {
  const float4 a = reinterpret_cast<const float4*>(at)[0];
  const float4 b = reinterpret_cast<const float4*>(at)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ inline void store_f32x8(float* at, const Vec8& vec) {
  reinterpret_cast<float4*>(at)[0] = {vec.v[0], vec.v[1], vec.v[2], vec.v[3]};
  reinterpret_cast<float4*>(at)[1] = {vec.v[4], vec.v[5], vec.v[6], vec.v[7]};
}

// Eight elements from `first` on. The aligned form needs 16-byte alignment.
__device__ inline Vec8 load_aligned(const void* data, ElementType type, std::uint64_t first) {
  const std::uint8_t* at = static_cast<const std::uint8_t*>(data) + first * bytes_of(type);
  if (type == ElementType::f32) return load_f32x8(reinterpret_cast<const float*>(at));
  const uint4 words = *reinterpret_cast<const uint4*>(at);
  return type == ElementType::bf16 ? from_bf16(words) : from_f16(words);
}
__device__ inline Vec8 load_vec8(const void* data, ElementType type, std::uint64_t first) {
  const std::uint8_t* at = static_cast<const std::uint8_t*>(data) + first * bytes_of(type);
  if (is_aligned16(at)) return load_aligned(data, type, first);
  Vec8 result;
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns; ++i) result.v[i] = load_element(data, type, first + i);
  return result;
}
__device__ inline void store_vec8(void* data, ElementType type, std::uint64_t first,
                                  const Vec8& vec) {
  std::uint8_t* at = static_cast<std::uint8_t*>(data) + first * bytes_of(type);
  if (is_aligned16(at)) {
    if (type == ElementType::f32)
      store_f32x8(reinterpret_cast<float*>(at), vec);
    else
      *reinterpret_cast<uint4*>(at) = type == ElementType::bf16 ? to_bf16(vec) : to_f16(vec);
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns; ++i) store_element(data, type, first + i, vec.v[i]);
}

// The largest magnitude of a Vec8, as ordered bits; and of the lanes that share a quantization
// block, as a number. All lanes of the warp call block_amax.
__device__ inline std::uint32_t max_abs_bits(const Vec8& vec) {
  float half[kVecColumns / 2];
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns / 2; ++i)
    half[i] = max_nan(fabsf(vec.v[i]), fabsf(vec.v[i + kVecColumns / 2]));
  return magnitude_bits(max_nan(max_nan(half[0], half[1]), max_nan(half[2], half[3])));
}
__device__ inline float block_amax(Quantization kind, const Vec8& vec) {
  std::uint32_t largest = max_abs_bits(vec);
  for (std::uint32_t step = 1; step * kVecColumns < quantization_block(kind); step *= 2)
    largest = max(largest, __shfl_xor_sync(kFullWarp, largest, static_cast<int>(step)));
  return amax_of(largest);
}

// The values as the GEMM reads them: quantized and dequantized. Where the numerics say so, they are
// also multiplied by the shared factor and rounded to BF16. With two loops, independent operations
// are neighbors.
template <Quantization kind>
__device__ inline Vec8 quantize_dequantize(Vec8 vec, float amax, SharedScale shared, bool in_bf16) {
  const BlockScale scale = block_scale(kind, amax, shared);
#pragma unroll
  for (float& value : vec.v) value = quantize_dequantize(kind, value, scale);
  if (in_bf16) {
#pragma unroll
    for (float& value : vec.v) value = round_to_bf16(__fmul_rn(value, shared.factor));
  }
  return vec;
}
// The same as words of BF16. For NVFP4 an E4M3 scale, an E2M1 value and their product are all exact
// in BF16.
template <Quantization kind>
__device__ inline uint4 quantize_dequantize_bf16(Vec8 vec, float amax, SharedScale shared,
                                                 bool in_bf16) {
  if constexpr (kind == Quantization::none) return to_bf16(vec);
  if constexpr (kind != Quantization::nvfp4)
    return to_bf16(quantize_dequantize<kind>(vec, amax, shared, in_bf16));
  const BlockScale scale = block_scale(kind, amax, shared);
#pragma unroll
  for (float& value : vec.v) value = round_to_e2m1(__fmul_rn(value, scale.before));
  if (!in_bf16) return mul_bf16x2(to_bf16(vec), pack_bf16x2(scale.after, scale.after));
#pragma unroll
  for (float& value : vec.v) value = __fmul_rn(__fmul_rn(value, scale.after), shared.factor);
  return to_bf16(vec);
}
__device__ inline Vec8 quantize_dequantize(const LayerParams& layer, const Vec8& vec, float amax,
                                           float global) {
  return dispatch_quantization(layer.quantization, [&]<Quantization kind>(QuantizationTag<kind>) {
    return quantize_dequantize<kind>(vec, amax, shared_scale(kind, global),
                                     layer.activations_in_bf16 != 0);
  });
}

// Vec8 `vec` of a token of x. Columns beyond the last are 0 and stay 0.
__device__ inline Vec8 load_token_columns(const CallParams& call, const LayerParams& layer,
                                          std::uint64_t row, std::uint32_t vec) {
  if (vec * kVecColumns >= layer.hidden) return zero_vec8();
  return load_vec8(call.x.data, call.x.type, row + vec * kVecColumns);
}
__device__ inline Vec8 quantize_dequantize_columns(const LayerParams& layer, std::uint32_t vec,
                                                   const Vec8& values, float amax, float global) {
  return vec * kVecColumns < layer.hidden ? quantize_dequantize(layer, values, amax, global)
                                          : values;
}

// The locations of the Vec8s of one row in its token tile, see routing_tables.hpp.
struct TileRowAddress {
  std::uint64_t row = 0;             // bytes from the first tile
  std::uint32_t k_block_stride = 0;  // bytes, a multiple of 8; 0: the row is nowhere
  std::uint32_t swizzle = 0;         // r % 8

  __device__ std::uint64_t of(std::uint32_t vec) const {
    return row + std::uint64_t{vec / 8} * k_block_stride + ((vec % 8) ^ swizzle) * 16;
  }
};
__device__ inline TileRowAddress tile_row_address(const TokenTile& tile, std::uint32_t row,
                                                  std::uint32_t k_blocks) {
  const std::uint32_t r = row - tile.first_row;
  return {std::uint64_t{tile.first_row} * k_blocks * kBlockRowBytes + r * kBlockRowBytes,
          tile.rows * kBlockRowBytes, r % 8};
}
// The address that lane `lane` holds, in all lanes.
__device__ inline TileRowAddress broadcast_row_address(const TileRowAddress& address,
                                                       std::uint32_t lane) {
  const auto from = static_cast<int>(lane);
  const std::uint32_t rest = __shfl_sync(kFullWarp, address.k_block_stride | address.swizzle, from);
  return {__shfl_sync(kFullWarp, address.row, from), rest & ~7u, rest & 7u};
}

}  // namespace fp4moe::kernels::cuda::sm90
