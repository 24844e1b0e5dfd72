#include "fp4moe/moe/reduce.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"

namespace fp4moe::moe {
namespace {

constexpr std::size_t kColumnsAtOnce = 512;  // columns summed at a time, on the stack
constexpr std::uint64_t kUnassigned = ~std::uint64_t{0};

// Columns [begin, begin + count) of all rows.
template <class Byte>
BasicRows<Byte> columns_of(const BasicRows<Byte>& rows, std::uint64_t begin, std::uint64_t count) {
  return {rows.data + begin * element_bytes(rows.dtype), rows.dtype, rows.rows, count, rows.stride};
}

// Rounded as a row of that type would be.
void round_to(DType dtype, std::span<float> values) {
  if (dtype == DType::f32 || dtype == DType::f64) return;
  if (dtype == DType::bf16) {
    for (float& value : values) value = formats::Bf16::decode(formats::Bf16::encode(value));
    return;
  }
  std::array<std::byte, kColumnsAtOnce * 2> narrow;
  const MutableRows part{narrow.data(), dtype, 1, values.size(), values.size_bytes()};
  write_row(std::span<const float>(values), part, 0);
  read_row(part, 0, values);
}

// Adds weight * row; the product is rounded to the row's type.
struct Addend {
  std::uint64_t row = 0;
  float weight = 1;
  bool is_weighted = true;
};
void add_row(const ConstRows& rows, const Addend& addend, std::span<float> sum) {
  std::array<float, kColumnsAtOnce> memory;
  const std::span<float> values(memory.data(), sum.size());
  read_row(rows, addend.row, values);
  if (addend.is_weighted) {
    for (float& value : values) value *= addend.weight;
    round_to(rows.dtype, values);
  }
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

Result<Done> check_sizes(const ReduceInput& input, const MutableRows& out, std::uint64_t rows) {
  if (Result<Done> good = check_rows(input.rows, "rows", out.columns); !good) return good;
  if (Result<Done> good = check_rows(out, "out", out.columns); !good) return good;
  if (input.rows.rows < rows)
    return usage("reduce.sizes", "there are too few rows to reduce")
        .expects(std::to_string(rows), std::to_string(input.rows.rows));
  return Done{};
}

Result<Done> check_ids(const ReduceInput& input, const MutableRows& out) {
  const bool fits = input.top_k > 0 && input.ids.size() / input.top_k == out.rows &&
                    input.ids.size() % input.top_k == 0;
  if (!fits || (!input.weights.empty() && input.weights.size() != input.ids.size()))
    return usage("reduce.sizes", "ids and weights are those of the tokens")
        .expects(fmt::format("{} times {}", out.rows, input.top_k),
                 fmt::format("{} ids and {} weights", input.ids.size(), input.weights.size()));
  if (!input.expert_map.empty() && input.expert_map.size() != input.experts)
    return usage("reduce.sizes", "an expert map has a number for every expert")
        .expects(std::to_string(input.experts), std::to_string(input.expert_map.size()));
  return Done{};
}

bool is_assigned(const ReduceInput& input, std::int32_t id) {
  const auto number = static_cast<std::uint32_t>(id);
  if (number >= input.experts) return false;
  return input.expert_map.empty() || input.expert_map[number] >= 0;
}

Result<Done> copy_rows(const ReduceInput& input, ThreadPool& pool, const MutableRows& out) {
  if (Result<Done> good = check_sizes(input, out, out.rows); !good) return good;
  if (input.rows.data == out.data) return Done{};
  pool.run(out.rows, [&](std::size_t t) {
    if (input.rows.dtype == out.dtype) {
      std::memcpy(out.row(t), input.rows.row(t), out.columns * element_bytes(out.dtype));
      return;
    }
    std::array<double, kColumnsAtOnce> memory;
    for (std::uint64_t begin = 0; begin < out.columns; begin += kColumnsAtOnce) {
      const std::uint64_t count = std::min<std::uint64_t>(kColumnsAtOnce, out.columns - begin);
      const std::span<double> values(memory.data(), count);
      read_row(columns_of(input.rows, begin, count), t, values);
      write_row(std::span<const double>(values), columns_of(out, begin, count), t);
    }
  });
  return Done{};
}

Result<Done> reduce_contiguous(const ReduceInput& input, ThreadPool& pool, const MutableRows& out) {
  if (Result<Done> good = check_ids(input, out); !good) return good;
  if (Result<Done> good = check_sizes(input, out, input.ids.size()); !good) return good;
  pool.run(out.rows, [&](std::size_t t) {
    std::array<float, kColumnsAtOnce> memory;
    for (std::uint64_t begin = 0; begin < out.columns; begin += kColumnsAtOnce) {
      const std::uint64_t count = std::min<std::uint64_t>(kColumnsAtOnce, out.columns - begin);
      const std::span<float> sum(memory.data(), count);
      std::ranges::fill(sum, 0.0f);
      for (std::uint64_t assignment = t * input.top_k; assignment < (t + 1) * input.top_k;
           ++assignment) {
        if (!is_assigned(input, input.ids[assignment])) continue;
        add_row(columns_of(input.rows, begin, count),
                {.row = assignment,
                 .weight = input.weights.empty() ? 1.0f : input.weights[assignment],
                 .is_weighted = !input.weights.empty()},
                sum);
      }
      write_row(std::span<const float>(sum), columns_of(out, begin, count), t);
    }
  });
  return Done{};
}

// The location of a token's row of an expert: tokens of an expert are packed in their order, each once,
// with all its weight for that expert. Assignments beyond the first of a kind, and unassigned ones,
// have none.
struct BatchedAssignment {
  std::uint64_t row = kUnassigned;
  float weight = 0;
};
Result<std::vector<BatchedAssignment>> batched_assignments(const ReduceInput& input) {
  std::vector<BatchedAssignment> result(input.ids.size());
  std::vector<std::uint64_t> used(input.local_experts);
  for (std::uint64_t assignment = 0; assignment < result.size(); ++assignment) {
    const std::uint64_t first = assignment / input.top_k * input.top_k;
    const std::int32_t id = input.ids[assignment];
    if (!is_assigned(input, id)) continue;
    const std::uint64_t local = static_cast<std::uint64_t>(id) - input.first_expert;
    if (local >= input.local_experts) continue;
    const float weight = input.weights.empty() ? 1.0f : input.weights[assignment];
    const auto duplicate =
        std::find(input.ids.begin() + static_cast<std::ptrdiff_t>(first),
                  input.ids.begin() + static_cast<std::ptrdiff_t>(assignment), id);
    if (const auto at = static_cast<std::uint64_t>(duplicate - input.ids.begin());
        at < assignment) {
      result[at].weight += weight;
      continue;
    }
    if (used[local] >= input.capacity)
      return usage("reduce.batch", fmt::format("expert {} has more tokens than its batch", id))
          .expects(fmt::format("at most {}", input.capacity),
                   fmt::format("token {} too", assignment / input.top_k));
    result[assignment] = {local * input.capacity + used[local]++, weight};
  }
  return result;
}

// Expert by expert, each sum rounded to the output's type.
void add_batches(const ReduceInput& input, std::span<const BatchedAssignment> assignments,
                 std::size_t token, const MutableRows& out) {
  std::array<float, kColumnsAtOnce> memory, part;
  const auto mine = assignments.subspan(token * input.top_k, input.top_k);
  for (std::uint64_t begin = 0; begin < out.columns; begin += kColumnsAtOnce) {
    const std::uint64_t count = std::min<std::uint64_t>(kColumnsAtOnce, out.columns - begin);
    const std::span<float> sum(memory.data(), count), product(part.data(), count);
    std::ranges::fill(sum, 0.0f);
    std::uint64_t done = 0;  // rows below are added: batches lie in the order of their experts
    for (;;) {
      const BatchedAssignment* next = nullptr;
      for (const BatchedAssignment& assignment : mine)
        if (assignment.row != kUnassigned && assignment.row >= done &&
            (next == nullptr || assignment.row < next->row))
          next = &assignment;
      if (next == nullptr) break;
      done = next->row + 1;
      std::ranges::fill(product, 0.0f);
      add_row(columns_of(input.rows, begin, count),
              {.row = next->row, .weight = next->weight, .is_weighted = !input.weights.empty()},
              product);
      round_to(out.dtype, product);
      for (std::size_t i = 0; i < count; ++i) sum[i] += product[i];
      round_to(out.dtype, sum);
    }
    write_row(std::span<const float>(sum), columns_of(out, begin, count), token);
  }
}

Result<Done> reduce_batches(const ReduceInput& input, ThreadPool& pool, const MutableRows& out) {
  if (Result<Done> good = check_ids(input, out); !good) return good;
  if (input.local_experts > input.experts || input.first_expert > input.experts ||
      (input.capacity > 0 && input.local_experts > input.rows.rows / input.capacity))
    return usage("reduce.sizes", "batches are those of this rank's experts")
        .expects(fmt::format("{} rows of {} experts at most", input.rows.rows, input.experts),
                 fmt::format("{} batches of {} from expert {}", input.local_experts, input.capacity,
                             input.first_expert));
  if (Result<Done> good = check_sizes(input, out, 0); !good) return good;
  const Result<std::vector<BatchedAssignment>> assignments = batched_assignments(input);
  if (!assignments) return assignments.why();
  pool.run(out.rows, [&](std::size_t t) { add_batches(input, *assignments, t, out); });
  return Done{};
}

}  // namespace

Result<Done> weigh_and_reduce(ReducePolicy policy, const ReduceInput& input, ThreadPool& pool,
                              const MutableRows& out) {
  switch (policy) {
    case ReducePolicy::noop:
      return copy_rows(input, pool, out);
    case ReducePolicy::contiguous:
      return reduce_contiguous(input, pool, out);
    case ReducePolicy::naive_batched:
      return reduce_batches(input, pool, out);
    case ReducePolicy::delegate:
      break;
  }
  return usage("reduce.delegate", "these experts leave weighting and summing to finalize")
      .expects("a policy that reduces: Contiguous or NaiveBatched", name(policy))
      .try_this("Let the exchange's finalize reduce");
}

}  // namespace fp4moe::moe
