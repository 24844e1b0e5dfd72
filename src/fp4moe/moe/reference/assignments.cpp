#include "fp4moe/moe/reference/assignments.hpp"

namespace fp4moe::moe::reference {

AssignmentGroups group_rows(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                            std::uint64_t end) {
  const Prepared& in = call.in;
  AssignmentGroups result{.first_row = begin, .top_k = in.top_k};
  result.order.sort(call, experts, begin, end);
  result.assignments.resize(result.order.size());
  for (std::size_t i = 0; i < result.order.positions.size(); ++i) {
    if (result.order.positions[i] == AssignmentGroups::kNone) continue;
    const std::uint64_t number = begin * in.top_k + i;
    result.assignments[result.order.positions[i]] = {
        .row = number / in.top_k,
        .number = number,
        .expert = static_cast<std::size_t>(local_position(call, experts, in.ids[number])),
        .weight = call.weight_on_input ? 1.0 : double{in.weights[number]}};
  }
  return result;
}

AssignmentGroups group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end) {
  AssignmentGroups result;
  std::vector<std::uint32_t>& begins = result.order.begins;
  begins.push_back(0);
  for_each_occupied(
      call.in, begin, end,
      [&](std::size_t expert, std::uint64_t row) {
        result.assignments.push_back({.row = row, .number = row, .expert = expert});
      },
      [&] { begins.push_back(static_cast<std::uint32_t>(result.assignments.size())); });
  return result;
}

}  // namespace fp4moe::moe::reference
