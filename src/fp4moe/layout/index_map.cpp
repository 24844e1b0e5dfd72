#include "fp4moe/layout/index_map.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::layout {
namespace {

constexpr std::uint64_t kMax = std::uint64_t{1} << 48;  // offsets of one matrix

Error refuse(const Map& map, std::string_view what, std::uint64_t found, std::uint32_t need) {
  return usage("layout.size", fmt::format("layout {} cannot take {} {}", map.name, found, what))
      .expects(fmt::format("a multiple of {}", need), fmt::format("{}", found))
      .try_this(fmt::format("pad to {}", round_up(found == 0 ? 1 : found, need)));
}

Error too_large(const Map& map) {
  return usage("layout.size", fmt::format("the matrix is too large for layout {}", map.name))
      .expects(fmt::format("at most {} offsets", kMax), "more")
      .try_this("see that the sizes are those of one expert");
}

// The word of scattered bits that an offset lies in.
std::uint32_t word_at(std::span<const std::byte> storage, std::uint64_t offset) {
  std::uint32_t word = 0;
  for (unsigned byte = 0; byte < 4; ++byte)
    word |= std::to_integer<std::uint32_t>(storage[offset / 8 * 4 + byte]) << (8 * byte);
  return word;
}

}  // namespace

Result<IndexMap> IndexMap::bind(const Map& map, Extent logical, Extent stretched) {
  const std::string_view cols = map.element == Element::nibble ? "columns (codes)" : "columns";
  const Extent min{std::max(logical.rows, stretched.rows), std::max(logical.cols, stretched.cols)};
  if (logical.rows == 0 || min.rows % map.need_rows != 0)
    return refuse(map, "rows", min.rows, map.need_rows);
  if (logical.cols == 0 || min.cols % map.need_cols != 0)
    return refuse(map, cols, min.cols, map.need_cols);
  if (min.rows > kMax || min.cols > kMax) return too_large(map);

  IndexMap bound;
  bound.map_ = map;
  bound.logical_ = logical;
  bound.padded_ = {round_up(min.rows, map.pad_rows), round_up(min.cols, map.pad_cols)};
  const std::uint64_t factors[] = {bound.padded_.rows, bound.padded_.cols,
                                   map.of == 0 ? 1 : map.record};
  const std::optional<std::uint64_t> offsets = checked_product(factors);
  if (!offsets || *offsets > kMax) return too_large(map);
  bound.offsets_ = map.of == 0 ? *offsets : *offsets / map.of;
  if (map.element == Element::nibble && bound.offsets_ % 2 != 0)
    return refuse(map, cols, logical.cols, 2);
  return bound;
}

std::uint8_t IndexMap::get(std::span<const std::byte> storage, std::uint64_t offset) const {
  if (map_.element == Element::byte) return std::to_integer<std::uint8_t>(storage[offset]);
  if (map_.code == nullptr) {
    const auto both = std::to_integer<unsigned>(storage[offset / 2]);
    return static_cast<std::uint8_t>((both >> (offset % 2 * 4)) & 15u);
  }
  return map_.code->collect(static_cast<unsigned>(offset % 8), word_at(storage, offset));
}

void IndexMap::set(std::span<std::byte> storage, std::uint64_t offset, std::uint8_t value) const {
  if (map_.element == Element::byte) {
    storage[offset] = std::byte{value};
    return;
  }
  if (map_.code == nullptr) {
    const unsigned shift = offset % 2 * 4;
    const auto old = std::to_integer<unsigned>(storage[offset / 2]);
    storage[offset / 2] = static_cast<std::byte>((old & ~(15u << shift)) | (value & 15u) << shift);
    return;
  }
  const auto in_word = static_cast<unsigned>(offset % 8);
  const unsigned old = map_.code->collect(in_word, word_at(storage, offset));
  const std::uint32_t change =
      map_.code->spread(in_word, static_cast<std::uint8_t>((old ^ value) & 15u));
  for (unsigned byte = 0; byte < 4; ++byte)
    storage[offset / 8 * 4 + byte] ^= static_cast<std::byte>(change >> (8 * byte));
}

}  // namespace fp4moe::layout
