// The functions of src/fp4moe/kernels/cuda/sm90/wgmma.cuh on a CPU. This file is found before that one.
// Each warp multiplies its 16 rows. The tokens are read when it is waited for, or at once.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"

namespace fp4moe::kernels::cuda::sm90 {

inline void wgmma_fence() {}
inline void wgmma_commit_group() { block().commit_products(); }
template <int pending = 0>
void wgmma_wait() {
  block().wait_for_products(pending);
  block().exchange_operands(0);
}
inline void keep_until_here(AFragment&) {}

// The address of B in units of 16 bytes.
inline constexpr std::uint32_t kDescriptorUnit = 16;
inline std::uint32_t descriptor_low(std::uint32_t address) { return address / kDescriptorUnit; }
inline std::uint64_t make_descriptor(std::uint32_t low) { return low; }

// Four registers of A, from lanes 4 g to 4 g + 3: rows g and g + 8.
using RowsOfA = std::array<AFragment, 4>;
inline RowsOfA rows_of_a(const AFragment& f) {
  const auto all = block().exchange_operands(f);
  const std::uint32_t first = threadIdx.x % 32 / 4 * 4;
  return {all[first], all[first + 1], all[first + 2], all[first + 3]};
}
// Bytes `at` to `at` + 3 of row g (half 0) or g + 8, of the 32 bytes that a row of A has.
inline std::uint32_t word_of_a(const RowsOfA& a, std::uint32_t half, std::uint32_t at) {
  const AFragment& of = a[at % 16 / 4];
  return at < 16 ? (half == 0 ? of.a0 : of.a1) : (half == 0 ? of.a2 : of.a3);
}
// d: of tokens 8 t + 2 j and the next, rows g and g + 8 (j = lane % 4). A token has rows of 128 bytes,
// eight of them swizzled together. `dot`: of two words.
template <int tokens, class Dot>
void mma_rows(float* d, const RowsOfA& a, std::uint64_t descriptor, std::uint32_t lane,
              bool accumulates, Dot dot) {
  block().multiply([=] {
    for (std::uint32_t t = 0; t < tokens / 4; ++t) {
      uint4 b[2];
      for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
        const std::uint32_t token = t / 2 * 8 + lane % 4 * 2 + t % 2;
        const std::uint32_t linear =
            static_cast<std::uint32_t>(descriptor) * kDescriptorUnit + token * 128 + chunk * 16;
        b[chunk] = ld_shared_16(linear ^ linear / 128 % 8 * 16);
      }
      for (std::uint32_t half = 0; half < 2; ++half) {
        float& sum = d[t / 2 * 4 + half * 2 + t % 2];
        double total = accumulates ? sum : 0;
        for (std::uint32_t at = 0; at < 32; at += 16)
          total += dot(word_of_a(a, half, at), b[at / 16].x) +
                   dot(word_of_a(a, half, at + 4), b[at / 16].y) +
                   dot(word_of_a(a, half, at + 8), b[at / 16].z) +
                   dot(word_of_a(a, half, at + 12), b[at / 16].w);
        sum = static_cast<float>(total);
      }
    }
  });
}

template <int tokens, int accumulators>
void wgmma(float (&d)[accumulators], const AFragment& f, std::uint64_t descriptor) {
  static_assert(accumulators >= tokens / 2);
  mma_rows<tokens>(d, rows_of_a(f), descriptor, threadIdx.x % 32, true,
                   [](std::uint32_t a, std::uint32_t b) {
                     return double{bf16_half(a, 0)} * bf16_half(b, 0) +
                            double{bf16_half(a, 1)} * bf16_half(b, 1);
                   });
}

template <int tokens, int accumulators>
void wgmma_k_block(float (&sums)[accumulators], const AFragment (&weights)[4], std::uint32_t low) {
  for (std::uint32_t step = 0; step < 4; ++step)
    wgmma<tokens>(sums, weights[step], make_descriptor(low) + 2 * step);
  wgmma_commit_group();
}
inline void wgmma_wait_k_block(AFragment (&)[4]) { wgmma_wait(); }

}  // namespace fp4moe::kernels::cuda::sm90
