#include "formats.hpp"

#include <array>
#include <span>

#include <gtest/gtest.h>

#include "fp4moe/kernels/cuda/driver.hpp"
#include "test_device.hpp"

namespace fp4moe::formats {
namespace formats_test {

using kernels::cuda::Device;
using kernels::cuda::Memory;

TEST(Formats, EncodeAllFloatsAsCudaDoes) {
  const auto device = kernels::cuda::test_device();
  if (!device) GTEST_SKIP() << text(device.why());
  const auto kernel = (*device)->function("fp4moe_test_formats");
  ASSERT_TRUE(kernel) << text(kernel.why());
  std::array<Difference, kNumChecks> found{};
  const auto bytes = std::as_writable_bytes(std::span(found));
  const Result<Memory> memory = (*device)->allocate(bytes.size());
  ASSERT_TRUE(memory) << text(memory.why());
  ASSERT_TRUE((*device)->clear(memory->data(), 0, bytes.size(), nullptr));

  const CheckParams params{.differences = memory->as<Difference>()};
  const auto launched = (*device)->launch(
      {.function = *kernel, .blocks = 2048, .threads = 256, .params = &params}, nullptr);
  ASSERT_TRUE(launched) << text(launched.why());
  ASSERT_TRUE((*device)->download(bytes, memory->data(), nullptr));
  const auto finished = (*device)->wait(nullptr);
  ASSERT_TRUE(finished) << text(finished.why());

  for (unsigned i = 0; i < kNumChecks; ++i)
    EXPECT_EQ(found[i].count, 0u) << kChecks[i] << ", first of them " << std::hex << found[i].input;
}

}  // namespace formats_test
}  // namespace fp4moe::formats
