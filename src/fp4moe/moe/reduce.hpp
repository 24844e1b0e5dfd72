// Experts' rows become tokens' rows: weighted and summed, by one of four policies that an experts
// object names. Unassigned ones (ids of -1, unknown or foreign experts) are skipped, never
// multiplied: their rows may hold anything.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/rows.hpp"

namespace fp4moe::moe {

enum class ReducePolicy : std::uint8_t { noop, contiguous, naive_batched, delegate };

struct ReducePolicyRow {
  ReducePolicy policy;
  std::string_view name;
  std::string_view summary;
};
// clang-format off
inline constexpr std::array<ReducePolicyRow, 4> kReducePolicies{{
    {ReducePolicy::noop,          "NoOP",         "rows [M, H] are weighted and summed already: copied where they are not in place"},
    {ReducePolicy::contiguous,    "Contiguous",   "rows [M * k, H]: products rounded to their type, summed over k in float32, rounded once"},
    {ReducePolicy::naive_batched, "NaiveBatched", "rows [experts * capacity, H]: products rounded to their type, added expert by expert in the output's"},
    {ReducePolicy::delegate,      "Delegate",     "left to finalize; calling it is an error"},
}};
// clang-format on
constexpr std::string_view name(ReducePolicy policy) {
  return kReducePolicies[static_cast<std::size_t>(policy)].name;
}

struct ReduceInput {
  ConstRows rows{};
  std::uint64_t top_k = 1;
  std::span<const std::int32_t> ids{};         // [tokens, top_k], global; NoOP needs none
  std::span<const float> weights{};            // [tokens, top_k]; none when they are in the input
  std::uint64_t experts = 0;                   // global; ids beyond are unassigned
  std::span<const std::int32_t> expert_map{};  // Contiguous: [experts] or none
  std::uint64_t capacity = 0;                  // NaiveBatched: rows of a batch
  std::uint64_t first_expert = 0, local_experts = 0;  // NaiveBatched: rank * local, and how many
};

// `out` is [tokens, H]. Errors: reduce.delegate, reduce.sizes, reduce.batch (more tokens than a
// batch holds), rows.*.
Result<Done> weigh_and_reduce(ReducePolicy policy, const ReduceInput& input, ThreadPool& pool,
                              const MutableRows& out);

}  // namespace fp4moe::moe
