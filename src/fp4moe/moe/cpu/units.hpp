// The tokens of each expert, in units of the size that a kernel takes at once: a unit is an expert
// and at most kGemmTokens of its assignments. A pass is as many rows as the workspace holds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/moe/expert_order.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cpu {

// Approximate number of assignments in a pass. It bounds only the workspace.
inline constexpr std::uint64_t kPassAssignments = 8192;

struct CpuAssignment {
  std::uint64_t number =
      0;  // row * top_k + choice; of batches the row: where assignments are written
  std::uint32_t item = 0;  // row of the pass
  std::uint32_t unit = 0;
  float weight = 1.0f;
};

struct Unit {
  std::uint32_t expert = 0;
  std::uint32_t first = 0, count = 0;  // assignments
};

// Keeps its memory from pass to pass.
struct Pass {
  static constexpr std::uint32_t kNone = ExpertOrder::kNone;

  std::vector<CpuAssignment> assignments{};  // by expert, then by number
  std::vector<Unit> units{};                 // by expert
  std::vector<std::uint64_t> rows{};         // of the prepared tokens, one an item
  std::size_t width = 1;                     // assignments of an item
  std::vector<std::uint32_t> first_units{};  // [experts + 1]
  std::vector<std::uint32_t> by_size{};      // experts with assignments, most assignments first

  // [items * width]: position in `assignments`, or kNone.
  std::span<const std::uint32_t> order() const { return order_.positions; }

  // Rows [begin, end) of the tokens; of batches the occupied ones, counted through.
  void group(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
             std::uint64_t end);

 private:
  void group_rows(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                  std::uint64_t end);
  void group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end);
  void cut_units(std::uint64_t experts);

  ExpertOrder order_{};
};

}  // namespace fp4moe::moe::cpu
