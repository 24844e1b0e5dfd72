// How large a call is, and the memory that is reserved for calls: plain numbers, of which plan.hpp
// makes a plan.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

// What the path depends on.
struct CallSize {
  std::uint64_t tokens = 0, top_k = 0;  // batches: experts * capacity, 1
  OutputForm form = OutputForm::summed;
  bool has_adapters = false;
  bool in_float32 = false;  // the output
  bool is_batched = false;  // the input

  std::uint64_t slots() const { return tokens * top_k; }
};

// The largest calls that memory is reserved for.
struct WorkspaceLimits {
  std::uint64_t tokens = 0, top_k = 1;
  std::uint64_t capacity = 0;   // rows of each expert in batches; 0: none come
  std::uint64_t most_rank = 0;  // of adapters; 0: none come

  std::uint64_t slots(std::uint64_t experts) const;
};

// Parts of one piece of memory, each beginning at a multiple of this.
inline constexpr std::uint64_t kMemoryAlignment = 256;
enum class Region : std::uint8_t {
  // clang-format off
  weights,                                       // of tokens that are routed on the device
  tiles, tile_count, done, finished,             // tile_count: all other counters
  rank_of_slot, totals,
  row_of_slot, slot_of_row, expert_of_row, tile_of_row,
  own,       // tables of blocks that sort for themselves
  x,         // tokens in tiles, or rounded
  h,         // the activation's output in tiles
  y,         // rows of the second product
  raw,       // the first product, where its epilogue does not compute the activation
  low,       // A_down h of adapters
  partial, hidden, sums, counters,               // of decode
  // clang-format on
};
inline constexpr std::size_t kRegions = static_cast<std::size_t>(Region::counters) + 1;

struct WorkspacePlan {
  std::array<std::uint64_t, kRegions> at{}, bytes{};
  std::uint64_t total = 0;
};
// All of a layer that the regions depend on.
struct WorkspaceKey {
  std::uint32_t experts = 0, hidden = 0;
  std::uint32_t hidden_units = 0, hidden_groups = 0;  // w13's units, w2's groups
  std::uint32_t middle_units = 0, middle_groups = 0;  // w2's units, w13's groups
  bool fuses = false, needs_raw = false;

  friend bool operator==(const WorkspaceKey&, const WorkspaceKey&) = default;
};

}  // namespace fp4moe::moe::cuda
