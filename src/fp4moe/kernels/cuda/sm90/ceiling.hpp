// What kernels that measure the device are launched with, see ceiling.cu.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kReadThreads = 512, kReadBlocks = 2;  // blocks a multiprocessor
struct ReadParams {
  const std::uint8_t* data = nullptr;  // a multiple of 16
  std::uint64_t bytes = 0;             // of them multiples of 16 are read
  std::uint32_t* sink = nullptr;       // nothing is written; the compiler cannot know
};

// A block a multiprocessor.
inline constexpr std::uint32_t kRateThreads = 512, kRateTokens = 128;
inline constexpr std::uint64_t kRateOperations =  // of a block's step; a multiply-add counts 2
    std::uint64_t{2} * (kRateThreads / 128) * 64 * kRateTokens * 64;
struct RateParams {
  std::uint32_t steps = 0;
  float* sink = nullptr;
};

}  // namespace fp4moe::kernels::cuda::sm90
