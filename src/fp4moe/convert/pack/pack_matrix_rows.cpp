#include "fp4moe/convert/pack/pack_matrix_rows.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/kernels/cpu/translation.hpp"

namespace fp4moe::convert {

using layout::Element;
using layout::IndexMap;

const kernels::cpu::ShuffleSet& machine_shuffles() {
  static const kernels::cpu::ShuffleSet& chosen =
      kernels::cpu::pick(kernels::cpu::shuffle_sets(), kernels::cpu::machine_features());
  return chosen;
}

std::uint64_t row_bytes(const IndexMap& map) {
  const std::uint64_t cols = map.logical().cols;
  return map.map().element == Element::byte ? cols : (cols + 1) / 2;
}

Translator::Translator(const ByteTable* table) {
  if (table != nullptr) table_ = kernels::cpu::make_translation(*table);
}

namespace {

struct RowMove {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t size = 0;
};

// Rows and `padding` after each, without a call or a variable in memory: small stores between those
// of whole cache lines would make some CPUs read lines before they write them.
[[gnu::noinline]] void move_rows(std::span<const RowMove> moves,
                                 std::span<const std::byte> padding) {
  constexpr std::uint64_t kLine = 64, kStep = 16, kLong = 4096;
  const auto move = [](const std::byte* from, std::byte* to, std::uint64_t size) {
    if (size >= kLong) {
      std::memcpy(to, from, size);
      return;
    }
    std::uint64_t i = 0;
    for (; i + kLine <= size; i += kLine) std::memcpy(to + i, from + i, kLine);
    for (; i + kStep <= size; i += kStep) std::memcpy(to + i, from + i, kStep);
    for (; i < size; ++i) to[i] = from[i];
  };
  for (const RowMove& row : moves) {
    move(row.from, row.to, row.size);
    move(padding.data(), row.to + row.size, padding.size());
  }
}

// Rows in the order of their sources in memory, as indices into `sources`; empty: unchanged. Two
// ascending sequences (gate and up rows) are merged. Otherwise a table with an entry for each
// address gives the order. If addresses are too sparse or sorting would not pay, rows stay
// unchanged.
std::vector<std::uint32_t> by_source(std::span<const std::byte* const> sources,
                                     std::uint64_t row_size) {
  constexpr std::uint64_t kWorthIt = 512;
  const auto address = [&](std::size_t row) {
    return reinterpret_cast<std::uintptr_t>(sources[row]);
  };
  std::size_t split = 0, splits = 0;
  std::uintptr_t last = 0, lowest = UINTPTR_MAX, highest = 0;
  for (std::size_t row = 0; row < sources.size(); ++row) {
    if (sources[row] == nullptr) continue;
    if (address(row) < last) {
      split = row;
      ++splits;
    }
    last = address(row);
    lowest = std::min(lowest, last);
    highest = std::max(highest, last);
  }
  if (splits == 0) return {};
  std::vector<std::uint32_t> order;
  order.reserve(sources.size());
  if (splits == 1) {
    for (std::size_t a = 0, b = split; a < split || b < sources.size();)
      order.push_back(static_cast<std::uint32_t>(
          b == sources.size() || (a < split && address(a) <= address(b)) ? a++ : b++));
    return order;
  }
  const std::uint64_t entries = (highest - lowest) / row_size + 1;
  if (row_size < kWorthIt || entries > 4 * sources.size()) return {};
  std::vector<std::uint32_t> at(entries, 0);  // counted from 1
  for (std::size_t row = 0; row < sources.size(); ++row) {
    if (sources[row] == nullptr) {
      order.push_back(static_cast<std::uint32_t>(row));
      continue;
    }
    std::uint32_t& entry = at[(address(row) - lowest) / row_size];
    if (entry != 0) return {};
    entry = static_cast<std::uint32_t>(row + 1);
  }
  for (const std::uint32_t entry : at)
    if (entry != 0) order.push_back(entry - 1);
  return order;
}

}  // namespace

void pack_rows(const IndexMap& map, const MatrixSource& from, std::span<std::byte> out) {
  constexpr std::size_t kTogether = 256;  // moves
  const std::uint64_t rows = map.padded().rows, real = row_bytes(map), padded = out.size() / rows;
  const std::vector<std::byte> padding(padded, std::byte{map.map().padding});
  const std::span<const std::byte> end = std::span(padding).first(padded - real);
  const Translator translate(from.table);
  const std::size_t sources = std::min<std::uint64_t>(from.rows.size(), rows);
  const std::vector<std::uint32_t> order = by_source(from.rows.first(sources), real);
  std::vector<RowMove> moves;
  moves.reserve(kTogether);
  for (std::uint64_t i = 0; i < rows; ++i) {
    const std::uint64_t row = i < order.size() ? order[i] : i;
    const std::byte* const source = row < sources ? from.rows[row] : nullptr;
    std::byte* const target = out.data() + row * padded;
    if (source != nullptr && translate) {
      translate(source, target, real);
      std::memcpy(target + real, end.data(), end.size());
      continue;
    }
    if (!moves.empty() && moves.back().from + moves.back().size == source &&
        moves.back().to + moves.back().size == target) {
      moves.back().size += real;  // rows that stay together go together
      continue;
    }
    if (moves.size() == kTogether) {
      move_rows(moves, end);
      moves.clear();
    }
    moves.push_back({source != nullptr ? source : padding.data(), target, real});
  }
  move_rows(moves, end);
}

void unpack_rows(const IndexMap& map, std::span<const std::byte> packed, const MatrixTarget& to) {
  const std::uint64_t real = row_bytes(map), padded = packed.size() / map.padded().rows;
  const Translator translate(to.table);
  for (std::uint64_t row = 0; row < to.rows.size(); ++row) {
    if (to.rows[row] == nullptr) continue;
    std::memcpy(to.rows[row], packed.data() + row * padded, real);
    if (translate) translate(to.rows[row], to.rows[row], real);
  }
}

}  // namespace fp4moe::convert
