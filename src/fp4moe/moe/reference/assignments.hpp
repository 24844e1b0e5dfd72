// The assignments of a call, grouped by expert.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/moe/expert_order.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::reference {

struct Assignment {
  std::uint64_t row = 0;     // of the prepared tokens
  std::uint64_t number = 0;  // row * top_k + choice; of batches the row
  std::size_t expert = 0;    // local
  double weight = 1.0;       // of the router
};

// Rows [begin, end) of a call's tokens. Assignments of no expert, or of another rank's, are left out.
struct AssignmentGroups {
  std::vector<Assignment> assignments{};  // by expert, then by number
  // Begins of experts; positions in `assignments`, which batches do not have.
  ExpertOrder order{};
  std::uint64_t first_row = 0, top_k = 0;

  static constexpr std::uint32_t kNone = ExpertOrder::kNone;
  std::span<const std::uint32_t> of_row(std::uint64_t row) const {
    return std::span(order.positions).subspan((row - first_row) * top_k, top_k);
  }
};

AssignmentGroups group_rows(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                            std::uint64_t end);
// Row `begin` of all occupied rows of the batches, and those after it up to `end`.
AssignmentGroups group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end);

}  // namespace fp4moe::moe::reference
