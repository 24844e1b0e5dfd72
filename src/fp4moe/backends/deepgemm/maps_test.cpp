#include "fp4moe/backends/deepgemm/maps.hpp"

#include <gtest/gtest.h>

#include "support/map_checks.hpp"

namespace fp4moe::backends::deepgemm {
namespace maps_test {

using namespace layout;  // NOLINT(google-build-using-namespace): words of a map

U offset(U n, U k, U N, U) { return ((k / 4) * N + n) * 4 + k % 4; }

TEST(DeepgemmMaps, KeepTheLawsAndTheirFormulas) {
  check_maps({
      {.map = scales(), .takes = {{4, 4}, {1, 1}, {6, 5}, {64, 8}}, .formula = offset},
  });
}

// Rows are padded in storage, but reported as they are.
TEST(DeepgemmMaps, HaveTheirKernelsShapes) {
  expect_shape(scales(), {6, 5}, 2, {2, 6, 2}, {16, 1, 8});
  const Result<IndexMap> map = IndexMap::bind(scales(), {6, 5});
  ASSERT_TRUE(map);
  EXPECT_EQ(stored_shape(*map, 2), (std::vector<std::uint64_t>{2, 2, 8}));
}

}  // namespace maps_test
}  // namespace fp4moe::backends::deepgemm
