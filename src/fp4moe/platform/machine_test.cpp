#include "fp4moe/platform/machine.hpp"

#include <gtest/gtest.h>

#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::platform {
namespace machine_test {

TEST(Machine, NamesAnX86ModelAsTheKernelDoes) {
  EXPECT_EQ(model_from_cpuinfo("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) 8592+\n"),
            "Intel(R) Xeon(R) 8592+");
}

TEST(Machine, NamesAnArmCoreByItsPartNumber) {
  EXPECT_EQ(model_from_cpuinfo("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n"), "Neoverse-V1");
  EXPECT_EQ(model_from_cpuinfo("CPU implementer\t: 0x99\nCPU part\t: 0x123\n"),
            "Arm implementer 0x99 part 0x123");
}

TEST(Machine, HasNoModelWhenTheKernelGivesNone) {
  EXPECT_EQ(model_from_cpuinfo(""), "");
  EXPECT_EQ(model_from_cpuinfo("no colon here\n:\n"), "");
}

TEST(Machine, ReadsCacheSizesWithTheirUnits) {
  EXPECT_EQ(cache_bytes("64K"), 65536u);
  EXPECT_EQ(cache_bytes("32M"), 33554432u);
  EXPECT_EQ(cache_bytes("512"), 512u);
  for (const char* bad : {"", "K", "64Q", "-1K", "99999999999999999999K"})
    EXPECT_EQ(cache_bytes(bad), 0u) << bad;
}

TEST(Machine, DescribesTheOneThisTestRunsOn) {
  const Machine machine = describe_machine();

  EXPECT_GE(machine.cores, 1u);
  EXPECT_FALSE(machine.architecture.empty());
  EXPECT_GT(machine.memory_bytes, 0u);
  EXPECT_EQ(machine.features, detect_cpu_features());
}

TEST(CpuFeatures, AreConsistentWithEachOther) {
  const EnumSet<CpuFeature> found = detect_cpu_features();

#if defined(__aarch64__)
  EXPECT_TRUE(found.contains(CpuFeature::neon));
  EXPECT_FALSE(found.contains(CpuFeature::avx2));
#endif
  if (found.contains(CpuFeature::avx512_vnni)) {
    EXPECT_TRUE(found.contains(CpuFeature::avx512));
  }
  if (found.contains(CpuFeature::avx512)) {
    EXPECT_TRUE(found.contains(CpuFeature::avx2));
  }
}

TEST(CpuFeatures, ReadAsWords) {
  EXPECT_EQ(text(EnumSet<CpuFeature>{}), "none");
  EXPECT_EQ(text(EnumSet<CpuFeature>{CpuFeature::avx2, CpuFeature::neon}), "neon avx2");
}

}  // namespace machine_test
}  // namespace fp4moe::platform
