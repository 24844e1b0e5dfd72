// The assignments of a call, grouped by expert.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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
  std::vector<std::size_t> begins{};      // [experts + 1]
  std::vector<std::size_t>
      order{};  // [rows * top_k]: place in `assignments`, or kNone; not of batches
  std::uint64_t first_row = 0, top_k = 0;

  static constexpr std::size_t kNone = ~std::size_t{0};
  std::span<const std::size_t> of_row(std::uint64_t row) const {
    return std::span(order).subspan((row - first_row) * top_k, top_k);
  }
};

// The local position of an id, or -1.
std::int64_t local_position(const ExpertsCall& call, std::uint64_t experts, std::int32_t id);

AssignmentGroups group_rows(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                            std::uint64_t end);
// Row `begin` of all occupied rows of the batches, and those after it up to `end`.
AssignmentGroups group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end);
// How many rows of the batches are occupied.
std::uint64_t occupied(const Prepared& in);

}  // namespace fp4moe::moe::reference
