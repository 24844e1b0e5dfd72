#include "fp4moe/backends/tensor_core/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::tensor_core {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

// Lane 4 g + j holds four words, one for each k-step; register 0 and 1 are rows g and g + 8.
template <U Record>
U native_code(U n, U k, U, U K) {
  const U record = (n / 64) * (K / 64) + k / 64;
  const U lane = 4 * (n % 8) + (k % 8) / 2, step = (k % 64) / 16;
  const U byte = record * Record + 512 * ((n % 64) / 16) + 16 * lane + 4 * step;
  const U reg = 2 * ((k % 16) / 8) + (n % 16) / 8;
  return 8 * (byte / 4) + 4 * (k % 2) + reg;
}

// 4 blocks x 8 row pairs x (row g, row g + 8) for each group.
template <U Groups>
U native_scale(U n, U c, U, U C) {
  const U record = (n / 64) * (C / Groups) + c / Groups;
  return record * (2048 + 64 * Groups) + 2048 + ((n % 64) / 16 * 8 + n % 8) * 2 * Groups +
         2 * (c % Groups) + (n % 16) / 8;
}

TEST(TensorCoreMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = codes(32),
       .takes = {{64, 64}, {1, 1}, {100, 130}, {100, 200}},
       .formula = native_code<2176>},
      {.map = codes(16),
       .takes = {{64, 64}, {1, 1}, {100, 130}, {100, 200}},
       .formula = native_code<2304>},
      {.map = scales(32),
       .takes = {{64, 2}, {1, 1}, {100, 5}, {100, 7}},
       .formula = native_scale<2>},
      {.map = scales(16),
       .takes = {{64, 4}, {1, 1}, {100, 9}, {100, 13}},
       .formula = native_scale<4>},
  });
}

// Codes and scales of one record lie beside each other and leave no gap.
TEST(TensorCoreMaps, TheTwoPartsOfARecordFillIt) {
  for (const std::uint32_t block : {32u, 16u}) {
    const Extent size{100, 130};
    const Result<IndexMap> codes = IndexMap::bind(tensor_core::codes(block), size);
    const Result<IndexMap> scales = IndexMap::bind(
        tensor_core::scales(block), {100, (130 + block - 1) / block}, {128, 192 / block});
    ASSERT_TRUE(codes && scales);
    ASSERT_EQ(codes->bytes(), scales->bytes());
    std::vector<unsigned> used(codes->bytes());
    for_each_element(codes->padded(), [&](Coord at) { ++used[codes->offset(at) / 2]; });
    for_each_element(scales->padded(), [&](Coord at) { used[scales->offset(at)] += 2; });
    for (std::size_t byte = 0; byte < used.size(); ++byte) ASSERT_EQ(used[byte], 2u) << byte;
  }
}

TEST(TensorCoreMaps, HaveTheirKernelsShapes) {
  expect_shape(codes(32), {65, 64}, 2, {2, 2, 1, 2176}, {4352, 2176, 2176, 1});
}

}  // namespace maps_test
}  // namespace fp4moe::backends::tensor_core
