// Laws of every map, and the sizes that maps refuse.
#include "fp4moe/layout/maps.hpp"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/layout/laws.hpp"
#include "fp4moe/layout/layout.hpp"

namespace fp4moe::layout {
namespace maps_test {

struct MapSizes {
  Map map;
  std::vector<Extent> takes;    // whole tiles, ragged edges and the smallest
  std::vector<Extent> refuses;  // with the size that would do in `nearest`
  std::vector<std::string> nearest;
};

std::vector<MapSizes> all_maps() {
  return {
      {plain(), {{1, 1}, {7, 5}, {32, 3}}, {{0, 4}, {4, 0}}, {"1", "1"}},
      {plain(16), {{1, 1}, {3, 16}, {5, 33}}, {}, {}},
      {marlin_w4a16(), {{64, 16}, {128, 48}}, {{63, 16}, {64, 24}}, {"64", "32"}},
      {marlin_w4a8(), {{64, 32}, {192, 96}}, {{96, 32}, {64, 48}}, {"128", "64"}},
      {marlin_scales(), {{64, 1}, {128, 5}}, {{32, 4}}, {"64"}},
      {marlin_scales_grouped(), {{64, 1}, {192, 3}}, {{100, 4}}, {"128"}},
      {marlin_scales_single(), {{32, 1}, {96, 3}}, {{33, 1}}, {"64"}},
      {marlin_scales_single_exchanged(), {{32, 1}, {96, 3}}, {{1, 1}}, {"32"}},
      {scales_128x4(), {{128, 4}, {1, 1}, {130, 5}, {256, 12}}, {}, {}},
      {scales_128x4(8), {{128, 8}, {129, 9}}, {}, {}},
      {sm90_weights(false), {{16, 64}, {48, 192}}, {{24, 64}, {16, 96}}, {"32", "128"}},
      {sm90_weights(true), {{16, 64}, {48, 192}}, {{8, 64}, {16, 32}}, {"16", "64"}},
      {sm90_scales(), {{1, 4}, {64, 12}}, {{64, 6}}, {"8"}},
      {sm90_scales_folded(), {{64, 4}, {192, 12}}, {{65, 4}, {64, 5}}, {"128", "8"}},
      {triton_strided(), {{1, 1}, {6, 9}}, {}, {}},
      {triton_strided(Element::nibble), {{1, 2}, {6, 10}}, {{1, 1}}, {"2"}},
      {triton_hopper_value(3, {16, 32}), {{16, 64}, {1, 1}, {40, 130}}, {}, {}},
      {triton_hopper_value(3, {64, 64}), {{64, 128}, {65, 2}}, {}, {}},
      {triton_hopper_value(3, {256, 64}), {{256, 128}, {10, 160}}, {}, {}},
      {triton_hopper_value(2, {16, 32}), {{16, 64}, {1, 1}, {40, 130}}, {}, {}},
      {triton_hopper_value(2, {256, 64}), {{256, 128}, {10, 160}}, {}, {}},
      {triton_hopper_scale(4), {{128, 2}, {1, 1}, {130, 5}}, {}, {}},
      {triton_hopper_scale(8), {{256, 2}, {1, 1}, {300, 3}}, {}, {}},
      {triton_hopper_scale(8, 4), {{256, 4}, {1, 1}, {300, 5}}, {}, {}},
      {triton_hopper_scale(1), {{32, 2}, {33, 3}}, {}, {}},
      {triton_blackwell_value(), {{1, 1}, {3, 128}, {5, 200}}, {}, {}},
      {triton_blackwell_value(true), {{1, 1}, {3, 128}}, {}, {}},
      {triton_blackwell_value_shuffled(), {{256, 128}, {2, 1}, {258, 130}}, {{3, 4}}, {"4"}},
      {triton_blackwell_value_shuffled(256, 128), {{128, 128}, {130, 3}}, {{1, 1}}, {"2"}},
      {triton_blackwell_scale(), {{128, 8}, {1, 1}, {130, 9}}, {}, {}},
      {triton_cdna4_scale(false), {{32, 8}, {96, 24}}, {{16, 8}, {32, 10}}, {"32", "16"}},
      {triton_cdna4_scale(true), {{32, 8}, {1, 1}, {33, 9}}, {}, {}},
      {triton_gfx1250_scale(4), {{128, 4}, {1, 4}, {130, 5}}, {}, {}},
      {triton_gfx1250_scale(3), {{128, 3}, {1, 3}}, {}, {}},
      {triton_gfx1250_scale(1), {{128, 1}, {1, 1}}, {}, {}},
      {triton_gfx1250_scale(90), {{200, 90}}, {}, {}},
      {aiter_weights(), {{16, 64}, {48, 128}}, {{8, 64}, {16, 32}}, {"16", "64"}},
      {aiter_weights(32), {{16, 32}, {48, 96}}, {{17, 32}, {16, 48}}, {"32", "64"}},
      {aiter_scales(false), {{32, 8}, {96, 24}}, {{32, 12}, {48, 8}}, {"16", "64"}},
      {aiter_scales(true), {{32, 8}, {32, 1}, {96, 12}}, {{16, 8}}, {"32"}},
      {aiter_scales_all_experts(), {{256, 8}, {1, 1}, {300, 9}}, {}, {}},
      {aiter_scales_n32k4(), {{32, 4}, {96, 12}}, {{32, 6}, {40, 4}}, {"8", "64"}},
      {vllm_cpu_weights(), {{32, 32}, {96, 64}}, {{16, 32}, {32, 48}}, {"32", "64"}},
      {vllm_cpu_scales(), {{32, 1}, {96, 5}}, {{48, 1}}, {"64"}},
      {deepgemm_scales(), {{4, 4}, {1, 1}, {6, 5}}, {}, {}},
      {native_sm90_codes(32), {{64, 64}, {1, 1}, {100, 130}}, {}, {}},
      {native_sm90_codes(16), {{64, 64}, {1, 1}, {100, 130}}, {}, {}},
      {native_sm90_scales(32), {{64, 2}, {1, 1}, {100, 5}}, {}, {}},
      {native_sm90_scales(16), {{64, 4}, {1, 1}, {100, 9}}, {}, {}},
      {cpu_arm_codes(), {{8, 32}, {1, 1}, {13, 70}}, {}, {}},
      {cpu_arm_scales(32), {{8, 1}, {1, 1}, {13, 3}}, {}, {}},
      {cpu_arm_scales(16), {{8, 2}, {1, 1}, {13, 5}}, {}, {}},
      {cpu_x86_codes(X86Form::bf16), {{16, 32}, {1, 1}, {20, 70}}, {}, {}},
      {cpu_x86_codes(X86Form::int8), {{16, 32}, {1, 1}, {20, 70}}, {}, {}},
      {cpu_x86_scales(32), {{16, 1}, {1, 1}, {20, 3}}, {}, {}},
      {cpu_x86_scales(16), {{16, 2}, {1, 1}, {20, 5}}, {}, {}},
  };
}

std::string label(const Map& map, Extent size) {
  return std::string(map.name) + " " + std::to_string(size.rows) + " x " +
         std::to_string(size.cols);
}

TEST(Maps, KeepTheLawsOnWholeTilesRaggedEdgesAndTheSmallestSize) {
  for (const MapSizes& row : all_maps())
    for (const Extent size : row.takes) {
      const Result<IndexMap> map = IndexMap::bind(row.map, size);
      ASSERT_TRUE(map) << label(row.map, size) << ": " << text(map.why());
      EXPECT_EQ(map->logical(), size);
      EXPECT_EQ(broken_law(*map), "") << label(row.map, size);
    }
}

TEST(Maps, KeepTheLawsWhenTheBackendRoundsSizesUp) {
  for (const MapSizes& row : all_maps()) {
    const Extent size = row.takes.front();
    const Extent more{2 * size.rows, 2 * size.cols};
    const Result<IndexMap> map = IndexMap::bind(row.map, size, more);
    ASSERT_TRUE(map) << label(row.map, size) << ": " << text(map.why());
    EXPECT_EQ(map->logical(), size);
    EXPECT_GE(map->padded().rows, more.rows);
    EXPECT_GE(map->padded().cols, more.cols);
    EXPECT_EQ(broken_law(*map), "") << label(row.map, size);
  }
}

TEST(Maps, RefuseSizesByNamingTheRuleAndTheSizeThatWouldDo) {
  for (const MapSizes& row : all_maps())
    for (std::size_t i = 0; i < row.refuses.size(); ++i) {
      const Result<IndexMap> map = IndexMap::bind(row.map, row.refuses[i]);
      ASSERT_FALSE(map) << label(row.map, row.refuses[i]);
      const Error& why = map.why();
      EXPECT_EQ(why.id, "layout.size");
      EXPECT_NE(why.message.find(row.map.name), std::string::npos) << why.message;
      EXPECT_TRUE(why.expected.starts_with("a multiple of ")) << why.expected;
      EXPECT_TRUE(why.remedy.ends_with(" " + row.nearest[i]))
          << label(row.map, row.refuses[i]) << ": " << why.remedy;
    }
}

TEST(Maps, RefuseWhatNoMemoryHolds) {
  for (const MapSizes& row : all_maps()) {
    const std::uint64_t huge = std::uint64_t{1} << 62;
    for (const Extent size : {Extent{huge, 64}, Extent{64, huge}, Extent{huge, huge},
                              Extent{std::uint64_t{1} << 40, std::uint64_t{1} << 40}}) {
      const Result<IndexMap> map = IndexMap::bind(row.map, size);
      ASSERT_FALSE(map) << label(row.map, size);
      EXPECT_EQ(map.why().id, "layout.size");
    }
  }
}

TEST(Maps, HaveNamesOfTheirOwn) {
  // The same map may come in several widths; two different ones must not share a name.
  std::set<std::string> names;
  for (const Map& map : {plain(),
                         marlin_w4a16(),
                         marlin_w4a8(),
                         marlin_scales(),
                         marlin_scales_grouped(),
                         marlin_scales_single(),
                         marlin_scales_single_exchanged(),
                         scales_128x4(),
                         sm90_weights(false),
                         sm90_weights(true),
                         sm90_scales(),
                         sm90_scales_folded(),
                         triton_strided(),
                         triton_hopper_value(3, {16, 32}),
                         triton_hopper_value(2, {16, 32}),
                         triton_hopper_scale(8),
                         triton_blackwell_value(),
                         triton_blackwell_value_shuffled(),
                         triton_blackwell_scale(),
                         triton_cdna4_scale(false),
                         triton_gfx1250_scale(4),
                         aiter_weights(),
                         aiter_scales(false),
                         aiter_scales_all_experts(),
                         aiter_scales_n32k4(),
                         vllm_cpu_weights(),
                         vllm_cpu_scales(),
                         deepgemm_scales(),
                         native_sm90_codes(32),
                         native_sm90_codes(16),
                         native_sm90_scales(32),
                         native_sm90_scales(16),
                         cpu_arm_codes(),
                         cpu_arm_scales(32),
                         cpu_x86_codes(X86Form::bf16),
                         cpu_x86_codes(X86Form::int8),
                         cpu_x86_scales(32)})
    EXPECT_TRUE(names.insert(std::string(map.name)).second) << map.name;
}

// Codes and scales of one record lie beside each other and leave no gap.
TEST(Maps, TheTwoPartsOfARecordFillIt) {
  for (const std::uint32_t block : {32u, 16u}) {
    const Extent size{100, 130};
    const Result<IndexMap> codes = IndexMap::bind(native_sm90_codes(block), size);
    const Result<IndexMap> scales = IndexMap::bind(
        native_sm90_scales(block), {100, (130 + block - 1) / block}, {128, 192 / block});
    ASSERT_TRUE(codes && scales);
    ASSERT_EQ(codes->bytes(), scales->bytes());
    std::vector<unsigned> used(codes->bytes());
    for_each_place(codes->padded(), [&](Coord at) { ++used[codes->offset(at) / 2]; });
    for_each_place(scales->padded(), [&](Coord at) { used[scales->offset(at)] += 2; });
    for (std::size_t byte = 0; byte < used.size(); ++byte) ASSERT_EQ(used[byte], 2u) << byte;
  }
}

TEST(Maps, TheirTensorsHoldTheWholeStorage) {
  for (const MapSizes& row : all_maps())
    for (const Extent size : row.takes) {
      const Result<IndexMap> map = IndexMap::bind(row.map, size);
      ASSERT_TRUE(map);
      const std::uint64_t experts = row.map.name == "aiter_scales_all_experts" ? 1 : 3;
      std::uint64_t elements = 1;
      for (const std::uint64_t extent : stored_shape(*map, experts)) elements *= extent;
      // Elements of 1, 2 (nibbles) or a 32-bit word's bytes.
      const std::uint64_t bytes = experts * map->bytes();
      EXPECT_TRUE(elements == bytes || elements == 2 * bytes || 4 * elements == bytes)
          << label(row.map, size) << ": " << elements << " elements, " << bytes << " bytes";
    }
}

}  // namespace maps_test
}  // namespace fp4moe::layout
