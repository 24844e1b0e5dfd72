// The token tile in shared memory, which math and epilogue warps fill together: x for GEMM1, then h
// of each batch for GEMM2.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/tagged.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// The address of a Vec8 in a tile of `tile_tokens` rows.
__device__ inline std::uint32_t token_address(const Block& block, std::uint32_t tile_tokens,
                                              std::uint32_t row, std::uint32_t vec) {
  return block.tokens + (vec / 8 * tile_tokens + row) * 128 + ((vec % 8) ^ (row % 8)) * 16;
}
__device__ inline void store_token(std::uint32_t to, uint4 words, bool is_prescaled) {
  constexpr std::uint32_t kPrescalePair = 0x5F805F80u;  // 2^64 as BF16
  if (is_prescaled) words = mul_bf16x2(words, kPrescalePair);
  st_shared_16(to, words);
}

// Copies 16-bit tokens unchanged, by the first `workers`. Several loads are in flight.
__device__ inline void copy_tokens(const DecodeParams& p, const Block& block, std::uint32_t workers,
                                   bool is_prescaled) {
  constexpr std::uint32_t kInFlight = 4;
  const std::uint32_t vecs = p.layer.w13.k_blocks * kBlockVecs;
  const std::uint32_t real = p.layer.hidden / kVecColumns, all = p.call.tokens * vecs;
  const auto* x = static_cast<const std::uint8_t*>(p.call.x.data);
  for (std::uint32_t begin = worker(); begin < all; begin += kInFlight * workers) {
    uint4 words[kInFlight];
#pragma unroll
    for (std::uint32_t i = 0; i < kInFlight; ++i) {
      const std::uint32_t at = begin + i * workers, row = at / vecs, vec = at - row * vecs;
      words[i] = {0, 0, 0, 0};
      if (at < all && vec < real)
        words[i] =
            *reinterpret_cast<const uint4*>(x + (row * p.call.x.stride + vec * kVecColumns) * 2);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kInFlight; ++i) {
      const std::uint32_t at = begin + i * workers, row = at / vecs, vec = at - row * vecs;
      if (at < all)
        store_token(token_address(block, p.tile_tokens, row, vec), words[i], is_prescaled);
    }
  }
}

// Rows of `width` columns that go into a tile.
struct TokenRows {
  std::uint32_t rows, tile_tokens, width, workers;  // rows: one bit each; workers: the first ones
  float global;                                     // of the quantization
};
// load(row, vec) gives a Vec8. Columns beyond the width become 0.
template <Quantization kind, class Load>
__device__ inline void fill_rows(const DecodeParams& p, const Block& block, const TokenRows& what,
                                 const Load& load) {
  const std::uint32_t vecs = (what.width + kBlockK - 1) / kBlockK * kBlockVecs;
  // Whole warps stay together: quantization blocks span lanes.
  const std::uint32_t segments = (vecs + 31) / 32;
  std::uint32_t left = what.rows, segment = 0;  // of the first row that is left
  const auto skip = [&](std::uint32_t count) {
    for (segment += count; segment >= segments && left != 0; segment -= segments) left &= left - 1;
  };
  const SharedScale shared = shared_scale(kind, what.global);
  skip(warp_uniform(worker() / 32));
#pragma unroll 1
  while (left != 0) {
    const std::uint32_t row = __ffs(static_cast<int>(left)) - 1;
    const std::uint32_t vec = segment * 32 + threadIdx.x % 32;
    const bool is_real = vec * kVecColumns < what.width;
    const Vec8 values = is_real ? load(row, vec) : zero_vec8();
    const float amax = kind == Quantization::none ? 0.0f : block_amax(kind, values);
    uint4 words =
        quantize_dequantize_bf16<kind>(values, amax, shared, p.layer.activations_in_bf16 != 0);
    if (!is_real) words = {0, 0, 0, 0};
    if (vec < vecs)
      store_token(token_address(block, what.tile_tokens, row, vec), words, block.is_prescaled);
    skip(what.workers / 32);
  }
}

// Decode does not have one scale per row (fp8_token).
template <class Load>
__device__ inline void fill_rows(Quantization kind, const DecodeParams& p, const Block& block,
                                 const TokenRows& what, const Load& load) {
  dispatch_quantization(kind, [&]<Quantization one>(QuantizationTag<one>) {
    if constexpr (one != Quantization::fp8_token) fill_rows<one>(p, block, what, load);
  });
}

// --- x.

__device__ inline bool quantizes_inputs(const DecodeParams& p) {
  return p.call.x_is_quantized == 0 && p.layer.quantization != Quantization::none;
}
__device__ inline Vec8 load_input(const DecodeParams& p, std::uint32_t row, std::uint32_t vec) {
  return load_aligned(p.call.x.data, p.call.x.type, row * p.call.x.stride + vec * kVecColumns);
}
// All tokens, by the first `workers`. Tokens that will be quantized are copied unchanged; float32
// tokens, which do not fit the tile unchanged, stay in global memory.
__device__ inline void fill_inputs(const DecodeParams& p, const Block& block,
                                   std::uint32_t workers) {
  const bool is_quantizing = quantizes_inputs(p);
  if (p.call.x.type == ElementType::bf16 || (is_quantizing && p.call.x.type == ElementType::f16))
    return copy_tokens(p, block, workers, block.is_prescaled && !is_quantizing);
  if (is_quantizing) return;
  const TokenRows what{(1u << p.call.tokens) - 1, p.tile_tokens, p.layer.hidden, workers, 1.0f};
  fill_rows<Quantization::none>(p, block, what, [&](std::uint32_t row, std::uint32_t vec) {
    return load_input(p, row, vec);
  });
}
// Then quantizes those tokens that the block multiplies: `rows`, one bit each.
__device__ inline void quantize_inputs(const DecodeParams& p, const Block& block,
                                       std::uint32_t rows, float global) {
  const TokenRows what{rows, p.tile_tokens, p.layer.hidden, kWorkers, global};
  fill_rows(p.layer.quantization, p, block, what, [&](std::uint32_t row, std::uint32_t vec) {
    if (p.call.x.type == ElementType::f32) return load_input(p, row, vec);
    const uint4 words = ld_shared_16(token_address(block, p.tile_tokens, row, vec));
    return p.call.x.type == ElementType::bf16 ? from_bf16(words) : from_f16(words);
  });
}

// --- h.

// The offset of a column of h in global memory. A lane reads a Vec8 as four pairs. Pairs that the lanes
// of a K block read together lie together: whole lines are read.
inline constexpr std::uint32_t kHiddenPairStride = 2 * kBlockK / kVecColumns;  // words
__device__ inline std::uint32_t hidden_offset(std::uint32_t column) {
  return column / kBlockK * kBlockK + column % kVecColumns / 2 * kHiddenPairStride +
         column % kBlockK / kVecColumns * 2 + column % 2;
}

// h of a batch, as soon as the other blocks have written it.
__device__ inline void fill_hidden(const DecodeParams& p, const Block& block, std::uint32_t batch) {
  const DecodeHeader& header = block.header;
  const std::uint64_t stride = std::uint64_t{p.layer.w2.k_blocks} * kBlockK;
  const auto expert = static_cast<std::uint32_t>(header.expert[batch]);
  const TokenRows what{(1u << header.tokens[batch]) - 1, kDecodeTileTokens, p.layer.intermediate,
                       kWorkers, hidden_scale(p.layer, expert)};
  named_barrier_sync(kWorkersBarrier, kWorkers);  // no warp reads the previous tile any more
  const auto load = [&](std::uint32_t row, std::uint32_t vec) {
    const std::uint64_t* at =
        p.hidden + header.assignment(batch, row) * stride + hidden_offset(vec * kVecColumns);
    ulonglong2 pairs[kVecColumns / 2];
    bool is_complete = false;
    while (!is_complete) {
      is_complete = true;
#pragma unroll
      for (std::uint32_t i = 0; i < kVecColumns / 2; ++i)
        pairs[i] = ld_relaxed_x2(at + i * kHiddenPairStride);
#pragma unroll
      for (const ulonglong2& pair : pairs)
        is_complete =
            is_complete && has_epoch(pair.x, block.epoch) && has_epoch(pair.y, block.epoch);
    }
    Vec8 result;
#pragma unroll
    for (std::uint32_t i = 0; i < kVecColumns; ++i)
      result.v[i] = value_of(i % 2 == 0 ? pairs[i / 2].x : pairs[i / 2].y);
    return result;
  };
  fill_rows(p.layer.quantization, p, block, what, load);
  named_barrier_sync(kWorkersBarrier, kWorkers);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
