#include "fp4moe/moe/cpu/units.hpp"

#include <algorithm>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"

namespace fp4moe::moe::cpu {

void Pass::group(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                 std::uint64_t end) {
  if (call.in.format == TokenFormat::batched)
    group_batches(call, begin, end);
  else
    group_rows(call, experts, begin, end);
  cut_units(experts);
}

void Pass::group_rows(const ExpertsCall& call, std::uint64_t experts, std::uint64_t begin,
                      std::uint64_t end) {
  const Prepared& in = call.in;
  width = in.top_k;
  rows.resize(end - begin);
  for (std::uint64_t row = begin; row < end; ++row) rows[row - begin] = row;
  order_.sort(call, experts, begin, end);
  assignments.resize(order_.size());
  const std::uint64_t first = begin * width;
  for (std::size_t i = 0; i < order_.positions.size(); ++i) {
    if (order_.positions[i] == kNone) continue;
    assignments[order_.positions[i]] = {
        .number = first + i,
        .item = static_cast<std::uint32_t>(i / width),
        .weight = call.weight_on_input ? 1.0f : in.weights[first + i]};
  }
}

void Pass::group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end) {
  width = 1;
  rows.clear();
  assignments.clear();
  order_.positions.clear();
  order_.begins.assign(1, 0);
  for_each_occupied(
      call.in, begin, end,
      [&](std::size_t, std::uint64_t row) {
        const auto item = static_cast<std::uint32_t>(rows.size());
        rows.push_back(row);
        order_.positions.push_back(item);
        assignments.push_back({.number = row, .item = item});
      },
      [&] { order_.begins.push_back(static_cast<std::uint32_t>(assignments.size())); });
}

// Experts with more assignments than a kernel takes are cut evenly.
void Pass::cut_units(std::uint64_t experts) {
  constexpr std::uint64_t kMax = kernels::cpu::kGemmTokens, kStep = kernels::cpu::kStepTokens;
  units.clear();
  by_size.clear();
  first_units.assign(1, 0);
  for (std::size_t e = 0; e < experts; ++e) {
    const std::uint32_t begin = order_.begins[e], count = order_.begins[e + 1] - begin;
    const std::uint64_t parts = ceil_div(count, kMax);
    const std::uint64_t max_tokens = parts == 0 ? 1 : round_up(ceil_div(count, parts), kStep);
    for (std::uint64_t at = 0; at < count; at += max_tokens) {
      const auto number = static_cast<std::uint32_t>(units.size());
      const auto taken =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(max_tokens, count - at));
      units.push_back({.expert = static_cast<std::uint32_t>(e),
                       .first = begin + static_cast<std::uint32_t>(at),
                       .count = taken});
      for (std::uint32_t s = 0; s < taken; ++s) assignments[units.back().first + s].unit = number;
    }
    first_units.push_back(static_cast<std::uint32_t>(units.size()));
    if (count != 0) by_size.push_back(static_cast<std::uint32_t>(e));
  }
  std::ranges::sort(by_size, [&](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t size_a = order_.begins[a + 1] - order_.begins[a];
    const std::uint32_t size_b = order_.begins[b + 1] - order_.begins[b];
    return size_a != size_b ? size_a > size_b : a < b;
  });
}

}  // namespace fp4moe::moe::cpu
