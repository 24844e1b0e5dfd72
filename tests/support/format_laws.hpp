// The laws every element format owes, for the tests: its codes in order of value are unique and
// increasing, decoding then encoding gives the code back, and between neighbors the nearest one
// wins, a tie being decided as the format says.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace fp4moe::formats {

template <class Code>
struct FormatLaws {
  float (*decode)(Code code);
  Code (*encode)(float x);
  Code (*tie)(Code below, Code above);  // which of two neighbors, by magnitude, a tie becomes
  std::vector<Code> codes;              // every finite code >= 0 in order of value
};

template <class Code>
std::vector<Code> codes_up_to(Code last) {
  std::vector<Code> codes;
  for (std::uint32_t code = 0; code <= last; ++code) codes.push_back(static_cast<Code>(code));
  return codes;
}

template <class Code>
Code even_of(Code below, Code above) {
  return (below & 1) == 0 ? below : above;
}
template <class Code>
Code larger_of(Code, Code above) {
  return above;
}

template <class Code>
void expect_laws(const FormatLaws<Code>& format) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < format.codes.size(); ++i) {
    const Code code = format.codes[i];
    const float value = format.decode(code);
    ASSERT_TRUE(std::isfinite(value)) << unsigned{code};
    EXPECT_EQ(format.encode(value), code) << "decode, then encode";
    if (i == 0) continue;

    const Code below = format.codes[i - 1];
    const float lower = format.decode(below);
    ASSERT_LT(lower, value) << "order and uniqueness at " << unsigned{code};
    const double middle = (static_cast<double>(lower) + value) / 2;
    const auto tie = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(tie), middle) << "midpoints are exact in float32";
    EXPECT_EQ(format.encode(tie), format.tie(below, code)) << tie;
    EXPECT_EQ(format.encode(std::nextafter(tie, -kInfinity)), below) << tie;
    EXPECT_EQ(format.encode(std::nextafter(tie, kInfinity)), code) << tie;
  }
}

// The same below zero, for formats with a sign bit.
template <class Code>
void expect_odd_symmetry(const FormatLaws<Code>& format, Code sign) {
  for (std::size_t i = 1; i < format.codes.size(); ++i) {
    const auto negative = static_cast<Code>(format.codes[i] | sign);
    const float value = format.decode(format.codes[i]);
    EXPECT_EQ(format.decode(negative), -value);
    EXPECT_EQ(format.encode(-value), negative);
    const float lower = format.decode(format.codes[i - 1]);
    const float tie = lower + (value - lower) / 2;
    const Code magnitude = format.tie(format.codes[i - 1], format.codes[i]);
    if (magnitude == 0) continue;  // zeros have their own tests
    EXPECT_EQ(format.encode(-tie), static_cast<Code>(magnitude | sign)) << tie;
  }
}

}  // namespace fp4moe::formats
