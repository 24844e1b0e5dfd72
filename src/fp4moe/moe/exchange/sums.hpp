// Sums of rows, over assignments and over ranks. Always in the same order, so the result does not
// depend on the order of arrival: assignments of a token from left to right, ranks from 0 up. Sums
// are taken in float32 (in float64 when a type is float64) and rounded once, to the type of the
// result.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/moe/exchange/owners.hpp"
#include "fp4moe/moe/rows.hpp"

namespace fp4moe::moe::exchange {

// One term: a row of `from`, times a weight when there is one. Where experts leave weighing to us,
// the reference rounds a product to the type of its row before it is added; where tokens return
// from other ranks, it does not.
struct Term {
  ConstRows from{};
  std::uint64_t row = 0;
  const float* weight = nullptr;
  bool rounds_product = true;
};

// Keeps its scratch memory between rows.
class RowSum {
 public:
  // out[row] = the sum of the terms, in their order; 0 without terms.
  void write(std::span<const Term> terms, const MutableRows& out, std::uint64_t row);
  // out[row] = out[row] + term, rounded to the type of out.
  void add(const Term& term, const MutableRows& out, std::uint64_t row);

 private:
  std::vector<float> sum_{}, value_{};
  std::vector<double> wide_sum_{}, wide_value_{};
  std::vector<std::byte> rounded_{};
};

// Sums the experts' rows of assignments to rows of tokens: [rows * top_k, H] to [rows, H]. Assignments
// of experts that are not here hold anything and are not read.
struct WeightedRows {
  ConstRows rows{};
  std::uint64_t top_k = 0;
  std::span<const std::int32_t> ids{};
  std::span<const float> weights{};  // empty: the rows are weighted
  const Owners* owners = nullptr;
  ThreadPool* pool = nullptr;
};
Result<Done> sum_assignments(const WeightedRows& weighted, const MutableRows& out);

// Rows in another type, or cut to fewer columns; nothing when both are the same memory.
void copy_rows(const ConstRows& from, const MutableRows& to);

// Rows of every rank's tokens, which this rank summed over its own experts, become the sum over
// ranks of this rank's tokens. `tokens` are the rows that belong to each rank, in rank order. Rows
// travel in the type of `out`. A null `partial.data` counts as zeros.
Result<Done> reduce_scatter(Communicator& ranks, Parcel& parcel, const ConstRows& partial,
                            std::span<const std::uint64_t> tokens, const MutableRows& out);

// Every rank's rows become the sum of all, the same bits everywhere: a reduce-scatter of equal
// parts, then an all-gather.
Result<Done> all_reduce(Communicator& ranks, Parcel& parcel, const MutableRows& rows);

}  // namespace fp4moe::moe::exchange
