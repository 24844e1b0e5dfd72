// A packed tensor beside what a golden case says of it. A difference is traced back through the map
// to the expert, row and column whose element lies there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/layout/index_map.hpp"
#include "fp4moe/layout/layout.hpp"
#include "golden/layout_data.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

struct MadeTensor {
  std::string_view name{};
  tensor::DType dtype = tensor::DType::u8;
  layout::Shape shape{};      // as its kernel sees it
  tensor::Shape logical{};    // as the reference names it; empty: not told
  std::string_view layout{};  // the reference's name for the layout; empty: not told
  std::uint64_t expert_bytes = 0;
  std::span<const std::byte> bytes{};     // of all experts
  const layout::IndexMap* map = nullptr;  // of one expert; null: elements one after another
  std::uint64_t assignment_bytes = 1;     // with a map of bytes: how many lie side by side
  // What a row of the map is called; empty: its number says enough.
  std::function<std::string(std::uint64_t row)> row_name{};
};

std::optional<Mismatch> compare(const LayoutOutput& wanted, const MadeTensor& result);

// The same storage made in two ways. `what` says which two.
std::optional<Mismatch> compare_bytes(std::string_view what, std::span<const std::byte> expected,
                                      const MadeTensor& found);

// The element at an offset, or nothing if the offset is padding.
std::optional<layout::Coord> find_coord(const layout::IndexMap& map, std::uint64_t offset);

}  // namespace fp4moe::golden
