// Laws of every map, whatever its digits are. Tests call this for each map and size.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::layout {

// Every element of the padded matrix, row after row.
template <class Visit>
void for_each_element(Extent extent, const Visit& visit) {
  for (std::uint64_t row = 0; row < extent.rows; ++row)
    for (std::uint64_t col = 0; col < extent.cols; ++col) visit(Coord{row, col});
}

// In range, and no offset used twice; all offsets used where the storage holds nothing else.
inline std::string broken_offsets(const IndexMap& map) {
  std::vector<bool> used(map.offsets());
  std::string broken;
  std::uint64_t elements = 0;
  for_each_element(map.padded(), [&](Coord at) {
    if (!broken.empty()) return;
    const std::uint64_t offset = map.offset(at);
    if (offset >= map.offsets())
      broken =
          fmt::format("({}, {}) lies in offset {} of {}", at.row, at.col, offset, map.offsets());
    else if (used[offset])
      broken = fmt::format("({}, {}) lies in offset {}, which is taken", at.row, at.col, offset);
    else
      used[offset] = true;
    ++elements;
  });
  if (!broken.empty()) return broken;
  if (map.map().record == 0 && elements != map.offsets())
    return fmt::format("{} elements fill {} offsets", elements, map.offsets());
  return {};
}

// A value that is set is read back, and nothing else changes: neither neighbors nor padding.
inline std::string broken_storage(const IndexMap& map, std::byte before) {
  const unsigned mask = map.map().element == Element::nibble ? 15 : 255;
  const std::vector<std::byte> untouched(map.bytes(), before);
  std::vector<std::byte> storage = untouched;
  const auto is_logical = [&](Coord at) {
    return at.row < map.logical().rows && at.col < map.logical().cols;
  };
  SplitMix64 random(7);
  for_each_element(map.logical(), [&](Coord at) {
    map.set(storage, map.offset(at), static_cast<std::uint8_t>(random.next() & mask));
  });
  std::string broken;
  SplitMix64 again(7);
  for_each_element(map.padded(), [&](Coord at) {
    const std::uint64_t offset = map.offset(at);
    const std::uint64_t wanted = is_logical(at) ? again.next() & mask : map.get(untouched, offset);
    const unsigned found = map.get(storage, offset);
    if (broken.empty() && found != wanted)
      broken = fmt::format("({}, {}) holds {} instead of {}", at.row, at.col, found, wanted);
  });
  return broken;
}

// Empty when the laws hold, else the first one that does not, in words.
inline std::string broken_law(const IndexMap& map) {
  const Extent logical = map.logical(), padded = map.padded();
  if (padded.rows < logical.rows || padded.cols < logical.cols) return "padding makes it smaller";
  if (padded.rows % map.map().pad_rows != 0 || padded.cols % map.map().pad_cols != 0)
    return "the padded size is not a multiple";
  for (std::string broken : {broken_offsets(map), broken_storage(map, std::byte{0}),
                             broken_storage(map, std::byte{0xFF})})
    if (!broken.empty()) return broken;
  return {};
}

}  // namespace fp4moe::layout
