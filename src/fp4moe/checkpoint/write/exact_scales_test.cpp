#include "fp4moe/checkpoint/write/exact_scales.hpp"

#include <bit>
#include <cstdint>

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
namespace exact_scales_test {

// Some float32 whose reciprocal's reciprocal is another number.
std::uint32_t without_way_back() {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(1.5f);
  while (reciprocal_bits(reciprocal_bits(bits)) == bits) ++bits;
  return bits;
}

TEST(ExactScales, ARecordRestoresWhatAReciprocalCannot) {
  const std::uint32_t original = without_way_back();
  const std::uint32_t stored = reciprocal_bits(original);

  EXPECT_NE(scale_bits(stored, GlobalScale::divides, std::nullopt).multiplies, original);
  EXPECT_EQ(scale_bits(stored, GlobalScale::divides, original).multiplies, original);
  EXPECT_EQ(scale_bits(stored, GlobalScale::multiplies, original).divides, original);
}

TEST(ExactScales, ARecordOfAScaleChangedSinceIsPassedOver) {
  const std::uint32_t original = without_way_back();
  const std::uint32_t repaired = std::bit_cast<std::uint32_t>(0.125f);

  EXPECT_EQ(scale_bits(repaired, GlobalScale::divides, original).multiplies,
            std::bit_cast<std::uint32_t>(8.0f));
}

}  // namespace exact_scales_test
}  // namespace fp4moe::checkpoint
