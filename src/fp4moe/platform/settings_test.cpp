#include "fp4moe/platform/settings.hpp"

#include <fstream>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/base/parallel.hpp"
#include "support/fake_root.hpp"

namespace fp4moe::platform {
namespace settings_test {

TEST(Settings, AreEmptyWhenNothingIsSet) {
  const Result<Settings> settings = read_settings(with({}));

  ASSERT_TRUE(settings);
  EXPECT_FALSE(settings->threads);
  EXPECT_FALSE(settings->cpu_isa);
}

TEST(Settings, AnEmptyVariableCountsAsUnset) {
  const Result<Settings> settings =
      read_settings(with({{"FP4MOE_THREADS", ""}, {"FP4MOE_CPU_ISA", ""}}));

  ASSERT_TRUE(settings);
  EXPECT_FALSE(settings->threads);
  EXPECT_FALSE(settings->cpu_isa);
}

TEST(Settings, HoldTheValuesThatAreSet) {
  const Result<Settings> settings =
      read_settings(with({{"FP4MOE_THREADS", "12"}, {"FP4MOE_CPU_ISA", "neon_i8mm"}}));

  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->threads, 12u);
  EXPECT_EQ(settings->cpu_isa, "neon_i8mm");
}

TEST(Settings, RefuseThreadCountsThatAreNotOne) {
  for (const char* bad : {"0", "-1", "2x", " 2", "4097", "99999999999999999999", "two"}) {
    const Result<Settings> settings = read_settings(with({{"FP4MOE_THREADS", bad}}));
    ASSERT_FALSE(settings) << bad;
    EXPECT_EQ(settings.why().id, "settings.threads");
    EXPECT_EQ(settings.why().code, ErrorCode::usage);
    EXPECT_EQ(settings.why().found, bad);
  }
}

TEST(Settings, PinningIsOnOrOff) {
  EXPECT_EQ(read_settings(with({}))->pins, std::nullopt);
  EXPECT_EQ(read_settings(with({{"FP4MOE_PIN", "1"}}))->pins, true);
  EXPECT_EQ(read_settings(with({{"FP4MOE_PIN", "0"}}))->pins, false);
  const Result<Settings> settings = read_settings(with({{"FP4MOE_PIN", "yes"}}));
  ASSERT_FALSE(settings);
  EXPECT_EQ(settings.why().id, "settings.pin");
}

TEST(Settings, TorchsThreadsAreOnOrOff) {
  EXPECT_EQ(read_settings(with({}))->openmp, std::nullopt);
  EXPECT_EQ(read_settings(with({{"FP4MOE_OPENMP", "1"}}))->openmp, true);
  EXPECT_EQ(read_settings(with({{"FP4MOE_OPENMP", "0"}}))->openmp, false);
  EXPECT_EQ(read_settings(with({{"FP4MOE_OPENMP", "off"}})).why().id, "settings.openmp");
}

TEST(Settings, CudaKernelsAreOfOneOfTwoFamilies) {
  EXPECT_EQ(read_settings(with({}))->cuda_kernels, std::nullopt);
  for (const char* family : {"sm90", "sm80"})
    EXPECT_EQ(read_settings(with({{"FP4MOE_CUDA_KERNELS", family}}))->cuda_kernels, family);
  for (const char* bad : {"sm_80", "SM80", "ampere", "sm100"})
    EXPECT_EQ(read_settings(with({{"FP4MOE_CUDA_KERNELS", bad}})).why().id,
              "settings.cuda_kernels");
}

TEST(Settings, RefuseInstructionSetsThatAreNoNames) {
  for (const char* bad :
       {"AVX2", "neon i8mm", "../neon", "a-very-long-name-of-an-instruction-set"}) {
    const Result<Settings> settings = read_settings(with({{"FP4MOE_CPU_ISA", bad}}));
    ASSERT_FALSE(settings) << bad;
    EXPECT_EQ(settings.why().id, "settings.cpu_isa");
  }
}

TEST(Settings, AreDocumentedAsTheyAre) {
  std::ifstream page(FP4MOE_TESTDATA "/../docs/doctor.md");
  ASSERT_TRUE(page);
  std::set<std::string> lines;
  for (std::string line; std::getline(page, line);) lines.insert(line);
  for (const SettingRow& row : setting_rows()) {
    const std::string documented = "| `" + std::string(row.name) + "` | " +
                                   std::string(row.accepted) + " | " + std::string(row.effect) +
                                   " |";
    EXPECT_TRUE(lines.contains(documented)) << documented;
  }
}

TEST(Settings, TheCommandLineGoesBeforeTheEnvironmentAndThatBeforeTheMachine) {
  EXPECT_EQ(choose_threads(3, {.threads = 5}), 3u);
  EXPECT_EQ(choose_threads(std::nullopt, {.threads = 5}), 5u);
  EXPECT_EQ(choose_threads(std::nullopt, {}), available_threads());
}

}  // namespace settings_test
}  // namespace fp4moe::platform
