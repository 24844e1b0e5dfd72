// What every map is held to: the laws, the closed formula by which its format is documented, and
// the sizes that it refuses. Formulas are written as the documents write them; none looks at digits.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/layout/laws.hpp"
#include "fp4moe/layout/layout.hpp"

namespace fp4moe::layout {

// The offset of row n and column k in a matrix padded to N x K. Nibbles count from the lowest bits;
// scattered words count 8 * word + 4 * half + register.
using U = std::uint64_t;
using Formula = U (*)(U n, U k, U N, U K);

struct RefusedSize {
  Extent size{};
  std::string nearest{};  // the size that would do
};

struct MapCase {
  Map map{};
  std::vector<Extent> takes{};  // whole tiles, ragged edges and the smallest
  Formula formula = nullptr;
  std::vector<RefusedSize> refuses{};
  bool joins_experts = false;  // their rows make one matrix
};

// Rows one after another, which some formats keep.
inline U row_after_row(U n, U k, U, U K) { return n * K + k; }

// Scales of CDNA4: 32 rows x 8 columns.
inline U tiles_32x8(U n, U k, U, U K) {
  const U nb = n / 32, a = n / 16 % 2, r = n % 16, q = k / 8, b = k / 4 % 2, c = k % 4;
  return nb * (32 * K) + 256 * q + 64 * c + 4 * r + 2 * b + a;
}

inline std::string label(const Map& map, Extent size) {
  return std::string(map.name) + " " + std::to_string(size.rows) + " x " +
         std::to_string(size.cols);
}

// Stored shapes hold the whole storage, in elements of 1, 2 (nibbles) or a 32-bit word's bytes.
inline void check_stored_shape(const IndexMap& map, std::uint64_t experts) {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : stored_shape(map, experts)) elements *= extent;
  const std::uint64_t bytes = experts * map.bytes();
  EXPECT_TRUE(elements == bytes || elements == 2 * bytes || 4 * elements == bytes)
      << label(map.map(), map.logical()) << ": " << elements << " elements, " << bytes << " bytes";
}

inline void check_takes(const MapCase& given) {
  for (const Extent size : given.takes) {
    const Result<IndexMap> map = IndexMap::bind(given.map, size);
    ASSERT_TRUE(map) << label(given.map, size) << ": " << text(map.why());
    EXPECT_EQ(map->logical(), size);
    EXPECT_EQ(broken_law(*map), "") << label(given.map, size);
    check_stored_shape(*map, given.joins_experts ? 1 : 3);
    const Extent padded = map->padded();
    for_each_element(padded, [&](Coord at) {
      ASSERT_EQ(map->offset(at), given.formula(at.row, at.col, padded.rows, padded.cols))
          << label(given.map, size) << " at (" << at.row << ", " << at.col << ")";
    });
  }
  // The backend may round sizes up.
  const Extent size = given.takes.front(), more{2 * size.rows, 2 * size.cols};
  const Result<IndexMap> map = IndexMap::bind(given.map, size, more);
  ASSERT_TRUE(map) << label(given.map, size) << ": " << text(map.why());
  EXPECT_EQ(map->logical(), size);
  EXPECT_GE(map->padded().rows, more.rows);
  EXPECT_GE(map->padded().cols, more.cols);
  EXPECT_EQ(broken_law(*map), "") << label(given.map, size);
}

// By naming the rule and the size that would do; and sizes that no memory holds.
inline void check_refusals(const MapCase& given) {
  for (const auto& [size, nearest] : given.refuses) {
    const Result<IndexMap> map = IndexMap::bind(given.map, size);
    ASSERT_FALSE(map) << label(given.map, size);
    const Error& why = map.why();
    EXPECT_EQ(why.id, "layout.size");
    EXPECT_NE(why.message.find(given.map.name), std::string::npos) << why.message;
    EXPECT_TRUE(why.expected.starts_with("a multiple of ")) << why.expected;
    EXPECT_TRUE(why.remedy.ends_with(" " + nearest))
        << label(given.map, size) << ": " << why.remedy;
  }
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 62, kLarge = std::uint64_t{1} << 40;
  for (const Extent size :
       {Extent{kHuge, 64}, Extent{64, kHuge}, Extent{kHuge, kHuge}, Extent{kLarge, kLarge}}) {
    const Result<IndexMap> map = IndexMap::bind(given.map, size);
    ASSERT_FALSE(map) << label(given.map, size);
    EXPECT_EQ(map.why().id, "layout.size");
  }
}

inline void check_maps(const std::vector<MapCase>& cases) {
  for (const MapCase& given : cases) {
    check_takes(given);
    check_refusals(given);
  }
}

// The tensor's extents and strides as its kernel sees them.
inline void expect_shape(const Map& map, Extent size, std::uint64_t experts,
                         const std::vector<std::uint64_t>& extents,
                         const std::vector<std::uint64_t>& strides) {
  const Result<IndexMap> bound = IndexMap::bind(map, size);
  ASSERT_TRUE(bound) << label(map, size);
  const Shape shape = kernel_shape(*bound, experts);
  EXPECT_EQ(shape.extents, extents) << label(map, size);
  EXPECT_EQ(shape.strides, strides) << label(map, size);
}

}  // namespace fp4moe::layout
