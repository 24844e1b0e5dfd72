#include "fp4moe/moe/expert_order.hpp"

namespace fp4moe::moe {

std::int64_t local_position(const ExpertsCall& call, std::uint64_t experts, std::int32_t id) {
  if (id < 0) return -1;
  const auto index = static_cast<std::uint64_t>(id);
  if (call.expert_map.empty()) return index < experts ? id : -1;
  if (index >= call.expert_map.size()) return -1;
  const std::int32_t position = call.expert_map[index];
  return position >= 0 && static_cast<std::uint64_t>(position) < experts ? position : -1;
}

void ExpertOrder::sort(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                       std::uint64_t end) {
  const std::span<const std::int32_t> ids =
      call.in.ids.subspan(begin * call.in.top_k, (end - begin) * call.in.top_k);
  begins.assign(experts + 1, 0);
  positions.resize(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t expert = local_position(call, experts, ids[i]);
    positions[i] = expert < 0 ? kNone : static_cast<std::uint32_t>(expert);
    if (expert >= 0) ++begins[static_cast<std::size_t>(expert) + 1];
  }
  for (std::size_t e = 0; e < experts; ++e) begins[e + 1] += begins[e];
  next_.assign(begins.begin(), begins.end() - 1);
  for (std::uint32_t& position : positions)
    if (position != kNone) position = next_[position]++;
}

std::uint64_t occupied(const Prepared& in) {
  std::uint64_t rows = 0;
  for (const std::int32_t count : in.counts) rows += static_cast<std::uint64_t>(count);
  return rows;
}

}  // namespace fp4moe::moe
