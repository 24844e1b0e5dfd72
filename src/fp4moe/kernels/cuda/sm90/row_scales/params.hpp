// Parameters of the kernel row_scales: what grouped_gemm_fp8 must know of a weight matrix.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct RowScalesParams {
  const std::uint8_t* tiles = nullptr;  // [m_blocks][k_blocks] weight tiles, of all experts
  std::uint32_t k_blocks = 0;
  std::uint8_t* largest = nullptr;     // out, [64 * m_blocks]: see WeightMatrix::row_scales
  std::uint32_t* wide_rows = nullptr;  // counts the rows that do not fit into E4M3
};

inline constexpr std::uint32_t kRowScalesThreads =
    kBlockM;  // a thread per row, a block per M block

}  // namespace fp4moe::kernels::cuda::sm90
