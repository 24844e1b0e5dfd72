#include "fp4moe/convert/folder/locate.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace fp4moe::convert {
namespace {

// Row after row of the padded matrix, as the kernel's rows and columns count.
std::optional<Difference> first_element(const layout::IndexMap& map, std::string_view tensor,
                                        std::span<const std::byte> expected,
                                        std::span<const std::byte> found) {
  if (expected.size() < map.bytes() || found.size() < map.bytes()) return std::nullopt;
  for (std::uint64_t row = 0; row < map.padded().rows; ++row) {
    for (std::uint64_t col = 0; col < map.padded().cols; ++col) {
      const std::uint64_t offset = map.offset({row, col});
      const std::uint8_t want = map.get(expected, offset), have = map.get(found, offset);
      if (want == have) continue;
      return Difference{
          .where = fmt::format("row {}, column {} of {}, offset {}", row, col, tensor, offset),
          .expected = fmt::format("0x{:02x}", want),
          .found = fmt::format("0x{:02x}", have)};
    }
  }
  return std::nullopt;
}

}  // namespace

Difference locate_byte(std::span<const std::byte> expected, std::span<const std::byte> found,
                       std::uint64_t begin) {
  const std::size_t both = std::min(expected.size(), found.size());
  const auto unequal = std::ranges::mismatch(expected.first(both), found.first(both)).in1;
  const auto at = static_cast<std::size_t>(unequal - expected.begin());
  const auto shown = [at](std::span<const std::byte> bytes) {
    return at < bytes.size() ? fmt::format("0x{:02x}", static_cast<unsigned>(bytes[at]))
                             : std::string("nothing");
  };
  return {.where = fmt::format("byte {}", begin + at),
          .expected = shown(expected),
          .found = shown(found)};
}

Difference locate(const LayerPacker& packer, std::string_view tensor,
                  std::span<const std::byte> expected, std::span<const std::byte> found) {
  for (const layout::IndexMap* map : packer.maps(tensor))
    if (const auto element = first_element(*map, tensor, expected, found)) return *element;
  return locate_byte(expected, found);
}

}  // namespace fp4moe::convert
