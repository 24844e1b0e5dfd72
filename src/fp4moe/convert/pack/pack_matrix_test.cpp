// Every map, fast path against map path, whole tiles and ragged edges, padding rows in between.
#include "fp4moe/convert/pack/pack_matrix.hpp"

#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/aiter/maps.hpp"
#include "fp4moe/backends/cpu_native/maps.hpp"
#include "fp4moe/backends/deepgemm/maps.hpp"
#include "fp4moe/backends/flashinfer_cutlass/maps.hpp"
#include "fp4moe/backends/marlin/maps.hpp"
#include "fp4moe/backends/tensor_core/maps.hpp"
#include "fp4moe/backends/triton/maps.hpp"
#include "fp4moe/backends/vllm_cpu/maps.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::convert {
namespace pack_matrix_test {

using layout::Element;
using layout::Extent;
using layout::IndexMap;
using layout::Map;

struct Case {
  Map map;
  std::vector<Extent> extents;
};

std::ostream& operator<<(std::ostream& out, const Case& given) { return out << given.map.name; }

// Extents in elements: some fill tiles and registers, some end anywhere the map allows.
std::vector<Case> cases() {
  using namespace layout;
  const std::vector<Extent> scales{{128, 16}, {256, 90}, {128, 4}, {384, 180}, {128, 20}};
  const std::vector<Extent> any{{1, 1}, {128, 16}, {100, 7}, {129, 5}, {300, 90}, {3, 33}};
  const std::vector<Extent> codes{{64, 64}, {128, 2880}, {192, 192}, {64, 128}};
  const std::vector<Extent> ragged{{64, 64}, {1, 2}, {100, 96}, {70, 416}, {17, 34}};
  return {
      {plain(), any},
      {plain(128), any},
      {backends::marlin::codes_w4a16(), {{64, 16}, {128, 48}, {64, 2880}, {192, 32}}},
      {backends::marlin::codes_w4a8(), codes},
      {backends::marlin::scales(), {{64, 1}, {128, 90}, {192, 17}, {64, 16}}},
      {backends::marlin::scales_grouped(), {{64, 1}, {128, 90}, {192, 17}}},
      {backends::marlin::scales_single(), {{32, 1}, {96, 90}, {64, 17}}},
      {scales_128x4(), any},
      {backends::flashinfer_cutlass::sm90_codes(false), codes},
      {backends::flashinfer_cutlass::sm90_codes(true), codes},
      {backends::flashinfer_cutlass::sm90_scales(), {{64, 4}, {4, 8}, {100, 92}, {7, 4}}},
      {backends::flashinfer_cutlass::sm90_scales_folded(), {{64, 4}, {128, 92}, {192, 180}}},
      {backends::triton::strided(), any},
      {backends::triton::hopper_value(3, {16, 32}), ragged},
      {backends::triton::hopper_value(3, {64, 64}), ragged},
      {backends::triton::hopper_value(2, {64, 64}), ragged},
      {backends::triton::hopper_value(3, {256, 64}), ragged},
      {backends::triton::hopper_scale(8), any},
      {backends::triton::hopper_scale(4), any},
      {backends::triton::hopper_scale(8, 4), any},
      {backends::triton::blackwell_value(), any},
      {backends::triton::blackwell_value_shuffled(), {{2, 1}, {256, 128}, {300, 200}}},
      {backends::triton::blackwell_value_shuffled(64, 128), {{2, 1}, {256, 128}, {300, 200}}},
      {backends::triton::blackwell_scale(), any},
      {backends::triton::cdna4_scale(false), {{32, 8}, {96, 88}, {64, 16}}},
      {backends::triton::cdna4_scale(true), any},
      {backends::triton::gfx1250_scale(90), any},
      {backends::triton::gfx1250_scale(3), {{128, 3}, {5, 3}}},
      {backends::aiter::codes(), {{16, 64}, {48, 128}, {64, 1472}}},
      {backends::aiter::scales(false), {{32, 8}, {96, 88}}},
      {backends::aiter::scales(true), {{32, 8}, {96, 90}, {64, 3}}},
      {backends::aiter::scales_all_experts(), any},
      {backends::aiter::scales_n32k4(), {{32, 4}, {96, 92}}},
      {backends::vllm_cpu::codes(), {{32, 32}, {96, 96}, {64, 2880}}},
      {backends::vllm_cpu::scales(), {{32, 1}, {96, 90}}},
      {backends::deepgemm::scales(), any},
      {backends::tensor_core::codes(32), ragged},
      {backends::tensor_core::codes(16), ragged},
      {backends::tensor_core::scales(32), scales},
      {backends::tensor_core::scales(16), any},
      {backends::cpu_native::arm_codes(), ragged},
      {backends::cpu_native::arm_scales(32), any},
      {backends::cpu_native::arm_scales(16), any},
      {backends::cpu_native::x86_codes(backends::cpu_native::X86Form::bf16), ragged},
      {backends::cpu_native::x86_codes(backends::cpu_native::X86Form::int8), ragged},
      {backends::cpu_native::x86_scales(32), any},
      {backends::cpu_native::x86_scales(16), any},
  };
}

struct Matrix {
  std::vector<std::byte> bytes;
  std::uint64_t row_bytes;
};

Matrix random_matrix(const IndexMap& map, std::uint64_t seed) {
  const std::uint64_t cols = map.logical().cols;
  Matrix result{{}, map.map().element == Element::nibble ? (cols + 1) / 2 : cols};
  SplitMix64 random(seed);
  result.bytes.resize(result.row_bytes * map.logical().rows);
  for (std::byte& byte : result.bytes) byte = static_cast<std::byte>(random.next());
  return result;
}

// Rows in the matrix's order; every fifth is left out as padding.
std::vector<const std::byte*> rows_of(const Matrix& matrix, const IndexMap& map) {
  std::vector<const std::byte*> rows(map.padded().rows);
  for (std::uint64_t row = 0; row < map.logical().rows; ++row)
    if (row % 5 != 4) rows[row] = matrix.bytes.data() + row * matrix.row_bytes;
  return rows;
}

class PackMatrix : public ::testing::TestWithParam<Case> {};

TEST_P(PackMatrix, FastPathAgreesWithTheMapAndUndoesItself) {
  for (const Extent extent : GetParam().extents) {
    SCOPED_TRACE(std::to_string(extent.rows) + " x " + std::to_string(extent.cols));
    const Result<IndexMap> map = IndexMap::bind(GetParam().map, extent);
    ASSERT_TRUE(map) << text(map.why());
    const Matrix matrix = random_matrix(*map, extent.rows * 1000 + extent.cols);
    const std::vector<const std::byte*> rows = rows_of(matrix, *map);
    ByteTable table{};
    for (std::size_t i = 0; i < 256; ++i) table[i] = static_cast<std::uint8_t>(255 - i);
    const bool translates = map->map().element == Element::byte;

    for (const ByteTable* with : {static_cast<const ByteTable*>(nullptr),
                                  translates ? static_cast<const ByteTable*>(&table) : nullptr}) {
      // Poison shows who writes what; records belong to two maps, so it must be the same.
      std::vector<std::byte> slow(map->bytes(), std::byte{0xA5}), fast = slow;
      pack_matrix(*map, {rows, with}, slow, PackPath::map);
      pack_matrix(*map, {rows, with}, fast, PackPath::fast);
      ASSERT_EQ(slow, fast);

      for (const PackPath path : {PackPath::map, PackPath::fast}) {
        Matrix back{std::vector<std::byte>(matrix.bytes.size(), std::byte{0x5A}), matrix.row_bytes};
        std::vector<std::byte*> targets(map->logical().rows);
        for (std::uint64_t row = 0; row < targets.size(); ++row)
          if (row % 5 != 4) targets[row] = back.bytes.data() + row * back.row_bytes;
        unpack_matrix(*map, fast, {targets, with}, path);
        for (std::uint64_t row = 0; row < targets.size(); ++row) {
          const auto begin = static_cast<std::ptrdiff_t>(row * matrix.row_bytes);
          const auto end = begin + static_cast<std::ptrdiff_t>(matrix.row_bytes);
          if (targets[row] != nullptr) {
            ASSERT_TRUE(std::equal(back.bytes.begin() + begin, back.bytes.begin() + end,
                                   matrix.bytes.begin() + begin))
                << "row " << row;
          } else {
            ASSERT_EQ(back.bytes[static_cast<std::size_t>(begin)], std::byte{0x5A});
          }
        }
      }
    }
  }
}

// A backend may round sizes up beyond what the map asks for; rows may fill their registers or not.
TEST_P(PackMatrix, ColumnsAndRowsThatABackendAddsArePadding) {
  for (const std::uint64_t cols : {32u, 88u, 160u}) {
    const Extent padded{512, 256};
    const Result<IndexMap> map = IndexMap::bind(GetParam().map, {384, cols}, padded);
    ASSERT_TRUE(map) << text(map.why());
    const Matrix matrix = random_matrix(*map, cols);
    const std::vector<const std::byte*> rows = rows_of(matrix, *map);
    std::vector<std::byte> slow(map->bytes(), std::byte{0xA5}), fast = slow;
    pack_matrix(*map, {rows}, slow, PackPath::map);
    pack_matrix(*map, {rows}, fast, PackPath::fast);
    ASSERT_EQ(slow, fast) << cols;
  }
}

TEST_P(PackMatrix, HasKernelsForShapesThatFillRegisters) {
  const Extent extent = GetParam().extents[GetParam().extents.size() > 1 ? 1 : 0];
  const Result<IndexMap> map = IndexMap::bind(GetParam().map, extent);
  ASSERT_TRUE(map);
  EXPECT_EQ(has_fast_path(*map), GetParam().map.pad_cols != 3);  // three is no power of two
}

INSTANTIATE_TEST_SUITE_P(Maps, PackMatrix, ::testing::ValuesIn(cases()), [](const auto& given) {
  return std::to_string(given.index) + "_" + std::string(given.param.map.name);
});

}  // namespace pack_matrix_test
}  // namespace fp4moe::convert
