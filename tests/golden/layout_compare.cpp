#include "golden/layout_compare.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/sha256.hpp"

namespace fp4moe::golden {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text = "0x";
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

std::string place(const MadeTensor& made, std::uint64_t offset) {
  const std::optional<layout::Coord> at = find_coord(*made.map, offset);
  if (!at) return fmt::format("offset {}, which holds nothing", offset);
  std::string row = made.row_name ? made.row_name(at->row) : "";
  if (!row.empty()) row = fmt::format(" ({})", row);
  const layout::Extent logical = made.map->logical();
  const bool is_padding = at->row >= logical.rows || at->col >= logical.cols;
  return fmt::format("row {}{}, column {}{}, offset {}", at->row, row, at->col,
                     is_padding ? " (padding)" : "", offset);
}

// The two storages differ at byte `at` of expert `expert`; both spans are that expert's.
Mismatch difference(const MadeTensor& made, std::uint64_t expert, std::uint64_t at,
                    std::span<const std::byte> expected, std::span<const std::byte> found) {
  const std::string where = made.expert_bytes == 0
                                ? fmt::format("tensor {}", made.name)
                                : fmt::format("tensor {}, expert {}", made.name, expert);
  const std::uint64_t bytes =
      made.map != nullptr && made.map->map().element == layout::Element::byte
          ? made.assignment_bytes
          : tensor::row(made.dtype).block_bytes;
  if (made.map == nullptr || made.map->map().element == layout::Element::byte) {
    const std::uint64_t offset = at / bytes;
    const std::uint64_t size = std::min<std::uint64_t>(bytes, expected.size() - offset * bytes);
    return {fmt::format("{}, {}", where,
                        made.map != nullptr ? place(made, offset) : fmt::format("element {}", offset)),
            hex(expected.subspan(offset * bytes, size)), hex(found.subspan(offset * bytes, size))};
  }
  // A code's bits may lie in two bytes; the offsets of a half word cover both.
  const std::uint64_t first = at / 2 * 4,
                      end = std::min<std::uint64_t>(first + 4, 2 * expected.size());
  std::uint64_t offset = first;
  while (offset + 1 < end && made.map->get(expected, offset) == made.map->get(found, offset)) ++offset;
  return {fmt::format("{}, {}", where, place(made, offset)),
          fmt::format("code {}", made.map->get(expected, offset)),
          fmt::format("code {}", made.map->get(found, offset))};
}

std::optional<Mismatch> first_difference(const MadeTensor& made,
                                         std::span<const std::byte> expected) {
  const std::size_t size = std::min(expected.size(), made.bytes.size());
  const auto at = static_cast<std::uint64_t>(
      std::ranges::mismatch(expected.first(size), made.bytes.first(size)).in1 - expected.begin());
  if (at == size) return std::nullopt;
  const std::uint64_t each = made.expert_bytes == 0 ? made.bytes.size() : made.expert_bytes;
  const std::uint64_t expert = at / each, begin = expert * each;
  const std::uint64_t length = std::min<std::uint64_t>(each, size - begin);
  return difference(made, expert, at - begin, expected.subspan(begin, length),
                    made.bytes.subspan(begin, length));
}

// The stride of an axis of one element says nothing.
bool same_strides(const tensor::Shape& wanted, const layout::Shape& made) {
  if (wanted.size() != made.strides.size()) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (made.extents[i] != 1 && wanted[i] != made.strides[i]) return false;
  return true;
}

Mismatch differs(const MadeTensor& made, std::string_view what, std::string expected,
                 std::string found) {
  return {fmt::format("tensor {}: its {}", made.name, what), std::move(expected), std::move(found)};
}

}  // namespace

std::optional<layout::Coord> find_coord(const layout::IndexMap& map, std::uint64_t offset) {
  const layout::Extent padded = map.padded();
  std::vector<std::uint64_t> cols(padded.cols);
  for (std::uint64_t col = 0; col < padded.cols; ++col) cols[col] = map.col_part(col);
  for (std::uint64_t row = 0; row < padded.rows; ++row) {
    const std::uint64_t before = map.map().begin + map.row_part(row);
    if (before > offset) continue;
    const auto found = std::ranges::find(cols, offset - before);
    if (found != cols.end())
      return layout::Coord{row, static_cast<std::uint64_t>(found - cols.begin())};
  }
  return std::nullopt;
}

std::optional<Mismatch> compare(const LayoutOutput& wanted, const MadeTensor& made) {
  if (wanted.shape != made.shape.extents)
    return differs(made, "shape differs", tensor::text(wanted.shape),
                   tensor::text(made.shape.extents));
  if (wanted.bytes != made.bytes.size())
    return differs(made, "size in bytes differs", std::to_string(wanted.bytes),
                   std::to_string(made.bytes.size()));
  if (std::optional<Mismatch> found = first_difference(made, wanted.head)) return found;
  if (const std::string ours = sha256_hex(made.bytes); ours != wanted.sha256)
    return Mismatch{
        fmt::format("tensor {} differs beyond its first {} bytes", made.name, wanted.head.size()),
        "SHA-256 " + wanted.sha256, ours};
  if (wanted.strides && !same_strides(*wanted.strides, made.shape))
    return differs(made, "strides differ", tensor::text(*wanted.strides),
                   tensor::text(made.shape.strides));
  if (wanted.dtype != made.dtype)
    return differs(made, "type differs", std::string(tensor::name(wanted.dtype)),
                   std::string(tensor::name(made.dtype)));
  if (wanted.logical && !made.logical.empty() && *wanted.logical != made.logical)
    return differs(made, "logical shape differs", tensor::text(*wanted.logical),
                   tensor::text(made.logical));
  if (!wanted.layout.empty() && wanted.layout != made.layout)
    return differs(made, "layout differs", wanted.layout, std::string(made.layout));
  return std::nullopt;
}

std::optional<Mismatch> compare_bytes(std::string_view what, std::span<const std::byte> expected,
                                      const MadeTensor& found) {
  std::optional<Mismatch> mismatch = first_difference(found, expected);
  if (mismatch) mismatch->what = fmt::format("{}: {}", what, mismatch->what);
  return mismatch;
}

}  // namespace fp4moe::golden
