#include "fp4moe/bench/layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/bench/layer_cuda.hpp"
#include "fp4moe/bench/layer_exact.hpp"
#include "fp4moe/bench/layer_tokens.hpp"

namespace fp4moe::bench {
namespace {

using moe::DType;

constexpr std::uint64_t kMaxLayerTokens = 8192;
constexpr std::size_t kMinRoutings = 16, kMaxRoutings = 128;
constexpr std::uint64_t kUsualCache = std::uint64_t{32} << 20;
constexpr double kWorthTwice = 1;  // seconds from which on ceilings are measured again at the end
constexpr std::uint64_t kTimesCache = 4;  // weights between two uses of the same ones

// One engine with one numerics, and the position of its next call.
struct Contender {
  const NumericsWord* numerics = nullptr;
  LayerModel::Callable callable{};
  std::size_t next = 0;
};

// Shared by the measurements of all numbers of tokens.
struct Setup {
  const LayerBenchOptions& options;
  const LayerModel& model;
  std::shared_ptr<ThreadPool> pool{};
  std::vector<Contender> contenders{};
};

struct LayerWork {
  const TokenSet& tokens;
  ThreadPool& pool;
  std::vector<std::uint16_t> out{};  // bf16
};

Result<Done> call_next(LayerWork& work, Contender& contender) {
  const std::size_t number = contender.next++;
  moe::MonolithicKernel& layer =
      contender.callable.layers[number % contender.callable.layers.size()];
  return layer.apply(
      work.tokens.call(number % work.tokens.logits.size()),
      moe::dense_rows(std::span(work.out), DType::bf16, work.tokens.tokens, work.tokens.hidden),
      work.pool);
}

// Root mean square of the difference, as a share of that of the exact values.
Result<double> error_of(Contender& contender, const TokenSet& tokens, ThreadPool& pool,
                        std::span<const double> exact) {
  std::vector<float> out(tokens.tokens * tokens.hidden);
  const auto done = contender.callable.layers.front().apply(
      tokens.call(0), moe::dense_rows(std::span(out), DType::f32, tokens.tokens, tokens.hidden),
      pool);
  if (!done) return done.why();
  return relative_error(exact, out);
}

// The better of the two measurements, before and after.
void take_best(Ceilings& ceilings, const Ceilings& other) {
  for (double Ceilings::*rate : {&Ceilings::read_gb_per_s, &Ceilings::copy_gb_per_s,
                                 &Ceilings::int8_gop_per_s, &Ceilings::bf16_gflop_per_s})
    ceilings.*rate = std::max(ceilings.*rate, other.*rate);
}

Result<Ceilings> ceilings_for(const LayerBenchOptions& options, std::uint64_t cache) {
  if (options.ceilings) return *options.ceilings;
  return bench_ceilings({.threads = options.model.threads,
                         .megabytes = static_cast<std::size_t>(
                             std::clamp<std::uint64_t>(kTimesCache * cache >> 20, 64, 2048)),
                         .seconds = std::clamp(options.seconds / 8, 0.01, 1.0),
                         .features = options.features});
}

// Routings until calls have read enough bytes to evict the caches.
std::size_t routings_for(const LayerModel& model, std::uint64_t tokens, std::uint64_t cache) {
  const std::uint64_t active =
      std::min(model.shape().experts, tokens * std::max<std::uint64_t>(1, model.router().top_k));
  const double bytes = static_cast<double>(active) * model.expert_bytes();
  return std::clamp(static_cast<std::size_t>(static_cast<double>(kTimesCache * cache) / bytes) + 1,
                    kMinRoutings, kMaxRoutings);
}

Result<std::vector<LayerResult>> measure_tokens(Setup& setup, const TokenSet& tokens) {
  const LayerModel& model = setup.model;
  ThreadPool& pool = *setup.pool;
  const auto numerics = moe::require_numerics("exact");
  if (!numerics) return numerics.why();
  const auto exact = exact_outputs(model, model.problem(**numerics), tokens, setup.pool);
  if (!exact) return exact.why();
  LayerWork work{tokens, pool, std::vector<std::uint16_t>(tokens.tokens * tokens.hidden)};
  const double bytes = tokens.active_experts * model.expert_bytes();
  std::vector<LayerResult> results;
  std::vector<Job> jobs;
  for (Contender& contender : setup.contenders) {
    const Result<double> error = error_of(contender, tokens, pool, *exact);
    if (!error) return error.why();
    // Contenders are as far apart as they can be: none finds what another has just read.
    contender.next = results.size() * tokens.logits.size() / setup.contenders.size();
    results.push_back({.model = model.name(),
                       .format = std::string(formats::name(model.shape().format)),
                       .routing = setup.options.routing,
                       .engine = contender.callable.engine,
                       .kernel = contender.callable.kernel,
                       .numerics = std::string(contender.numerics->word),
                       .tokens = tokens.tokens,
                       .top_k = model.router().top_k,
                       .threads = pool.threads(),
                       .layers = model.layers(),
                       .routings = tokens.logits.size(),
                       .active_experts = tokens.active_experts,
                       .operations = 2.0 * static_cast<double>(tokens.tokens) *
                                     static_cast<double>(model.router().top_k) *
                                     static_cast<double>(model.expert_weights()),
                       .rel_error = *error});
    jobs.push_back(
        {results.back().kernel, bytes, [&work, &contender] { return call_next(work, contender); }});
  }
  const auto timings = measure(
      jobs, {.max = 400,
             .seconds = setup.options.seconds / static_cast<double>(setup.options.tokens.size())});
  if (!timings) return timings.why();
  for (std::size_t i = 0; i < results.size(); ++i) results[i].timing = (*timings)[i];
  return results;
}

}  // namespace

Result<LayerReport> bench_layer(const LayerBenchOptions& options) {
  if (std::ranges::find(options.engines, "cuda") != options.engines.end()) {
    if (options.engines.size() == 1) return bench_layer_cuda(options);
    return usage("bench.engines", "engine cuda is measured on the device, by itself")
        .expects("cuda alone", fmt::format("{}", fmt::join(options.engines, ",")));
  }
  for (const std::uint64_t tokens : options.tokens)
    if (tokens == 0 || tokens > kMaxLayerTokens)
      return usage("bench.tokens", "too many tokens")
          .expects(fmt::format("1 to {}", kMaxLayerTokens), fmt::format("{}", tokens));
  if (options.activations != std::vector<std::string>{"none"})
    return usage("bench.activations", "activations are quantized by engine cuda alone here")
        .expects("none", fmt::format("{}", fmt::join(options.activations, ",")))
        .try_this("--engine cuda");
  std::vector<const NumericsWord*> numerics;
  for (const std::string& word : options.numerics) {
    const auto row = require_numerics_word(word);
    if (!row) return row.why();
    numerics.push_back(*row);
  }
  const std::uint64_t cache =
      options.last_level_bytes == 0 ? kUsualCache : options.last_level_bytes;
  LayerModelOptions asked = options.model;
  asked.keep = kTimesCache * cache;
  const Result<LayerModel> model = LayerModel::open(asked);
  if (!model) return model.why();
  Setup setup{options, *model, std::make_shared<ThreadPool>(options.model.threads)};
  for (const std::string& engine : options.engines)
    for (const NumericsWord* row : numerics) {
      auto callable = model->make(engine, row->numerics, setup.pool);
      if (!callable) return callable.why();
      setup.contenders.push_back({row, std::move(*callable)});
    }

  LayerReport report;
  Result<Ceilings> ceilings = ceilings_for(options, cache);
  if (!ceilings) return ceilings.why();
  report.ceilings = std::move(*ceilings);
  for (const std::uint64_t tokens : options.tokens) {
    const auto set = make_tokens(model->router(),
                                 {.tokens = tokens,
                                  .hidden = model->shape().hidden,
                                  .routings = routings_for(*model, tokens, cache),
                                  .routing = options.routing,
                                  .seed = options.model.seed},
                                 *setup.pool);
    if (!set) return set.why();
    auto results = measure_tokens(setup, *set);
    if (!results) return results.why();
    std::ranges::move(*results, std::back_inserter(report.results));
  }
  if (options.seconds >= kWorthTwice) {
    const Result<Ceilings> after = ceilings_for(options, cache);
    if (!after) return after.why();
    take_best(report.ceilings, *after);
  }
  for (LayerResult& result : report.results) {
    const unsigned limbs = (*require_numerics_word(result.numerics))->limbs;
    result.floor_us = std::max(
        result.timing.work / report.ceilings.read_gb_per_s / 1e3,
        result.operations * static_cast<double>(limbs) / report.ceilings.int8_gop_per_s / 1e3);
  }
  return report;
}

Json to_json(const LayerResult& result) {
  Json created{{"model", result.model},
               {"format", result.format},
               {"tokens", result.tokens},
               {"top_k", result.top_k},
               {"active_experts", rounded(result.active_experts)},
               {"threads", result.threads},
               {"engine", result.engine},
               {"kernel", result.kernel},
               {"numerics", result.numerics},
               {"routing", result.routing},
               {"layers", result.layers},
               {"routings", result.routings},
               {"gb_per_s", rounded(result.timing.rate())},
               {"gflop_per_s", rounded(result.gflop_per_s())},
               {"floor_us", rounded(result.floor_us)},
               {"ratio_to_floor", rounded(result.ratio_to_floor())},
               {"rel_error", result.rel_error}};
  if (result.rel_error_unquantized)
    created["rel_error_unquantized"] = *result.rel_error_unquantized;
  if (!result.path.empty()) {
    created["activations"] = result.activations;
    created["path"] = result.path;
  }
  if (result.gpu_state) {
    created["clock_mhz"] = result.gpu_state->clock_mhz;
    created["power_w"] = result.gpu_state->power_w;
    created["temperature_c"] = result.gpu_state->temperature_c;
  }
  if (result.joules_per_token) created["joules_per_token"] = *result.joules_per_token;
  add_times(created, result.timing);
  return created;
}

Json to_json(const GpuFacts& gpu) {
  return {
      {"name", gpu.name},
      {"driver", fmt::format("{}.{}", gpu.driver_version / 1000, gpu.driver_version % 1000 / 10)},
      {"multiprocessors", gpu.multiprocessors},
      {"clock_mhz", gpu.clock_khz / 1000},
      {"warm_up_s", gpu.warm_up},
      {"seconds", rounded(gpu.seconds)},
      {"is_sustained", gpu.is_sustained()},
      {"memory_bytes", gpu.memory_bytes},
      {"l2_bytes", gpu.l2_bytes}};
}

std::string sustained_text(const GpuFacts& gpu) {
  const std::string times =
      fmt::format("after {:.3g} s of work, {:.3g} s measured", gpu.warm_up, gpu.seconds);
  if (gpu.is_sustained()) return fmt::format("sustained: {}", times);
  return fmt::format(
      "burst: {}, clocks may be higher than in use (sustained: from {:g} and {:g} s)", times,
      kSustainedWarmUp, kSustainedSeconds);
}

}  // namespace fp4moe::bench
