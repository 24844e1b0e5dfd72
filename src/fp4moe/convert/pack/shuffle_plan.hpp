// How a map's work is cut into calls of one shuffle kernel: which rows and columns share registers,
// where each register goes, and what happens at the ragged end of a row.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "fp4moe/kernels/cpu/shuffle_list.hpp"
#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::convert {

struct ShufflePlan {
  static constexpr std::size_t kMax = kernels::cpu::kMaxShuffleRegisters;

  const kernels::cpu::ShuffleKernel* kernel = nullptr;
  std::size_t registers = 1;      // passthrough included
  std::size_t passthrough = 0;    // further bits, so that steps write whole cache lines
  std::uint64_t row_mask = 0;     // row bits that choose registers: base rows have them zero
  std::uint64_t chunk_bytes = 0;  // of a row, taken in one step
  std::uint64_t chunk_cols = 0;
  std::array<std::uint64_t, kMax> row_of{};     // of source register r, from the base row
  std::array<std::uint64_t, kMax> byte_of{};    // and from the chunk's first byte
  std::array<std::uint64_t, kMax> col_of{};     // first column of target register q in the chunk
  std::array<std::uint64_t, kMax> offset_of{};  // its byte in the storage, from the chunk's
  std::array<std::uint64_t, 16> lane_col{};     // column of a target's byte, from its first

  // Chunks at equal distances in the storage (bytes, from the row's offset). Whole chunks are
  // `runs`; the last partial chunk of a row and its padding are `edge`.
  struct Run {
    std::size_t begin = 0, count = 0;
    std::uint64_t offset = 0, step = 0;
  };
  std::vector<Run> runs{}, edge{};
  // The edge's chunks as runs; `begin` counts from the first edge chunk.
  std::vector<Run> edge_runs{};
  // All chunks of the padded row, for rows that were copied and padded first.
  std::vector<Run> padded_runs{};
  bool is_whole = false;  // no chunk reaches beyond the padded row
  // A row's byte in the storage is that of its batch of kBatch rows plus row_offset.
  static constexpr std::uint64_t kBatch = 128;
  std::array<std::uint64_t, kBatch> row_offset{};

  // True if one step of the kernel writes whole cache lines.
  bool fills_lines() const;
  kernels::cpu::PackFn pack() const;

 private:
  // The offset of the register stored as number `number`: in order, or across passthrough bits.
  std::uint64_t offset_at(std::size_t number, bool across) const;
};

// Nothing where no kernel fits: digits that are no powers of two, rows that do not fill registers.
std::optional<ShufflePlan> plan_shuffle(const layout::IndexMap& map,
                                        const kernels::cpu::ShuffleSet& set);

}  // namespace fp4moe::convert
