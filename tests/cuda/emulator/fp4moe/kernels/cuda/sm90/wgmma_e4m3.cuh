// The function of src/fp4moe/kernels/cuda/sm90/wgmma_e4m3.cuh on a CPU. This file is found before that
// one.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"

namespace fp4moe::kernels::cuda::sm90 {

template <int tokens, bool accumulates, int accumulators>
void wgmma_e4m3(float (&d)[accumulators], const AFragment& f, std::uint64_t descriptor) {
  static_assert(accumulators >= tokens / 2);
  mma_rows<tokens>(d, rows_of_a(f), descriptor, threadIdx.x % 32, accumulates,
                   [](std::uint32_t a, std::uint32_t b) {
                     double sum = 0;
                     for (std::uint32_t byte = 0; byte < 32; byte += 8)
                       sum += double{formats::E4m3fn::decode(a >> byte & 0xFF)} *
                              formats::E4m3fn::decode(b >> byte & 0xFF);
                     return sum;
                   });
}

}  // namespace fp4moe::kernels::cuda::sm90
