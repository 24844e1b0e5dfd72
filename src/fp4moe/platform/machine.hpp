// Facts about this machine that go beside every measurement.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::platform {

// Zero or empty: the machine does not say.
struct Machine {
  std::string model{};                                      // "Neoverse-V1", "Intel(R) Xeon(R) ..."
  std::string architecture{};                               // "aarch64", "x86_64"
  std::size_t cores = 0;                                    // that this process may use
  std::uint64_t l1d_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // as one core sees them
  std::uint64_t memory_bytes = 0;
  EnumSet<CpuFeature> features{};
};

Machine describe_machine();

// The parts that read text, for tests. `cpuinfo` is /proc/cpuinfo; `size` is like "32768K".
std::string model_from_cpuinfo(std::string_view cpuinfo);
std::uint64_t cache_bytes(std::string_view size);

}  // namespace fp4moe::platform
