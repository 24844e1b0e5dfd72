// Parameters of the kernels that measure the device, see ceiling.cu.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kReadThreads = 512, kReadBlocks = 2;  // blocks per SM
struct ReadParams {
  const std::uint8_t* data = nullptr;  // a multiple of 16
  std::uint64_t bytes = 0;             // a multiple of 16 of them is read
  std::uint32_t* sink = nullptr;       // never written; the compiler does not know that
};

// One block per SM.
inline constexpr std::uint32_t kRateThreads = 512, kRateTokens = 128;
inline constexpr std::uint64_t kRateOperations =  // per step of a block; a multiply-add counts 2
    std::uint64_t{2} * (kRateThreads / 128) * 64 * kRateTokens * 64;
struct RateParams {
  std::uint32_t steps = 0;
  float* sink = nullptr;
};

}  // namespace fp4moe::kernels::cuda::sm90
