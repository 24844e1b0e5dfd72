// Activations by the piece: eight neighbouring columns, 16 bytes of BF16, a lane's share. A warp
// takes 32 pieces at once, a segment; blocks of quantised activations are whole lanes of it.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/quantise.cuh"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kPiece = 8;  // columns

struct Piece {
  float v[kPiece];
};

__device__ inline Piece no_piece() { return {{0, 0, 0, 0, 0, 0, 0, 0}}; }

__device__ inline uint4 to_bf16(const Piece& piece) {
  return {pack_bf16x2(piece.v[0], piece.v[1]), pack_bf16x2(piece.v[2], piece.v[3]),
          pack_bf16x2(piece.v[4], piece.v[5]), pack_bf16x2(piece.v[6], piece.v[7])};
}
// Times a power of two.
__device__ inline Piece raised(Piece piece, float by) {
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece; ++i) piece.v[i] *= by;
  return piece;
}
__device__ inline Piece from_bf16(const uint4& words) {
  return {{low_bf16(words.x), high_bf16(words.x), low_bf16(words.y), high_bf16(words.y),
           low_bf16(words.z), high_bf16(words.z), low_bf16(words.w), high_bf16(words.w)}};
}
__device__ inline Piece from_f16(const uint4& words) {
  const std::uint32_t w[4] = {words.x, words.y, words.z, words.w};
  Piece made;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    made.v[2 * i] = from_f16(static_cast<std::uint16_t>(w[i]));
    made.v[2 * i + 1] = from_f16(static_cast<std::uint16_t>(w[i] >> 16));
  }
  return made;
}
__device__ inline uint4 to_f16(const Piece& piece) {
  std::uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    w[i] = to_f16(piece.v[2 * i]) | std::uint32_t{to_f16(piece.v[2 * i + 1])} << 16;
  return {w[0], w[1], w[2], w[3]};
}

__device__ inline bool is_aligned16(const void* at) {
  return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
}

// Floats of memory that is aligned to 16 bytes.
__device__ inline Piece load_floats(const float* at) {
  const float4 a = reinterpret_cast<const float4*>(at)[0];
  const float4 b = reinterpret_cast<const float4*>(at)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ inline void store_floats(float* at, const Piece& piece) {
  reinterpret_cast<float4*>(at)[0] = {piece.v[0], piece.v[1], piece.v[2], piece.v[3]};
  reinterpret_cast<float4*>(at)[1] = {piece.v[4], piece.v[5], piece.v[6], piece.v[7]};
}

// Eight values from element `first` on: of memory aligned to 16 bytes, or wherever they lie.
__device__ inline Piece load_aligned(const void* data, Type type, std::uint64_t first) {
  const std::uint8_t* at = static_cast<const std::uint8_t*>(data) + first * bytes_of(type);
  if (type == Type::f32) return load_floats(reinterpret_cast<const float*>(at));
  const uint4 words = *reinterpret_cast<const uint4*>(at);
  return type == Type::bf16 ? from_bf16(words) : from_f16(words);
}
__device__ inline Piece load_piece(const void* data, Type type, std::uint64_t first) {
  const std::uint8_t* at = static_cast<const std::uint8_t*>(data) + first * bytes_of(type);
  if (is_aligned16(at)) return load_aligned(data, type, first);
  Piece made;
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece; ++i) made.v[i] = load_number(data, type, first + i);
  return made;
}
__device__ inline void store_piece(void* data, Type type, std::uint64_t first, const Piece& piece) {
  std::uint8_t* at = static_cast<std::uint8_t*>(data) + first * bytes_of(type);
  if (is_aligned16(at)) {
    if (type == Type::f32)
      store_floats(reinterpret_cast<float*>(at), piece);
    else
      *reinterpret_cast<uint4*>(at) = type == Type::bf16 ? to_bf16(piece) : to_f16(piece);
    return;
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece; ++i) store_number(data, type, first + i, piece.v[i]);
}

// The largest magnitude of a piece, of the lanes that share a block, and of a warp.
__device__ inline std::uint32_t largest_bits(const Piece& piece) {
  float half[kPiece / 2];
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece / 2; ++i)
    half[i] = larger_or_nan(fabsf(piece.v[i]), fabsf(piece.v[i + kPiece / 2]));
  return magnitude_bits(
      larger_or_nan(larger_or_nan(half[0], half[1]), larger_or_nan(half[2], half[3])));
}
// All lanes of a warp call it.
__device__ inline float block_amax(Quantise kind, const Piece& piece) {
  std::uint32_t largest = largest_bits(piece);
  for (std::uint32_t step = 1; step * kPiece < quantise_block(kind); step *= 2)
    largest = max(largest, __shfl_xor_sync(kFullWarp, largest, static_cast<int>(step)));
  return amax_of(largest);
}

// As products read it: quantised values, with their factor and rounded where the numerics say so.
// All at once: between values that wait for each other nothing else would be done.
template <Quantise kind>
__device__ inline Piece placed_piece(Piece piece, float amax, SharedScale shared, bool in_bf16) {
  const BlockScale scale = block_scale(kind, amax, shared);
#pragma unroll
  for (float& value : piece.v) value = quantised(kind, value, scale);
  if (in_bf16) {
#pragma unroll
    for (float& value : piece.v) value = rounded_to_bf16(__fmul_rn(value, shared.factor));
  }
  return piece;
}
// The same as words of BF16. An E4M3 scale of E2M1 numbers is a number of BF16, and so are the
// products.
template <Quantise kind>
__device__ inline uint4 placed_words(Piece piece, float amax, SharedScale shared, bool in_bf16) {
  if constexpr (kind == Quantise::none) return to_bf16(piece);
  if constexpr (kind != Quantise::nvfp4)
    return to_bf16(placed_piece<kind>(piece, amax, shared, in_bf16));
  const BlockScale scale = block_scale(kind, amax, shared);
#pragma unroll
  for (float& value : piece.v) value = rounded_to_e2m1(__fmul_rn(value, scale.before));
  if (!in_bf16) return mul_bf16x2(to_bf16(piece), pack_bf16x2(scale.after, scale.after));
#pragma unroll
  for (float& value : piece.v) value = __fmul_rn(__fmul_rn(value, scale.after), shared.factor);
  return to_bf16(piece);
}
__device__ inline Piece placed_piece(const Layer& layer, const Piece& piece, float amax,
                                     float global) {
  return with_kind(layer.quantise, [&]<Quantise kind>(Kind<kind>) {
    return placed_piece<kind>(piece, amax, shared_scale(kind, global),
                              layer.activations_in_bf16 != 0);
  });
}

// Of a token, zeros beyond the last column.
__device__ inline Piece load_columns(const Call& call, const Layer& layer, std::uint64_t row,
                                     std::uint32_t piece) {
  if (piece * kPiece >= layer.hidden) return no_piece();
  return load_piece(call.x.data, call.x.type, row + piece * kPiece);
}
__device__ inline Piece placed_columns(const Layer& layer, std::uint32_t piece, const Piece& values,
                                       float amax, float global) {
  return piece * kPiece < layer.hidden ? placed_piece(layer, values, amax, global) : values;
}

// Where the pieces of one row lie in its tile, see params.hpp.
struct TilePlace {
  std::uint64_t row = 0;   // bytes from the first tile
  std::uint32_t step = 0;  // bytes from unit to unit, a multiple of 1024
  std::uint32_t turn = 0;  // r % 8

  __device__ std::uint64_t of(std::uint32_t piece) const {
    return row + std::uint64_t{piece / 8} * step + ((piece % 8) ^ turn) * 16;
  }
};
__device__ inline TilePlace tile_place(const Tile& tile, std::uint32_t row, std::uint32_t units) {
  const std::uint32_t r = row - tile.first_row;
  return {std::uint64_t{tile.first_row} * units * 128 + r * 128, tile.rows * 128, r % 8};
}
// Of the lane that has it.
__device__ inline TilePlace place_from(const TilePlace& place, std::uint32_t lane) {
  const auto from = static_cast<int>(lane);
  const std::uint32_t rest = __shfl_sync(kFullWarp, place.step | place.turn, from);
  return {__shfl_sync(kFullWarp, place.row, from), rest & ~7u, rest & 7u};
}

}  // namespace fp4moe::kernels::cuda::sm90
