#include "fp4moe/moe/reference/assignments.hpp"

namespace fp4moe::moe::reference {

std::int64_t local_position(const ExpertsCall& call, std::uint64_t experts, std::int32_t id) {
  if (id < 0) return -1;
  const auto index = static_cast<std::uint64_t>(id);
  if (call.expert_map.empty()) return index < experts ? id : -1;
  if (index >= call.expert_map.size()) return -1;
  const std::int32_t position = call.expert_map[index];
  return position >= 0 && static_cast<std::uint64_t>(position) < experts ? position : -1;
}

AssignmentGroups group_rows(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                            std::uint64_t end) {
  const Prepared& in = call.in;
  AssignmentGroups result{.first_row = begin, .top_k = in.top_k};
  result.begins.assign(experts + 1, 0);
  std::vector<std::int64_t> positions;
  positions.reserve((end - begin) * in.top_k);
  for (std::uint64_t number = begin * in.top_k; number < end * in.top_k; ++number) {
    const std::int64_t position = local_position(call, experts, in.ids[number]);
    positions.push_back(position);
    if (position >= 0) ++result.begins[static_cast<std::size_t>(position) + 1];
  }
  for (std::size_t e = 0; e < experts; ++e) result.begins[e + 1] += result.begins[e];
  result.assignments.resize(result.begins[experts]);
  result.order.assign(positions.size(), AssignmentGroups::kNone);
  std::vector<std::size_t> next(result.begins.begin(), result.begins.end() - 1);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0) continue;
    const auto expert = static_cast<std::size_t>(positions[i]);
    const std::uint64_t number = begin * in.top_k + i;
    result.order[i] = next[expert]++;
    result.assignments[result.order[i]] = {
        .row = number / in.top_k,
        .number = number,
        .expert = expert,
        .weight = call.weight_on_input ? 1.0 : double{in.weights[number]}};
  }
  return result;
}

AssignmentGroups group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end) {
  const Prepared& in = call.in;
  AssignmentGroups result;
  result.begins.push_back(0);
  std::uint64_t seen = 0;
  for (std::size_t e = 0; e < in.counts.size(); ++e) {
    const auto count = static_cast<std::uint64_t>(in.counts[e]);
    for (std::uint64_t i = 0; i < count; ++i, ++seen) {
      if (seen < begin || seen >= end) continue;
      const std::uint64_t row = e * in.capacity + i;
      result.assignments.push_back({.row = row, .number = row, .expert = e});
    }
    result.begins.push_back(result.assignments.size());
  }
  return result;
}

std::uint64_t occupied(const Prepared& in) {
  std::uint64_t rows = 0;
  for (const std::int32_t count : in.counts) rows += static_cast<std::uint64_t>(count);
  return rows;
}

}  // namespace fp4moe::moe::reference
