#include "fp4moe/formats/scale_extremes.hpp"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/random.hpp"

namespace fp4moe::formats {
namespace scale_extremes_test {

// One scale at a time, by the definition.
ScaleExtremes reference(std::span<const std::byte> scales, bool is_e4m3) {
  ScaleExtremes found;
  for (const std::byte scale : scales) {
    const int code = std::to_integer<int>(scale);
    if (is_e4m3 && code >= 0x80) found.has_negative = true;
    if (is_e4m3 && (code == 0 || code >= 0x80)) continue;
    found.largest = std::max(found.largest, static_cast<std::uint8_t>(code));
    found.smallest = std::min(found.smallest, static_cast<std::uint8_t>(code));
  }
  return found;
}

void expect_equal(const ScaleExtremes& found, const ScaleExtremes& expected) {
  EXPECT_EQ(found.largest, expected.largest);
  EXPECT_EQ(found.smallest, expected.smallest);
  EXPECT_EQ(found.has_negative, expected.has_negative);
}

TEST(ScaleExtremes, EqualTheReferenceForEveryByteAlone) {
  for (int code = 0; code < 256; ++code) {
    SCOPED_TRACE(code);
    const std::vector scales{static_cast<std::byte>(code)};
    expect_equal(e8m0_extremes(scales), reference(scales, false));
    expect_equal(e4m3_extremes(scales), reference(scales, true));
  }
}

TEST(ScaleExtremes, EqualTheReferenceForEveryLength) {
  SplitMix64 random(7);
  for (std::size_t length = 0; length < 200; ++length) {
    SCOPED_TRACE(length);
    std::vector<std::byte> scales(length);
    // A narrow range at a random place: otherwise long rows have the same extremes.
    const std::uint64_t base = random.next() % 256, range = 1 + random.next() % 16;
    for (std::byte& scale : scales) scale = static_cast<std::byte>(base + random.next() % range);
    expect_equal(e8m0_extremes(scales), reference(scales, false));
    expect_equal(e4m3_extremes(scales), reference(scales, true));
  }
}

}  // namespace scale_extremes_test
}  // namespace fp4moe::formats
