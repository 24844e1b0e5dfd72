// Parameters of the grouped GEMM for every architecture since 8.0: GEMM1 or GEMM2 of all experts.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/params.hpp"

namespace fp4moe::kernels::cuda::sm80 {

struct GroupedGemmParams {
  // Tokens are in tiles. Epilogues: swiglu, raw_f32, scaled_bf16.
  sm90::Gemm gemm{};
  const sm90::TokenTile* tiles = nullptr;           // that gather wrote
  const std::uint32_t* tile_count = nullptr;        // [1]
  const std::int32_t* assignment_of_row = nullptr;  // -1: padding
  std::uint32_t stages = 0;                         // of grouped_gemm_shape
};

}  // namespace fp4moe::kernels::cuda::sm80
