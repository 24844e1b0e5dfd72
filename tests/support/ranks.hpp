// For tests: ranks in threads, tokens from a seed, and experts so simple that the right answer is a
// formula: expert e makes (e + 1) * x of x. Numbers are chosen so that sums are exact.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "fp4moe/base/random.hpp"
#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/moe/exchange/threads.hpp"

namespace fp4moe::moe::exchange::testing {

// fn(communicator) on every rank; the communicator of a rank lives as long as its fn.
inline void run_ranks(std::uint64_t size, const CommunicatorOptions& options,
                      const std::function<void(std::unique_ptr<Communicator>)>& fn) {
  auto ranks = make_threads(size, options);
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&fn, mine = std::move(rank)]() mutable { fn(std::move(mine)); });
  for (std::thread& thread : threads) thread.join();
}

struct Case {
  std::string exchange{};
  std::uint64_t experts = 9, top_k = 3, hidden = 64, max_tokens = 8;
  checkpoint::Placement placement = checkpoint::Placement::linear;
  OutputForm form = OutputForm::summed;
  bool is_weighted = true;  // by the experts
  RowQuantizer quantizer{};
  bool weight_on_input = false;
  bool adapters = false;
  std::int32_t only_experts_below = 0;  // 0: all
  std::uint64_t seed = 1;
};

inline std::uint64_t tokens_of(std::uint64_t rank) { return (3 * rank + 4) % 5; }  // 4 2 0 3 1 ...

// The tokens of one rank; NaN stands wherever no code should read.
struct Input {
  Input(const Case& given, std::uint64_t rank, std::uint64_t count)
      : rows(count), hidden(given.hidden), top_k(given.top_k) {
    SplitMix64 random(given.seed * 1000 + rank);
    const std::int32_t experts = given.only_experts_below > 0
                                     ? given.only_experts_below
                                     : static_cast<std::int32_t>(given.experts);
    for (std::uint64_t i = 0; i < rows * hidden; ++i)
      x.push_back(static_cast<float>(static_cast<int>(random.next() % 17) - 8));
    for (std::uint64_t assignment = 0; assignment < rows * top_k; ++assignment) {
      // One assignment in six leads nowhere, and with few experts many are listed twice.
      const auto pick = static_cast<std::int32_t>(random.next() % static_cast<unsigned>(experts));
      const std::uint64_t kind = random.next() % 12;
      ids.push_back(kind == 0 ? -1 : kind == 1 ? static_cast<std::int32_t>(given.experts) : pick);
      weights.push_back(0.25f * static_cast<float>(1 + random.next() % 4));
    }
    // The first token lists an expert twice, the second none.
    if (rows > 0 && top_k > 1) ids[1] = ids[0];
    if (rows > 1)
      for (std::uint64_t j = 0; j < top_k; ++j) ids[top_k + j] = -1;
    if (given.adapters)
      for (std::uint64_t row = 0; row < rows; ++row)
        adapters.push_back(static_cast<std::int32_t>(100 * rank + row));
  }

  Tokens tokens() const {
    return {.x = dense_rows(std::span<const float>(x), DType::f32, rows, hidden),
            .top_k = top_k,
            .ids = ids,
            .weights = weights,
            .adapters = adapters};
  }

  // What all ranks together owe this one.
  std::vector<float> answer(const Case& given) const {
    std::vector<float> out(rows * hidden, 0.0f);
    for (std::uint64_t row = 0; row < rows; ++row)
      for (std::uint64_t j = 0; j < top_k; ++j) {
        const std::int32_t id = ids[row * top_k + j];
        if (id < 0 || static_cast<std::uint64_t>(id) >= given.experts) continue;
        const float weight = weights[row * top_k + j];
        std::vector<float> seen(x.begin() + static_cast<std::ptrdiff_t>(row * hidden),
                                x.begin() + static_cast<std::ptrdiff_t>((row + 1) * hidden));
        if (given.weight_on_input)
          for (float& value : seen) value *= weight;
        if (given.quantizer.key != ActivationKey::none) quantize_dequantize(given.quantizer, seen);
        const float factor = static_cast<float>(id + 1) * shared_factor(given.quantizer) *
                             (given.weight_on_input ? 1.0f : weight);
        for (std::uint64_t c = 0; c < hidden; ++c) out[row * hidden + c] += factor * seen[c];
      }
    return out;
  }

  std::uint64_t rows, hidden, top_k;
  std::vector<float> x{}, weights{};
  std::vector<std::int32_t> ids{}, adapters{};
};

// The experts of `me`: their output in the form that the case asks for.
class FakeExperts {
 public:
  FakeExperts(const Case& given, checkpoint::Rank me) : case_(given) {
    local_ = *checkpoint::local_experts(given.experts, me, given.placement);
  }

  ExpertsOutput compute(const Prepared& in) {
    const std::uint64_t rows =
        case_.form == OutputForm::assignments ? in.x.rows * in.top_k : in.x.rows;
    out_.assign(rows * case_.hidden, std::numeric_limits<float>::quiet_NaN());
    if (in.format == TokenFormat::batched)
      batches(in);
    else if (case_.form == OutputForm::assignments)
      assignments(in);
    else
      sums(in);
    return {case_.form, dense_rows(std::span<const float>(out_), DType::f32, rows, case_.hidden),
            case_.is_weighted};
  }

  bool is_local(std::int32_t id) const {
    return id >= 0 && std::ranges::find(local_, static_cast<std::uint64_t>(id)) != local_.end();
  }

 private:
  void put(const Prepared& in, std::uint64_t from, float factor, std::uint64_t to, bool adds) {
    std::vector<float> row(case_.hidden);
    read_row(in.x, from, std::span<float>(row));
    for (std::uint64_t c = 0; c < case_.hidden; ++c) {
      float& target = out_[to * case_.hidden + c];
      target = (adds ? target : 0.0f) + factor * in.factor * row[c];
    }
  }
  void sums(const Prepared& in) {
    std::ranges::fill(out_, 0.0f);
    for (std::uint64_t assignment = 0; assignment < in.ids.size(); ++assignment)
      if (is_local(in.ids[assignment]))
        put(in, assignment / in.top_k,
            static_cast<float>(in.ids[assignment] + 1) * in.weights[assignment],
            assignment / in.top_k, true);
  }
  void assignments(const Prepared& in) {
    for (std::uint64_t assignment = 0; assignment < in.ids.size(); ++assignment)
      if (is_local(in.ids[assignment]))
        put(in, assignment / in.top_k,
            static_cast<float>(in.ids[assignment] + 1) *
                (case_.is_weighted ? in.weights[assignment] : 1.0f),
            assignment, false);
  }
  void batches(const Prepared& in) {
    for (std::uint64_t e = 0; e < in.counts.size(); ++e)
      for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(in.counts[e]); ++i)
        put(in, e * in.capacity + i, static_cast<float>(local_[e] + 1), e * in.capacity + i, false);
  }

  const Case& case_;
  std::vector<std::uint64_t> local_{};
  std::vector<float> out_{};
};

// One call on one rank; what came of it.
inline Result<std::vector<float>> call(const Case& given, Exchange& exchange, checkpoint::Rank me,
                                       const Input& input) {
  const auto prepared = exchange.prepare(
      input.tokens(), {.quantizer = given.quantizer, .weight_on_input = given.weight_on_input});
  if (!prepared) return prepared.why();
  FakeExperts experts(given, me);
  const ExpertsOutput output = experts.compute(*prepared);
  std::vector<float> out(input.rows * given.hidden, std::numeric_limits<float>::quiet_NaN());
  const auto done = exchange.finalize(
      output, dense_rows(std::span<float>(out), DType::f32, input.rows, given.hidden));
  if (!done) return done.why();
  return out;
}

inline Result<std::unique_ptr<Exchange>> make(const Case& given, Communicator& ranks) {
  return make_exchange(*exchange_from_name(given.exchange),
                       {.ranks = &ranks,
                        .experts = given.experts,
                        .expert_parallel = {ranks.rank(), ranks.size()},
                        .placement = given.placement,
                        .max_tokens = given.max_tokens});
}

// The forms in which experts may leave their output to an exchange that goes between ranks.
inline std::vector<Case> travelling_cases() {
  std::vector<Case> cases;
  for (const char* name : {"gather", "all_to_all"})
    for (const bool is_weighted : {true, false})
      cases.push_back(
          {.exchange = name, .form = OutputForm::assignments, .is_weighted = is_weighted});
  for (const char* name : {"gather", "all_to_all"}) cases.push_back({.exchange = name});
  cases.push_back(
      {.exchange = "all_to_all_batched", .form = OutputForm::batches, .is_weighted = false});
  const std::size_t linear = cases.size();
  for (std::size_t i = 0; i < linear; ++i) {
    cases.push_back(cases[i]);
    cases.back().placement = checkpoint::Placement::round_robin;
    cases.push_back(cases[i]);
    cases.back().only_experts_below = 1;  // everything goes to rank 0
  }
  return cases;
}

}  // namespace fp4moe::moe::exchange::testing
