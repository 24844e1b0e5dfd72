// The assignments of a call in the order of their experts, as every engine on a CPU computes them: by
// expert, then by number. Those of no expert here are left out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe {

// Keeps its memory from call to call.
struct ExpertOrder {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::vector<std::uint32_t> begins{};     // [experts + 1]: where an expert's assignments begin
  std::vector<std::uint32_t> positions{};  // [assignments of the rows]: in this order, or kNone

  std::uint32_t size() const { return begins.back(); }
  // Rows [begin, end) of a call's tokens. Of batches: see for_each_occupied.
  void sort(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin, std::uint64_t end);

 private:
  std::vector<std::uint32_t> next_{};
};

// The local position of an id, or -1.
std::int64_t local_position(const ExpertsCall& call, std::uint64_t experts, std::int32_t id);

// How many rows of the batches are occupied.
std::uint64_t occupied(const Prepared& in);
// Calls row(expert, row) for the occupied rows of the batches, counted through by expert, from number
// `begin` up to `end`; and after_expert() behind each expert's.
template <class Row, class AfterExpert>
void for_each_occupied(const Prepared& in, std::uint64_t begin, std::uint64_t end, const Row& row,
                       const AfterExpert& after_expert) {
  std::uint64_t seen = 0;
  for (std::size_t e = 0; e < in.counts.size(); ++e) {
    const auto count = static_cast<std::uint64_t>(in.counts[e]);
    const std::uint64_t from = begin > seen ? begin - seen : 0;
    const std::uint64_t to = end > seen ? end - seen : 0;
    for (std::uint64_t i = from; i < to && i < count; ++i) row(e, e * in.capacity + i);
    seen += count;
    after_expert();
  }
}

}  // namespace fp4moe::moe
