// The epilogue of a warp: its sums (16 or 32 rows of weights x the tokens of a tile) become the output
// of the GEMM, eight tokens at a time, without shared memory.
//
//   swiglu        gate (row g) and up (row g + 8) of a column of h are in one lane ─► bf16 ─► movmatrix:
//                 four lanes write 16 bytes of a token
//   scaled_bf16   * factor, + bias ─► bf16 ─► movmatrix: four lanes write 16 bytes of a token
//   raw_f32       eight lanes write 32 bytes of a token
//
// A lane has rows g and g + 8 of each 16 rows, and tokens 2 j and 2 j + 1 of each row group of 8
// (g = lane / 4, j = lane % 4).
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm80::grouped_gemm {

template <std::uint32_t fragments, std::uint32_t row_groups>
struct WarpSums {
  float of[fragments][row_groups][4];
};

// The sums of a warp: `fragments` blocks of 16 rows from `fragment` on, of an M block.
struct WarpTile {
  sm90::TokenTile tile;
  std::uint32_t warp, lane;
  std::uint32_t m_block, fragment;
  bool has_rows;  // the matrix has the M block

  __device__ WarpTile(const sm90::TokenTile& tokens, std::uint32_t first_m_block,
                      std::uint32_t m_blocks, std::uint32_t fragments)
      : tile(tokens), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
    m_block = first_m_block + warp * fragments / 4;
    fragment = warp * fragments % 4;
    has_rows = m_block < m_blocks;
  }
  // The first row of fragment f.
  __device__ std::uint32_t row(std::uint32_t f) const {
    return m_block * sm90::kBlockM + (fragment + f) * 16;
  }
};

// Factors and biases of rows g and g + 8. They are loaded before the multiplication.
template <std::uint32_t fragments>
struct RowFactors {
  float factor = 1.0f, factor8 = 1.0f;
  float bias[fragments] = {}, bias8[fragments] = {};

  __device__ RowFactors(const sm90::Gemm& p, const WarpTile& of) {
    if (p.epilogue == sm90::Epilogue::raw_f32 || !of.has_rows) return;
    const auto expert = static_cast<std::uint64_t>(of.tile.expert);
    const std::uint32_t projections = p.epilogue == sm90::Epilogue::scaled_bf16 ? 1 : 2;
    const float* factors = p.matrix.factor + expert * projections;  // swiglu: gate, up
    factor = factors[0] * p.input_factor;
    factor8 = factors[projections - 1] * p.input_factor;
    if (p.matrix.bias == nullptr) return;
    const float* from = p.matrix.bias + expert * p.matrix.m_blocks * sm90::kBlockM + of.lane / 4;
#pragma unroll
    for (std::uint32_t f = 0; f < fragments; ++f) {
      bias[f] = from[of.row(f)];
      bias8[f] = from[of.row(f) + 8];
    }
  }
};

// Eight columns of eight tokens. `pair`: tokens 2 j and 2 j + 1 of column g; to[token]: 16 bytes.
__device__ inline void store_transposed(std::uint8_t* to, std::uint32_t lane, std::uint32_t pair) {
  *reinterpret_cast<std::uint32_t*>(to + lane % 4 * 4) = sm90::movmatrix_trans(pair);
}

// 16 rows of w13 are eight columns of h: one 16-byte chunk of a K block of its token tile.
__device__ inline void store_swiglu(const sm90::Gemm& p, const WarpTile& of, float factor,
                                    float factor8, float bias, float bias8, std::uint32_t row,
                                    std::uint32_t group, const float (&sums)[4]) {
  const auto h = [&](float gate, float up) {
    return sm90::swiglu(gate * factor + bias, up * factor8 + bias8, p.alpha, p.beta, p.limit,
                        p.prescale);
  };
  const std::uint32_t token = of.lane / 4, chunk = row / 16;
  std::uint8_t* tile = static_cast<std::uint8_t*>(p.out) +
                       std::uint64_t{of.tile.first_row} * p.out_k_blocks * sm90::kBlockRowBytes +
                       std::uint64_t{chunk / 8} * of.tile.rows * sm90::kBlockRowBytes;
  store_transposed(tile + (group * 8 + token) * sm90::kBlockRowBytes + (chunk % 8 ^ token) * 16,
                   of.lane, sm90::pack_bf16x2(h(sums[0], sums[2]), h(sums[1], sums[3])));
}

__device__ inline void store_bf16(const sm90::Gemm& p, const WarpTile& of, float factor, float bias,
                                  float bias8, std::uint32_t row, std::uint32_t group,
                                  const float (&sums)[4]) {
  const std::uint64_t token = of.tile.first_row + group * 8 + of.lane / 4;
  std::uint8_t* to =
      static_cast<std::uint8_t*>(p.out) + (token * p.matrix.m_blocks * sm90::kBlockM + row) * 2;
  store_transposed(to, of.lane,
                   sm90::pack_bf16x2(sums[0] * factor + bias, sums[1] * factor + bias));
  store_transposed(to + 16, of.lane,
                   sm90::pack_bf16x2(sums[2] * factor + bias8, sums[3] * factor + bias8));
}

__device__ inline void store_f32(const sm90::Gemm& p, const WarpTile& of, std::uint32_t row,
                                 std::uint32_t group, const float (&sums)[4]) {
  const float factor = 1.0f / p.prescale;
  const std::uint64_t width = std::uint64_t{p.matrix.m_blocks} * sm90::kBlockM;
  const std::uint64_t token = of.tile.first_row + group * 8 + of.lane % 4 * 2;
  float* to = static_cast<float*>(p.out) + token * width + row + of.lane / 4;
  to[0] = sums[0] * factor;
  to[8] = sums[2] * factor;
  to[width] = sums[1] * factor;
  to[width + 8] = sums[3] * factor;
}

// All lanes of the warp call.
template <std::uint32_t fragments, std::uint32_t row_groups>
__device__ inline void store(const sm90::Gemm& p, const WarpTile& of,
                             const RowFactors<fragments>& factors,
                             const WarpSums<fragments, row_groups>& sums) {
  const std::uint32_t groups = of.tile.rows / sm90::kRowGroup;
#pragma unroll
  for (std::uint32_t f = 0; f < fragments; ++f) {
    const std::uint32_t row = of.row(f);
#pragma unroll
    for (std::uint32_t n = 0; n < row_groups; ++n) {
      if (n >= groups) break;
      const float(&four)[4] = sums.of[f][n];
      if (p.epilogue == sm90::Epilogue::swiglu)
        store_swiglu(p, of, factors.factor, factors.factor8, factors.bias[f], factors.bias8[f], row,
                     n, four);
      else if (p.epilogue == sm90::Epilogue::scaled_bf16)
        store_bf16(p, of, factors.factor, factors.bias[f], factors.bias8[f], row, n, four);
      else
        store_f32(p, of, row, n, four);
    }
  }
}

}  // namespace fp4moe::kernels::cuda::sm80::grouped_gemm
