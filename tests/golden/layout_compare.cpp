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

std::string place(const MadeTensor& result, std::uint64_t offset) {
  const std::optional<layout::Coord> at = find_coord(*result.map, offset);
  if (!at) return fmt::format("offset {}, which holds nothing", offset);
  std::string row = result.row_name ? result.row_name(at->row) : "";
  if (!row.empty()) row = fmt::format(" ({})", row);
  const layout::Extent logical = result.map->logical();
  const bool is_padding = at->row >= logical.rows || at->col >= logical.cols;
  return fmt::format("row {}{}, column {}{}, offset {}", at->row, row, at->col,
                     is_padding ? " (padding)" : "", offset);
}

// The two storages differ at byte `at` of expert `expert`; both spans are that expert's.
Mismatch difference(const MadeTensor& result, std::uint64_t expert, std::uint64_t at,
                    std::span<const std::byte> expected, std::span<const std::byte> found) {
  const std::string where = result.expert_bytes == 0
                                ? fmt::format("tensor {}", result.name)
                                : fmt::format("tensor {}, expert {}", result.name, expert);
  const std::uint64_t bytes =
      result.map != nullptr && result.map->map().element == layout::Element::byte
          ? result.assignment_bytes
          : tensor::row(result.dtype).block_bytes;
  if (result.map == nullptr || result.map->map().element == layout::Element::byte) {
    const std::uint64_t offset = at / bytes;
    const std::uint64_t size = std::min<std::uint64_t>(bytes, expected.size() - offset * bytes);
    return {fmt::format(
                "{}, {}", where,
                result.map != nullptr ? place(result, offset) : fmt::format("element {}", offset)),
            hex(expected.subspan(offset * bytes, size)), hex(found.subspan(offset * bytes, size))};
  }
  // A code's bits may lie in two bytes; the offsets of a half word cover both.
  const std::uint64_t first = at / 2 * 4,
                      end = std::min<std::uint64_t>(first + 4, 2 * expected.size());
  std::uint64_t offset = first;
  while (offset + 1 < end && result.map->get(expected, offset) == result.map->get(found, offset))
    ++offset;
  return {fmt::format("{}, {}", where, place(result, offset)),
          fmt::format("code {}", result.map->get(expected, offset)),
          fmt::format("code {}", result.map->get(found, offset))};
}

std::optional<Mismatch> first_difference(const MadeTensor& result,
                                         std::span<const std::byte> expected) {
  const std::size_t size = std::min(expected.size(), result.bytes.size());
  const auto at = static_cast<std::uint64_t>(
      std::ranges::mismatch(expected.first(size), result.bytes.first(size)).in1 - expected.begin());
  if (at == size) return std::nullopt;
  const std::uint64_t each = result.expert_bytes == 0 ? result.bytes.size() : result.expert_bytes;
  const std::uint64_t expert = at / each, begin = expert * each;
  const std::uint64_t length = std::min<std::uint64_t>(each, size - begin);
  return difference(result, expert, at - begin, expected.subspan(begin, length),
                    result.bytes.subspan(begin, length));
}

// The stride of an axis of one element says nothing.
bool same_strides(const tensor::Shape& wanted, const layout::Shape& result) {
  if (wanted.size() != result.strides.size()) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (result.extents[i] != 1 && wanted[i] != result.strides[i]) return false;
  return true;
}

Mismatch differs(const MadeTensor& result, std::string_view what, std::string expected,
                 std::string found) {
  return {fmt::format("tensor {}: its {}", result.name, what), std::move(expected),
          std::move(found)};
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

std::optional<Mismatch> compare(const LayoutOutput& wanted, const MadeTensor& result) {
  if (wanted.shape != result.shape.extents)
    return differs(result, "shape differs", tensor::text(wanted.shape),
                   tensor::text(result.shape.extents));
  if (wanted.bytes != result.bytes.size())
    return differs(result, "size in bytes differs", std::to_string(wanted.bytes),
                   std::to_string(result.bytes.size()));
  if (std::optional<Mismatch> found = first_difference(result, wanted.head)) return found;
  if (const std::string ours = sha256_hex(result.bytes); ours != wanted.sha256)
    return Mismatch{
        fmt::format("tensor {} differs beyond its first {} bytes", result.name, wanted.head.size()),
        "SHA-256 " + wanted.sha256, ours};
  if (wanted.strides && !same_strides(*wanted.strides, result.shape))
    return differs(result, "strides differ", tensor::text(*wanted.strides),
                   tensor::text(result.shape.strides));
  if (wanted.dtype != result.dtype)
    return differs(result, "type differs", std::string(tensor::name(wanted.dtype)),
                   std::string(tensor::name(result.dtype)));
  if (wanted.logical && !result.logical.empty() && *wanted.logical != result.logical)
    return differs(result, "logical shape differs", tensor::text(*wanted.logical),
                   tensor::text(result.logical));
  if (!wanted.layout.empty() && wanted.layout != result.layout)
    return differs(result, "layout differs", wanted.layout, std::string(result.layout));
  return std::nullopt;
}

std::optional<Mismatch> compare_bytes(std::string_view what, std::span<const std::byte> expected,
                                      const MadeTensor& found) {
  std::optional<Mismatch> mismatch = first_difference(found, expected);
  if (mismatch) mismatch->what = fmt::format("{}: {}", what, mismatch->what);
  return mismatch;
}

}  // namespace fp4moe::golden
