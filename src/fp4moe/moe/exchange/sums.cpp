#include "fp4moe/moe/exchange/sums.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "fp4moe/moe/reduce.hpp"

namespace fp4moe::moe::exchange {
namespace {

// A value as its type holds it.
template <class Value>
void round_to(DType dtype, std::span<Value> values, std::vector<std::byte>& memory) {
  if (dtype == DType::f32 && sizeof(Value) == 4) return;
  if (dtype == DType::f64) return;
  memory.resize(values.size() * element_bytes(dtype));
  const MutableRows rows{memory.data(), dtype, 1, values.size(), memory.size()};
  write_row(std::span<const Value>(values), rows, 0);
  read_row(rows, 0, values);
}

template <class Value>
struct Scratch {
  std::vector<Value>& sum;
  std::vector<Value>& value;
  std::vector<std::byte>& rounded;

  void read_term(const Term& term, std::span<Value> values) {
    read_row(term.from, term.row, values);
    if (term.weight == nullptr) return;
    for (Value& one : values) one *= static_cast<Value>(*term.weight);
    if (term.rounds_product) round_to(term.from.dtype, values, rounded);
  }

  void write(std::span<const Term> terms, const MutableRows& out, std::uint64_t row) {
    sum.assign(out.columns, Value{0});
    value.resize(out.columns);
    for (std::size_t t = 0; t < terms.size(); ++t) {
      if (t == 0) {  // not 0 + x: that would lose the sign of a zero
        read_term(terms[t], std::span<Value>(sum));
        continue;
      }
      read_term(terms[t], std::span<Value>(value));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += value[i];
    }
    write_row(std::span<const Value>(sum), out, row);
  }
};

bool is_wide(std::span<const Term> terms, const MutableRows& out) {
  return out.dtype == DType::f64 ||
         std::ranges::any_of(terms, [](const Term& t) { return t.from.dtype == DType::f64; });
}

// Rows in the type of `out`, one after the other.
void pack_rows(const ConstRows& from, const MutableRows& out, std::byte* to) {
  const std::uint64_t bytes = out.columns * element_bytes(out.dtype);
  if (from.rows == 0) return;
  if (from.data == nullptr)
    std::memset(to, 0, from.rows * bytes);
  else
    copy_rows(from, {to, out.dtype, from.rows, out.columns, bytes});
}

}  // namespace

void RowSum::write(std::span<const Term> terms, const MutableRows& out, std::uint64_t row) {
  if (is_wide(terms, out))
    return Scratch<double>{wide_sum_, wide_value_, rounded_}.write(terms, out, row);
  Scratch<float>{sum_, value_, rounded_}.write(terms, out, row);
}

void RowSum::add(const Term& term, const MutableRows& out, std::uint64_t row) {
  const Term terms[] = {{.from = out, .row = row}, term};
  write(terms, out, row);
}

Result<Done> sum_assignments(const WeightedRows& weighted, const MutableRows& out) {
  if (out.rows == 0) return Done{};
  ConstRows rows = weighted.rows;
  rows.columns = out.columns;  // padding is cut off
  return weigh_and_reduce(ReducePolicy::contiguous,
                          {.rows = rows,
                           .top_k = weighted.top_k,
                           .ids = weighted.ids,
                           .weights = weighted.weights,
                           .experts = weighted.owners->map.size(),
                           .expert_map = weighted.owners->map},
                          *weighted.pool, out);
}

void copy_rows(const ConstRows& from, const MutableRows& to) {
  if (from.data == to.data && from.dtype == to.dtype && from.stride == to.stride) return;
  const std::uint64_t bytes = to.columns * element_bytes(to.dtype);
  RowSum sum;
  for (std::uint64_t row = 0; row < to.rows; ++row) {
    const Term term{.from = from, .row = row};
    if (from.dtype == to.dtype)
      std::memmove(to.row(row), from.row(row), bytes);
    else
      sum.write({&term, 1}, to, row);
  }
}

Result<Done> reduce_scatter(Communicator& ranks, Parcel& parcel, const ConstRows& partial,
                            std::span<const std::uint64_t> tokens, const MutableRows& out) {
  const std::uint64_t row_bytes = out.columns * element_bytes(out.dtype);
  parcel.step = "reduce-scatter";
  parcel.send_bytes.clear();
  std::uint64_t rows = 0;
  for (const std::uint64_t count : tokens) {
    parcel.send_bytes.push_back(count * row_bytes);
    rows += count;
  }
  parcel.receive_bytes.assign(ranks.size(), out.rows * row_bytes);
  if (const auto done = reserve(parcel.send, rows * row_bytes); !done) return done.why();
  ConstRows all = partial;
  all.rows = rows;
  pack_rows(all, out, parcel.send.data());
  if (const auto done = ranks.all_to_all(parcel); !done) return done.why();

  std::vector<Term> terms;
  for (std::uint64_t rank = 0; rank < ranks.size(); ++rank)
    terms.push_back(
        {.from = {parcel.received_from(rank).data(), out.dtype, out.rows, out.columns, row_bytes}});
  RowSum sum;
  for (std::uint64_t row = 0; row < out.rows; ++row) {
    for (Term& term : terms) term.row = row;
    sum.write(terms, out, row);
  }
  return Done{};
}

Result<Done> all_reduce(Communicator& ranks, Parcel& parcel, const MutableRows& rows) {
  if (ranks.size() <= 1) return Done{};
  const auto begin = [&](std::uint64_t rank) {
    const std::uint64_t each = rows.rows / ranks.size(), rest = rows.rows % ranks.size();
    return rank * each + std::min(rank, rest);
  };
  std::vector<std::uint64_t> parts;
  for (std::uint64_t rank = 0; rank < ranks.size(); ++rank)
    parts.push_back(begin(rank + 1) - begin(rank));
  const MutableRows mine = rows.from(begin(ranks.rank()), parts[ranks.rank()]);
  if (const auto done = reduce_scatter(ranks, parcel, rows, parts, mine); !done) return done.why();

  const std::uint64_t row_bytes = rows.columns * element_bytes(rows.dtype);
  parcel.step = "all-reduce";
  parcel.send_bytes = {mine.rows * row_bytes};
  parcel.receive_bytes.clear();
  for (const std::uint64_t count : parts) parcel.receive_bytes.push_back(count * row_bytes);
  if (const auto done = reserve(parcel.send, mine.rows * row_bytes); !done) return done.why();
  pack_rows(mine, mine, parcel.send.data());
  if (const auto done = ranks.all_gather(parcel); !done) return done.why();
  for (std::uint64_t row = 0; row < rows.rows; ++row)
    std::memcpy(rows.row(row), parcel.receive.data() + row * row_bytes, row_bytes);
  return Done{};
}

}  // namespace fp4moe::moe::exchange
