#include "fp4moe/runtime/run_input.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::runtime {
namespace {

using tensor::DType;
using tensor::StoredTensor;

struct File {
  const tensor::Store& store;
  const std::string& path;

  Error wrong(std::string_view name, std::string_view expected, const StoredTensor* found) const {
    return invalid("run.input", "a tensor of the input does not fit")
        .in(path)
        .at(name)
        .expects(expected, found == nullptr
                               ? "nothing"
                               : fmt::format("{} [{}]", tensor::name(found->entry.dtype),
                                             fmt::join(found->entry.shape, ", ")));
  }
  // [rows, any] of floating point, in float32. `rows` 0: any.
  Result<std::vector<float>> matrix(std::string_view name, std::uint64_t rows,
                                    std::uint64_t& columns) const {
    const StoredTensor* found = store.find(name);
    const bool fits = found != nullptr && found->entry.shape.size() == 2 &&
                      (rows == 0 || found->entry.shape[0] == rows) &&
                      moe::is_activation_type(found->entry.dtype);
    if (!fits)
      return wrong(name,
                   rows == 0 ? "[tokens, columns] of BF16, F16, F32 or F64"
                             : fmt::format("[{}, columns] of BF16, F16, F32 or F64", rows),
                   found);
    columns = found->entry.shape[1];
    const std::uint64_t count = found->entry.shape[0];
    std::vector<float> values(count * columns);
    const moe::ConstRows from{store.bytes(*found).data(), found->entry.dtype, count, columns,
                              columns * moe::element_bytes(found->entry.dtype)};
    for (std::uint64_t row = 0; row < count; ++row)
      read_row(from, row, std::span(values).subspan(row * columns, columns));
    return values;
  }
  Result<std::vector<std::int32_t>> numbers(std::string_view name,
                                            const tensor::Shape& shape) const {
    const StoredTensor* found = store.find(name);
    const bool fits = found != nullptr && found->entry.shape == shape &&
                      (found->entry.dtype == DType::i32 || found->entry.dtype == DType::i64);
    if (!fits) return wrong(name, fmt::format("[{}] of I32 or I64", fmt::join(shape, ", ")), found);
    const std::span<const std::byte> bytes = store.bytes(*found);
    std::vector<std::int32_t> result(bytes.size() / moe::element_bytes(found->entry.dtype));
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (found->entry.dtype == DType::i32) {
        std::memcpy(&result[i], bytes.data() + 4 * i, 4);
        continue;
      }
      std::int64_t wide = 0;
      std::memcpy(&wide, bytes.data() + 8 * i, 8);
      // Numbers that no expert has count as -1 everywhere; so do those that an int cannot hold.
      result[i] = wide < -1 || wide > INT32_MAX ? -1 : static_cast<std::int32_t>(wide);
    }
    return result;
  }
};

float normal(SplitMix64& random) {
  const double u = 1.0 - double{random.unit()}, v = double{random.unit()};
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

}  // namespace

moe::ConstRows RunInput::rows() const {
  return moe::dense_rows(std::span(x), DType::bf16, tokens, hidden);
}

Result<RunInput> read_input(const std::string& path) {
  const Result<tensor::Store> store = tensor::Store::open(path);
  if (!store) return store.why();
  const File file{*store, path};
  RunInput result{.origin = path};
  const Result<std::vector<float>> x = file.matrix("hidden_states", 0, result.hidden);
  if (!x) return x.why();
  result.tokens = result.hidden == 0 ? 0 : x->size() / result.hidden;
  result.x.reserve(x->size());
  for (const float value : *x) result.x.push_back(formats::Bf16::encode(value));
  if (store->find("router_logits") != nullptr) {
    std::uint64_t experts = 0;
    Result<std::vector<float>> logits = file.matrix("router_logits", result.tokens, experts);
    if (!logits) return logits.why();
    result.logits = std::move(*logits);
  }
  if (store->find("router_hidden_states") != nullptr) {
    std::uint64_t columns = 0;
    Result<std::vector<float>> rows = file.matrix("router_hidden_states", result.tokens, columns);
    if (!rows) return rows.why();
    result.router_x = std::move(*rows);
  }
  if (store->find("token_lora_mapping") != nullptr) {
    Result<std::vector<std::int32_t>> adapters =
        file.numbers("token_lora_mapping", {result.tokens});
    if (!adapters) return adapters.why();
    result.adapters = std::move(*adapters);
  }
  if (store->find("topk_weights") == nullptr && store->find("topk_ids") == nullptr) return result;
  Result<std::vector<float>> weights = file.matrix("topk_weights", result.tokens, result.top_k);
  if (!weights) return weights.why();
  if (result.top_k == 0)
    return file.wrong("topk_weights", fmt::format("[{}, at least 1]", result.tokens),
                      store->find("topk_weights"));
  result.weights = std::move(*weights);
  Result<std::vector<std::int32_t>> ids = file.numbers("topk_ids", {result.tokens, result.top_k});
  if (!ids) return ids.why();
  result.ids = std::move(*ids);
  if (!result.logits.empty())
    return invalid("run.input", "the input has both logits and chosen experts")
        .in(path)
        .expects("router_logits, or topk_ids and topk_weights", "all of them");
  return result;
}

Result<RunInput> seeded_input(std::uint64_t tokens, std::uint64_t hidden, std::uint64_t seed) {
  RunInput result{.tokens = tokens,
                  .hidden = hidden,
                  .origin = fmt::format("seed {}", seed),
                  .is_seeded = true};
  SplitMix64 random(seed);
  result.x.reserve(tokens * hidden);
  for (std::uint64_t t = 0; t < tokens; ++t) {
    if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
    for (std::uint64_t i = 0; i < hidden; ++i)
      result.x.push_back(formats::Bf16::encode(normal(random)));
  }
  return result;
}

namespace {

// Distinct experts for every token, all of one weight.
Routed seeded_experts(const RunInput& input, const LayerFacts& facts, std::uint64_t seed) {
  const std::uint64_t experts = facts.model.shape.experts;
  const std::uint64_t top_k = std::min(facts.router.top_k, experts);
  Routed result{.how = fmt::format("seeded experts ({})", facts.no_routing->message)};
  SplitMix64 random(seed ^ 0x10616974u);
  for (std::uint64_t t = 0; t < input.tokens; ++t) {
    const std::uint64_t first = random.next() % experts;
    for (std::uint64_t k = 0; k < top_k; ++k) {
      result.ids.push_back(static_cast<std::int32_t>((first + k) % experts));
      result.weights.push_back(1.0f / static_cast<float>(top_k));
    }
  }
  return result;
}

Routed seeded_logits(const RunInput& input, std::uint64_t experts, std::uint64_t seed) {
  SplitMix64 random(seed ^ 0x10616974u);
  Routed result{.how = "seeded logits"};
  for (std::uint64_t i = 0; i < input.tokens * experts; ++i)
    result.logits.push_back(normal(random));
  return result;
}

// The input of the router: the hidden states, or if experts read a projection of them, what is
// given for it.
Result<moe::ConstRows> router_rows(const RunInput& input, const LayerFacts& facts) {
  const std::uint64_t wanted = facts.router_hidden;
  if (input.router_x.empty() && input.hidden == wanted) return input.rows();
  const std::uint64_t given = input.tokens == 0 ? 0 : input.router_x.size() / input.tokens;
  if (given == wanted)
    return moe::dense_rows(std::span(input.router_x), DType::f32, input.tokens, wanted);
  return invalid("facts.router",
                 "the router reads the model's hidden state, the experts a projection of it")
      .in(input.origin)
      .at("router_hidden_states")
      .expects(fmt::format("[{}, {}]", input.tokens, wanted),
               input.router_x.empty() ? "nothing" : fmt::format("[{}, {}]", input.tokens, given))
      .try_this("give router_hidden_states, router_logits, or topk_ids and topk_weights");
}

}  // namespace

Result<Routed> route_for(const RunInput& input, const LayerFacts& facts, const FindTensor& find,
                         std::uint64_t seed) {
  const std::uint64_t experts = facts.model.shape.experts;
  if (facts.no_routing) {
    if (input.is_seeded && input.logits.empty()) return seeded_experts(input, facts, seed);
    return Error(*facts.no_routing).in(input.origin);
  }
  if (!input.logits.empty() || input.tokens == 0) {
    if (input.logits.size() != input.tokens * experts)
      return invalid("run.input", "the logits are for another number of experts")
          .in(input.origin)
          .at("router_logits")
          .expects(fmt::format("[{}, {}]", input.tokens, experts),
                   fmt::format("{} values", input.logits.size()));
    return Routed{.logits = input.logits, .how = "given logits"};
  }
  if (!facts.has_router_weights && input.is_seeded) return seeded_logits(input, experts, seed);
  if (!facts.has_router_weights) {
    const Result<RouterWeights> missing = load_router(facts, find);
    if (!missing) return missing.why();
  }
  const Result<moe::ConstRows> x = router_rows(input, facts);
  // Seeded tokens are of the experts' width; nothing of the model's can be told from them.
  if (!x && input.is_seeded) return seeded_logits(input, experts, seed);
  if (!x) return x.why();
  const Result<RouterWeights> router = load_router(facts, find);
  if (!router) return router.why();
  Result<std::vector<float>> logits = router->logits(*x);
  if (!logits) return logits.why();
  return Routed{.logits = std::move(*logits), .how = "the model's router"};
}

}  // namespace fp4moe::runtime
