// The number formats, compiled for the device and compared with the conversions CUDA itself offers.
#pragma once
#include <cstdint>

namespace fp4moe::formats {

// In the order of the kernel's checks.
inline constexpr const char* kChecks[] = {"E2M1", "E4M3FN", "E5M2", "E8M0 up", "E8M0 toward zero",
                                          "BF16", "F16"};
inline constexpr unsigned kNumChecks = sizeof kChecks / sizeof kChecks[0];

struct Difference {
  unsigned long long count;
  std::uint32_t input;  // one of those that differ
};

struct CheckParams {
  Difference* differences;  // [kNumChecks]
};

}  // namespace fp4moe::formats
