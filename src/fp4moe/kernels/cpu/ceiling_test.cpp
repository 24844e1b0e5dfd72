#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/kernels/cpu/ceiling_list.hpp"

namespace fp4moe::kernels::cpu {
namespace ceiling_test {

TEST(Ceilings, EveryLoopThatCanRunDependsOnItsRounds) {
  const auto present = platform::detect_cpu_features();
  for (const CeilingKernel& kernel : ceiling_kernels())
    if (present.contains_all(kernel.needs)) {
      EXPECT_NE(kernel.run(1), kernel.run(1001)) << kernel.name;
    }
}

TEST(Ceilings, BothKindsOfOperandsEndWithALoopThatNeedsNothing) {
  int without_needs = 0;
  for (const CeilingKernel& kernel : ceiling_kernels())
    without_needs += kernel.needs.empty() ? 1 : 0;
  EXPECT_EQ(without_needs, 2);
  EXPECT_TRUE(read_kernels().back().needs.empty());
}

TEST(Ceilings, EveryReaderReadsEveryByte) {
  const auto present = platform::detect_cpu_features();
  std::vector<std::uint8_t> bytes(1024);
  SplitMix64 random(3);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  for (const ReadKernel& kernel : read_kernels()) {
    if (!present.contains_all(kernel.needs)) continue;
    const std::uint64_t whole = kernel.run(bytes.data(), bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] ^= 1;
      EXPECT_NE(kernel.run(bytes.data(), bytes.size()), whole) << kernel.name << " byte " << i;
      bytes[i] ^= 1;
    }
  }
}

}  // namespace ceiling_test
}  // namespace fp4moe::kernels::cpu
