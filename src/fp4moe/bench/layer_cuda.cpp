#include "fp4moe/bench/layer_cuda.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/bench/layer_exact.hpp"
#include "fp4moe/bench/layer_tokens.hpp"
#include "fp4moe/moe/cuda/device_layer.hpp"
#include "fp4moe/moe/cuda/handles.hpp"

namespace fp4moe::bench {
namespace {

using kernels::cuda::Device;
using DeviceMemory = kernels::cuda::Memory;
using moe::ActivationKey;
using moe::DType;
using moe::cuda::DeviceCall;
using moe::cuda::DeviceLayer;
using moe::cuda::DeviceRouter;
using moe::cuda::OwnEvent;
using moe::cuda::OwnGraph;
using moe::cuda::OwnStream;
using moe::cuda::Workspace;

constexpr std::uint64_t kMaxDeviceTokens = 1 << 18;  // activations of more than 2^31 elements
constexpr std::uint64_t kMinDeviceLayers = 6, kMaxDeviceLayers = 64;  // in rotation
constexpr std::uint64_t kTimesL2 = 4;  // bytes between two uses of the same weights
constexpr std::size_t kMinReplays = 7;
constexpr double kWarmAgain = 1;  // seconds, after tokens were made on the CPU

// A type that activations are quantized to, with scales that suit random tokens.
struct ActivationsWord {
  std::string_view word;
  ActivationKey key;
  float input, hidden;  // G of NVFP4, the scale of static FP8
  moe::cuda::DeviceLayerOptions options{};
};
constexpr ActivationsWord kActivationsWords[] = {
    {"none", ActivationKey::none, 0, 0},
    {"mxfp8", ActivationKey::mxfp8, 0, 0},
    {"mxfp4", ActivationKey::mxfp4, 0, 0},
    {"nvfp4", ActivationKey::nvfp4, 400, 100},
    {"fp8", ActivationKey::fp8_static_tensor, 0.0125f, 0.05f},
    {"fp8_token", ActivationKey::fp8_token, 0, 0},
    {"fp8_block", ActivationKey::fp8_block128, 0, 0},
    // The same values, multiplied in bf16.
    {"fp8_token_in_bf16", ActivationKey::fp8_token, 0, 0, {.allow_fp8 = false}},
    {"fp8_block_in_bf16", ActivationKey::fp8_block128, 0, 0, {.allow_fp8 = false}}};

Result<const ActivationsWord*> require_activations(std::string_view word) {
  std::vector<std::string_view> words;
  for (const ActivationsWord& row : kActivationsWords) {
    if (row.word == word) return &row;
    words.push_back(row.word);
  }
  return usage("bench.activations", "activations are not quantized to that")
      .expects(fmt::format("one of {}", fmt::join(words, ", ")),
               fmt::format("'{}'", printable(word)));
}

moe::ExpertsProblem with_activations(moe::ExpertsProblem problem, const ActivationsWord& word) {
  problem.quantizes = word.key;
  if (word.input != 0) {
    problem.input_scales = {word.input};
    problem.hidden_scales = {word.hidden};
  }
  return problem;
}

// One scheme of activations: the layers under it, and the graph of their rotation.
struct DeviceContender {
  const NumericsWord* numerics = nullptr;
  const ActivationsWord* activations = nullptr;
  moe::ExpertsProblem problem{};
  std::vector<DeviceLayer> layers{};
  OwnGraph graph{};
};

struct DeviceSetup {
  const LayerBenchOptions& options;
  const LayerModel& model;
  std::shared_ptr<const Device> device{};
  std::shared_ptr<ThreadPool> pool{};
  DeviceRouter router;
  OwnStream stream;
  OwnEvent begin, end;
  GpuMonitor monitor;
  double warm_up = 0;   // seconds of work that are still due
  double measured = 0;  // seconds of measurement so far
  std::vector<DeviceContender> contenders{};
};

// Tokens and logits in the device's memory.
struct DeviceTokens {
  const TokenSet& set;
  DeviceMemory x{}, out{};
  std::vector<DeviceMemory> logits{};
};

Result<DeviceMemory> put(const Device& device, std::span<const std::byte> bytes) {
  Result<DeviceMemory> memory = device.allocate(bytes.size());
  if (!memory) return memory.why();
  if (const auto sent = device.upload(memory->data(), bytes, nullptr); !sent) return sent.why();
  if (const auto done = device.wait(nullptr); !done) return done.why();
  return memory;
}

Result<DeviceTokens> upload_tokens(const Device& device, const TokenSet& set) {
  DeviceTokens result{.set = set};
  Result<DeviceMemory> x = put(device, std::as_bytes(std::span(set.x)));
  if (!x) return x.why();
  result.x = std::move(*x);
  Result<DeviceMemory> out = device.allocate(set.tokens * set.hidden * 2);
  if (!out) return out.why();
  result.out = std::move(*out);
  for (const std::vector<float>& values : set.logits) {
    Result<DeviceMemory> logits = put(device, std::as_bytes(std::span(values)));
    if (!logits) return logits.why();
    result.logits.push_back(std::move(*logits));
  }
  return result;
}

DeviceCall call_of(const DeviceSetup& setup, const DeviceTokens& tokens, std::size_t routing) {
  const TokenSet& set = tokens.set;
  return {.in = {{.x = {tokens.x.data(), DType::bf16, set.tokens, set.hidden, set.hidden * 2},
                  .logits = {tokens.logits[routing].data(), DType::f32, set.tokens, set.experts,
                             set.experts * sizeof(float)}}},
          .router = &setup.router,
          .out = {tokens.out.data(), DType::bf16, set.tokens, set.hidden, set.hidden * 2}};
}

// Layers that evict the L2 cache in rotation, of those that fit.
Result<std::uint64_t> rotation(const LayerBenchOptions& options, const LayerModel& model,
                               const Device& device) {
  const double token = model.expert_bytes() * static_cast<double>(model.router().top_k);
  const double layer = model.expert_bytes() * static_cast<double>(model.shape().experts);
  std::uint64_t wanted = options.model.layers;
  if (wanted == 0)
    wanted = std::max(kMinDeviceLayers,
                      static_cast<std::uint64_t>(
                          static_cast<double>(kTimesL2 * device.facts().l2_bytes) / token) +
                          1);
  const Result<std::uint64_t> free = device.free_bytes();
  if (!free) return free.why();
  const auto fit = static_cast<std::uint64_t>(0.7 * static_cast<double>(*free) / layer);
  if (fit == 0)
    return error(ErrorCode::exhausted, "bench.memory", "one layer does not fit into the device")
        .expects(human_bytes(static_cast<std::uint64_t>(layer)), human_bytes(*free))
        .try_this("measure a smaller model");
  return std::min(wanted, fit);
}

std::size_t rounds_for(std::uint64_t tokens) { return tokens <= 64 ? 4 : tokens <= 512 ? 2 : 1; }

struct DeviceErrors {
  double rel = 0;
  std::optional<double> unquantized{};  // where activations are quantized
};

// The first layer and routing against the reference, with activations quantized as here and, once for
// all contenders, as they came.
Result<DeviceErrors> check_error(const DeviceSetup& setup, const DeviceContender& contender,
                                 const DeviceTokens& tokens, const Workspace& space,
                                 std::vector<double>& unquantized) {
  const auto numerics = moe::require_numerics("exact");
  if (!numerics) return numerics.why();
  moe::ExpertsProblem problem = contender.problem;
  problem.numerics = **numerics;
  const auto exact = exact_outputs(setup.model, problem, tokens.set, setup.pool);
  if (!exact) return exact.why();
  const bool is_quantized = contender.activations->key != ActivationKey::none;
  if (is_quantized && unquantized.empty()) {
    auto outputs =
        exact_outputs(setup.model, setup.model.problem(**numerics), tokens.set, setup.pool);
    if (!outputs) return outputs.why();
    unquantized = std::move(*outputs);
  }
  const Device& device = *setup.device;
  const DeviceCall call = call_of(setup, tokens, 0);
  if (const auto done =
          device.clear(tokens.out.data(), 0xFF, tokens.out.size(), setup.stream.get());
      !done)
    return done.why();
  const auto applied = contender.layers.front().apply(call, space, setup.stream.get());
  if (!applied) return applied.why();
  const std::uint64_t count = exact->size() / tokens.set.hidden;
  std::vector<std::uint16_t> found(exact->size());
  const auto fetched = device.download(std::as_writable_bytes(std::span(found)), tokens.out.data(),
                                       setup.stream.get());
  if (!fetched) return fetched.why();
  if (const auto done = device.wait(setup.stream.get()); !done) return done.why();
  std::vector<float> values(found.size());
  const moe::ConstRows rows =
      moe::dense_rows(std::span<const std::uint16_t>(found), DType::bf16, count, tokens.set.hidden);
  for (std::uint64_t r = 0; r < count; ++r)
    moe::read_row(rows, r, std::span(values).subspan(r * rows.columns, rows.columns));
  DeviceErrors result{.rel = relative_error(*exact, values)};
  if (is_quantized) result.unquantized = relative_error(unquantized, values);
  return result;
}

// Every routing once, layers in rotation.
Result<OwnGraph> capture(const DeviceSetup& setup, const DeviceContender& contender,
                         const DeviceTokens& tokens, const Workspace& space) {
  const Device& device = *setup.device;
  if (const auto begun = device.begin_capture(setup.stream.get()); !begun) return begun.why();
  Result<Done> done = Done{};
  for (std::size_t i = 0; done && i < tokens.logits.size(); ++i)
    done = contender.layers[i % contender.layers.size()].apply(call_of(setup, tokens, i), space,
                                                               setup.stream.get());
  const Result<void*> graph = device.end_capture(setup.stream.get());
  if (graph) {
    OwnGraph result(setup.device, *graph);
    if (done) return result;
  }
  return done ? graph.why() : done.why();
}

Result<double> replay(const DeviceSetup& setup, const OwnGraph& graph, std::size_t calls) {
  const Device& device = *setup.device;
  if (const auto done = device.record(setup.begin.get(), setup.stream.get()); !done)
    return done.why();
  if (const auto done = device.replay(graph.get(), setup.stream.get()); !done) return done.why();
  if (const auto done = device.record(setup.end.get(), setup.stream.get()); !done)
    return done.why();
  const Result<float> took = device.microseconds(setup.begin.get(), setup.end.get());
  if (!took) return took.why();
  return double{*took} / static_cast<double>(calls);
}

LayerResult describe_result(const DeviceSetup& setup, const DeviceContender& contender,
                            const TokenSet& set) {
  const LayerModel& model = setup.model;
  const DeviceLayer& layer = contender.layers.front();
  // "sm90/decode", of which the report shows "decode".
  const std::string_view kernel =
      layer.kernel({.tokens = set.tokens, .top_k = setup.router.top_k()});
  return {.model = model.name(),
          .format = std::string(formats::name(model.shape().format)),
          .routing = setup.options.routing,
          .engine = "cuda",
          .kernel = fmt::format(
              "{}/{}{}{}", kernels::cuda::name(layer.device().family()), contender.numerics->word,
              contender.activations->key == ActivationKey::none ? "" : "+",
              contender.activations->key == ActivationKey::none ? "" : contender.activations->word),
          .numerics = std::string(contender.numerics->word),
          .activations = std::string(contender.activations->word),
          .path = std::string(kernel.substr(kernel.find('/') + 1)),
          .tokens = set.tokens,
          .top_k = model.router().top_k,
          .threads = 1,
          .layers = contender.layers.size(),
          .routings = set.logits.size(),
          .active_experts = set.active_experts,
          .operations = 2.0 * static_cast<double>(set.tokens) *
                        static_cast<double>(model.router().top_k) *
                        static_cast<double>(model.expert_weights())};
}

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Works until the GPU has the clock and the temperature of a server under load.
Result<Done> warm_up(DeviceSetup& setup, std::size_t calls) {
  const Clock::time_point start = Clock::now();
  while (Clock::now() - start < Seconds(setup.warm_up))
    if (const auto took = replay(setup, setup.contenders.front().graph, calls); !took)
      return took.why();
  setup.warm_up = std::min(setup.warm_up, kWarmAgain);
  return Done{};
}

Result<std::vector<LayerResult>> measure_on_device(DeviceSetup& setup, const TokenSet& set) {
  const auto tokens = upload_tokens(*setup.device, set);
  if (!tokens) return tokens.why();
  std::vector<LayerResult> results;
  std::vector<Workspace> spaces;
  std::vector<double> unquantized;
  for (DeviceContender& contender : setup.contenders) {
    Result<Workspace> space =
        contender.layers.front().reserve({.tokens = set.tokens, .top_k = setup.router.top_k()});
    if (!space) return space.why();
    const auto errors = check_error(setup, contender, *tokens, *space, unquantized);
    if (!errors) return errors.why();
    results.push_back(describe_result(setup, contender, set));
    results.back().rel_error = errors->rel;
    results.back().rel_error_unquantized = errors->unquantized;
    Result<OwnGraph> graph = capture(setup, contender, *tokens, *space);
    if (!graph) return graph.why();
    contender.graph = std::move(*graph);
    spaces.push_back(std::move(*space));
  }
  if (const auto done = warm_up(setup, set.logits.size()); !done) return done.why();
  // Interleaved, so that clocks are the same for all of them.
  std::vector<std::vector<Sample>> samples(results.size());
  const Seconds budget(setup.options.seconds / static_cast<double>(setup.options.tokens.size()));
  const std::optional<double> joules_before = setup.monitor.joules();
  const Clock::time_point start = Clock::now();
  for (std::size_t round = 0;; ++round) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto took = replay(setup, setup.contenders[i].graph, set.logits.size());
      if (!took) return took.why();
      if (round > 0) samples[i].push_back({.us = *took});  // the first warms up
    }
    if (round >= kMinReplays && Clock::now() - start > budget) break;
  }
  setup.measured += Seconds(Clock::now() - start).count();
  const std::optional<GpuState> state = setup.monitor.state();
  const std::optional<double> joules = setup.monitor.joules();
  if (results.size() == 1 && joules_before && joules)
    results[0].joules_per_token =
        (*joules - *joules_before) /
        static_cast<double>((samples[0].size() + 1) * set.logits.size() * set.tokens);
  const double bytes = set.active_experts * setup.model.expert_bytes();
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].timing = summarize(samples[i], bytes);
    results[i].gpu_state = state;
  }
  return results;
}

Result<Done> make_contenders(DeviceSetup& setup, std::uint64_t layers) {
  for (const std::string& numerics : setup.options.numerics)
    for (const std::string& activations : setup.options.activations) {
      const auto row = require_numerics_word(numerics);
      if (!row) return row.why();
      const auto word = require_activations(activations);
      if (!word) return word.why();
      const auto own = moe::require_numerics((*row)->numerics);
      if (!own) return own.why();
      DeviceContender& result = setup.contenders.emplace_back();
      result.numerics = *row;
      result.activations = *word;
      result.problem = with_activations(setup.model.problem(**own), **word);
      for (std::uint64_t i = 0; i < layers; ++i) {
        // Weights are uploaded once.
        Result<DeviceLayer> layer =
            setup.contenders.size() == 1
                ? DeviceLayer::make(setup.device, result.problem, setup.model.source(i),
                                    result.activations->options)
                : setup.contenders.front().layers[i].with_numerics(result.problem,
                                                                   result.activations->options);
        if (!layer) return layer.why();
        result.layers.push_back(std::move(*layer));
      }
    }
  return Done{};
}

}  // namespace

Result<LayerReport> bench_layer_cuda(const LayerBenchOptions& options) {
  for (const std::uint64_t tokens : options.tokens)
    if (tokens == 0 || tokens > kMaxDeviceTokens)
      return usage("bench.tokens", "too many tokens")
          .expects(fmt::format("1 to {}", kMaxDeviceTokens), fmt::format("{}", tokens));
  const auto device = Device::open(0);
  if (!device) return device.why();
  LayerModelOptions asked = options.model;
  asked.packs = false;
  asked.layers = kMaxDeviceLayers;  // none is made yet
  asked.memory = 0;
  const Result<LayerModel> model = LayerModel::open(asked);
  if (!model) return model.why();
  Result<DeviceRouter> router = DeviceRouter::make(*device, model->router());
  if (!router) return router.why();
  Result<OwnStream> stream = moe::cuda::own_stream(*device);
  if (!stream) return stream.why();
  Result<OwnEvent> begin = moe::cuda::own_event(*device), end = moe::cuda::own_event(*device);
  if (!begin) return begin.why();
  if (!end) return end.why();
  DeviceSetup setup{.options = options,
                    .model = *model,
                    .device = *device,
                    .pool = std::make_shared<ThreadPool>(options.model.threads),
                    .router = std::move(*router),
                    .stream = std::move(*stream),
                    .begin = std::move(*begin),
                    .end = std::move(*end),
                    .monitor = GpuMonitor((*device)->facts()),
                    .warm_up = options.warm_up};

  const kernels::cuda::DeviceFacts& facts = (*device)->facts();
  LayerReport report;
  Result<Ceilings> ceilings = device_ceilings(**device);
  if (!ceilings) return ceilings.why();
  report.ceilings = std::move(*ceilings);
  const Result<std::uint64_t> layers = rotation(options, *model, **device);
  if (!layers) return layers.why();
  if (const auto result = make_contenders(setup, std::min<std::uint64_t>(*layers, model->layers()));
      !result)
    return result.why();
  for (const std::uint64_t tokens : options.tokens) {
    const auto set =
        make_tokens(model->router(),
                    {.tokens = tokens,
                     .hidden = model->shape().hidden,
                     .routings = setup.contenders.front().layers.size() * rounds_for(tokens),
                     .routing = options.routing,
                     .seed = options.model.seed},
                    *setup.pool);
    if (!set) return set.why();
    auto results = measure_on_device(setup, *set);
    if (!results) return results.why();
    std::ranges::move(*results, std::back_inserter(report.results));
  }
  report.gpu = GpuFacts{.name = facts.name,
                        .driver_version = facts.driver_version,
                        .multiprocessors = facts.multiprocessors,
                        .clock_khz = facts.clock_khz,
                        .warm_up = options.warm_up,
                        .seconds = setup.measured,
                        .memory_bytes = facts.memory_bytes,
                        .l2_bytes = facts.l2_bytes};
  for (LayerResult& result : report.results)
    result.floor_us = std::max(result.timing.work / report.ceilings.read_gb_per_s / 1e3,
                               result.operations / report.ceilings.bf16_gflop_per_s / 1e3);
  return report;
}

}  // namespace fp4moe::bench
