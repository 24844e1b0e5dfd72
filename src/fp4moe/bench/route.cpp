#include "fp4moe/bench/route.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/base/random.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/permute.hpp"
#include "fp4moe/moe/routing/router.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::bench {
namespace {

using moe::routing::Method;
using moe::routing::Router;
using moe::routing::RouterOptions;
using tensor::DType;

struct RoutedModel {
  std::string_view name;
  Method method;
  std::uint64_t experts, top_k;
  std::uint64_t groups = 0, chosen_groups = 0;
  bool has_bias = false;
  double scale = 1;
};
// clang-format off
constexpr RoutedModel kModels[] = {
    {"gpt-oss-20b",   Method::renormalize,        32, 4},
    {"gpt-oss-120b",  Method::renormalize,       128, 4},
    {"qwen3-30b-a3b", Method::renormalize_naive, 128, 8},
    {"deepseek-r1",   Method::deepseek_v3,       256, 8, 8, 4, true, 2.5},
    {"kimi-k2",       Method::deepseek_v3,       384, 8, 1, 1, true, 2.827},
};
// clang-format on
constexpr DType kTypes[] = {DType::f32, DType::bf16};
constexpr std::uint64_t kMaxBenchTokens = 1 << 20;

Result<Router> router_of(const RoutedModel& model) {
  RouterOptions options{.method = model.method,
                        .experts = model.experts,
                        .top_k = model.top_k,
                        .groups = model.groups,
                        .chosen_groups = model.chosen_groups,
                        .scale = model.scale};
  SplitMix64 random(model.experts);
  for (std::uint64_t e = 0; model.has_bias && e < model.experts; ++e)
    options.bias.push_back(0.2f * random.unit());
  return Router::make(std::move(options));
}

// About normal, with a standard deviation of 1.5.
void fill_logits(std::span<std::byte> bytes, DType dtype) {
  SplitMix64 random(1);
  const std::size_t size = tensor::row(dtype).block_bytes;
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    const float logit = 3 * (random.unit() + random.unit() + random.unit() - 1.5f);
    const std::uint16_t narrow = formats::Bf16::encode(logit);
    std::memcpy(bytes.data() + at, dtype == DType::f32 ? static_cast<const void*>(&logit) : &narrow,
                size);
  }
}

// Input and output of routing. Memory for twice the tokens; all of it is touched before the clock
// starts.
struct RouteWork {
  Router router;
  DType dtype = DType::f32;
  tensor::Buffer logits{};
  std::vector<std::int32_t> ids{};
  std::vector<float> weights{};
  moe::Grouped order{};

  std::uint64_t row_bytes() const { return router.columns() * tensor::row(dtype).block_bytes; }
  Result<Done> run(std::uint64_t tokens, ThreadPool& pool) {
    const std::size_t assignments = tokens * router.assignments_per_token();
    const moe::routing::RouteOutput output{.ids = std::span(ids).first(assignments),
                                           .weights = std::span(weights).first(assignments)};
    Result<Done> done =
        router.route({.logits = {logits.data(), dtype, tokens, router.columns(), 0}}, output, pool);
    if (!done) return done;
    return moe::group_assignments({.ids = output.ids, .experts = router.columns()}, pool, order);
  }
};

Result<RouteWork> work_of(const RoutedModel& model, DType dtype, std::uint64_t tokens) {
  Result<Router> router = router_of(model);
  if (!router) return router.why();
  RouteWork work{.router = *std::move(router), .dtype = dtype};
  Result<tensor::Buffer> logits = tensor::Buffer::allocate(2 * tokens * work.row_bytes());
  if (!logits) return logits.why();
  work.logits = *std::move(logits);
  fill_logits(work.logits.bytes(), dtype);
  work.ids.resize(2 * tokens * work.router.assignments_per_token());
  work.weights.resize(work.ids.size());
  return work;
}

// The sum keeps the reading from being dropped.
std::uint64_t read_all(std::span<const std::byte> bytes, ThreadPool& pool) {
  constexpr std::size_t kStep = 1 << 16;
  std::atomic<std::uint64_t> all{0};
  pool.run_ranges(bytes.size() / 8, kStep, [&](std::size_t begin, std::size_t end, std::size_t) {
    std::uint64_t sum = 0;
    for (std::size_t i = begin; i < end; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i * 8, sizeof word);
      sum += word;
    }
    all.fetch_add(sum, std::memory_order_relaxed);
  });
  return all.load();
}

}  // namespace

Result<std::vector<RouteResult>> bench_route(const RouteOptions& options) {
  for (const std::uint64_t tokens : options.tokens)
    if (tokens == 0 || tokens > kMaxBenchTokens)
      return usage("bench.tokens", "too many tokens")
          .expects(fmt::format("1 to {}", kMaxBenchTokens), std::to_string(tokens));
  const std::size_t parts = std::size(kModels) * std::size(kTypes) * options.tokens.size();
  ThreadPool pool(options.threads);
  std::vector<RouteResult> results;
  for (const RoutedModel& model : kModels)
    for (const DType dtype : kTypes)
      for (const std::uint64_t tokens : options.tokens) {
        Result<RouteWork> work = work_of(model, dtype, tokens);
        if (!work) return work.why();
        const std::uint64_t bytes = tokens * work->row_bytes();
        std::uint64_t sum = 0;
        const Job jobs[] = {
            {"read", static_cast<double>(bytes),
             [&]() -> Result<Done> {
               sum += read_all(work->logits.bytes().first(bytes), pool);
               return Done{};
             }},
            {"route", static_cast<double>(bytes), [&] { return work->run(tokens, pool); }},
            {"route twice as many", static_cast<double>(2 * bytes),
             [&] { return work->run(2 * tokens, pool); }}};
        const auto timings =
            measure(jobs, {.seconds = options.seconds / static_cast<double>(parts)});
        if (!timings) return timings.why();
        if (sum == 0) return error(ErrorCode::failed, "bench.route", "no logits were read");
        results.push_back({.model = std::string(model.name),
                           .method = std::string(name(model.method)),
                           .logits = std::string(tensor::name(dtype)),
                           .experts = model.experts,
                           .top_k = model.top_k,
                           .tokens = tokens,
                           .once = (*timings)[1],
                           .twice = (*timings)[2],
                           .read_gb_per_s = (*timings)[0].rate()});
      }
  return results;
}

Json to_json(const RouteResult& result, std::size_t threads) {
  Json created{{"model", result.model},
               {"method", result.method},
               {"logits", result.logits},
               {"experts", result.experts},
               {"top_k", result.top_k},
               {"tokens", result.tokens},
               {"threads", threads},
               {"tokens_per_s", rounded(result.tokens_per_s())},
               {"ns_per_token", rounded(result.ns_per_token())},
               {"ns_per_token_of_twice", rounded(result.ns_per_token() * result.growth())},
               {"growth", rounded(result.growth())},
               {"gb_per_s", rounded(result.once.rate())},
               {"read_gb_per_s", rounded(result.read_gb_per_s)},
               {"share_of_read", rounded(result.share_of_read())}};
  add_times(created, result.once);
  return created;
}

}  // namespace fp4moe::bench
