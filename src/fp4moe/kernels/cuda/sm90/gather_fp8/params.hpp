// Parameters of the kernel gather_fp8: x into token tiles of E4M3, for grouped_gemm_fp8.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct GatherFp8Params {
  GatherParams gather{};          // tiles: see grouped_gemm_fp8/shape.hpp
  float* token_scales = nullptr;  // out, [rows]: of fp8_token
};

// A warp per token.
constexpr std::uint32_t gather_fp8_blocks(std::uint64_t tokens, std::uint32_t sms) {
  return clamp_blocks(ceil_div_u64(tokens, kGatherThreads / 32), sms * 3ull);
}

}  // namespace fp4moe::kernels::cuda::sm90
