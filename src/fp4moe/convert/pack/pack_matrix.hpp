// Moves one matrix into a layout's storage and back. The fast path runs kernels that derive from
// the map (kernels/cpu/shuffle.hpp); the map path asks the map for every element and is what the
// fast one is compared with.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::convert {

enum class PackPath : std::uint8_t { fast, map };

using ByteTable = std::array<std::uint8_t, 256>;

// rows[r] is where row r of the padded matrix comes from, null for padding; each holds the logical
// columns: bytes, or nibbles two to a byte. `table` translates source bytes first.
struct MatrixSource {
  std::span<const std::byte* const> rows{};
  const ByteTable* table = nullptr;
};
struct MatrixTarget {
  std::span<std::byte* const> rows{};  // null: not wanted
  const ByteTable* table = nullptr;    // applied last
};

// Writes every byte of `out` that belongs to this part, padding included; out.size() is
// map.bytes(). Depends on its arguments alone.
void pack_matrix(const layout::IndexMap& map, const MatrixSource& from, std::span<std::byte> out,
                 PackPath path = PackPath::fast);
void unpack_matrix(const layout::IndexMap& map, std::span<const std::byte> packed,
                   const MatrixTarget& to, PackPath path = PackPath::fast);

// True if the fast path has kernels for this map on this machine, for tests and `bench pack`.
bool has_fast_path(const layout::IndexMap& map);

}  // namespace fp4moe::convert
