#include "fp4moe/moe/cpu/units.hpp"

#include <algorithm>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/moe/reference/assignments.hpp"

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
  const std::uint64_t first = begin * width, count = (end - begin) * width;
  begins_.assign(experts + 1, 0);
  positions_.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    positions_[i] = reference::local_position(call, experts, in.ids[first + i]);
    if (positions_[i] >= 0) ++begins_[static_cast<std::size_t>(positions_[i]) + 1];
  }
  for (std::size_t e = 0; e < experts; ++e) begins_[e + 1] += begins_[e];
  next_.assign(begins_.begin(), begins_.end() - 1);
  assignments.resize(begins_[experts]);
  order.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    order[i] = kNone;
    if (positions_[i] < 0) continue;
    order[i] = next_[static_cast<std::size_t>(positions_[i])]++;
    assignments[order[i]] = {.number = first + i,
                             .item = static_cast<std::uint32_t>(i / width),
                             .weight = call.weight_on_input ? 1.0f : in.weights[first + i]};
  }
}

void Pass::group_batches(const ExpertsCall& call, std::uint64_t begin, std::uint64_t end) {
  const Prepared& in = call.in;
  width = 1;
  rows.clear();
  assignments.clear();
  order.clear();
  begins_.assign(1, 0);
  std::uint64_t seen = 0;
  for (std::size_t e = 0; e < in.counts.size(); ++e) {
    const auto count = static_cast<std::uint64_t>(in.counts[e]);
    const std::uint64_t from = std::clamp(begin, seen, seen + count);
    const std::uint64_t to = std::clamp(end, seen, seen + count);
    for (std::uint64_t i = from; i < to; ++i) {
      const std::uint64_t row = e * in.capacity + (i - seen);
      const auto item = static_cast<std::uint32_t>(rows.size());
      rows.push_back(row);
      order.push_back(item);
      assignments.push_back({.number = row, .item = item});
    }
    seen += count;
    begins_.push_back(static_cast<std::uint32_t>(assignments.size()));
  }
}

// Experts with more assignments than a kernel takes are cut evenly.
void Pass::cut_units(std::uint64_t experts) {
  constexpr std::uint64_t kMax = kernels::cpu::kGemmTokens, kStep = kernels::cpu::kStepTokens;
  units.clear();
  by_size.clear();
  first_units.assign(1, 0);
  for (std::size_t e = 0; e < experts; ++e) {
    const std::uint32_t begin = begins_[e], count = begins_[e + 1] - begin;
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
    const std::uint32_t size_a = begins_[a + 1] - begins_[a];
    const std::uint32_t size_b = begins_[b + 1] - begins_[b];
    return size_a != size_b ? size_a > size_b : a < b;
  });
}

}  // namespace fp4moe::moe::cpu
