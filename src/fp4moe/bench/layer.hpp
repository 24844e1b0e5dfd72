// How long does a whole MoE layer take, from router logits to output, and how far is that from what
// the machine must spend? The floor of a call is the larger of two times: reading the weights of
// its experts once, and multiplying all its tokens with them.
//
// Calls rotate over several layers and many routings, so that weights come from memory.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/ceilings.hpp"
#include "fp4moe/bench/gpu_monitor.hpp"
#include "fp4moe/bench/layer_model.hpp"
#include "fp4moe/bench/measure.hpp"

namespace fp4moe::bench {

struct LayerBenchOptions {
  LayerModelOptions model{};
  std::vector<std::uint64_t> tokens{1, 4, 16, 64};
  std::vector<std::string> engines{"auto"};
  std::vector<std::string> numerics{"exact"};  // of kNumericsWords; measured interleaved
  // Engine cuda: what activations are quantized to on the way; measured interleaved.
  std::vector<std::string> activations{"none"};
  std::string routing = "uniform";           // or "skewed"
  std::uint64_t last_level_bytes = 0;        // of cache; 0: as if it were 32 MiB
  EnumSet<platform::CpuFeature> features{};  // for the ceilings
  double seconds = 10;                       // for everything together
  double warm_up = 10;                       // engine cuda: seconds of work before it
  std::optional<Ceilings> ceilings{};        // none: measured before and after
};

struct LayerResult {
  std::string model{}, format{}, routing{}, engine{}, kernel{}, numerics{};
  std::string activations{}, path{};  // engine cuda: what they are quantized to; decode or rows
  std::uint64_t tokens = 0, top_k = 0;
  std::size_t threads = 1, layers = 0, routings = 0;
  double active_experts = 0;  // of a call, on average
  Timing timing{};            // work: bytes of active experts
  double operations = 0;      // of a call; a multiply-add counts 2
  double floor_us = 0;
  // Root mean square of a few tokens, against float64 of the same quantized activations; where they
  // are quantized, also against float64 of the activations as they came.
  double rel_error = 0;
  std::optional<double> rel_error_unquantized{};
  // Engine cuda, with NVML: at the end of the measurement, and energy if it was measured alone.
  std::optional<GpuState> gpu_state{};
  std::optional<double> joules_per_token{};

  double gflop_per_s() const { return operations / timing.us_median / 1e3; }
  double ratio_to_floor() const { return timing.us_median / floor_us; }
};

// A report is sustained after so many seconds of work, with so many of measurement; else a burst.
inline constexpr double kSustainedWarmUp = 10, kSustainedSeconds = 4;
// The device that engine cuda was measured on.
struct GpuFacts {
  std::string name{};
  int driver_version = 0, multiprocessors = 0, clock_khz = 0;
  // Seconds of work before the measurement, and of the measurement: replays of all numbers of tokens.
  double warm_up = 0, seconds = 0;
  std::uint64_t memory_bytes = 0, l2_bytes = 0;

  bool is_sustained() const { return warm_up >= kSustainedWarmUp && seconds >= kSustainedSeconds; }
};

struct LayerReport {
  Ceilings ceilings{};
  std::optional<GpuFacts> gpu{};  // then the ceilings are its own
  std::vector<LayerResult> results{};
};

// Engine cuda, which measures on the device itself, is asked for alone. Errors: bench.tokens,
// bench.routing, bench.numerics, bench.engines (cuda and others together), bench.activations, those
// of the model, the engine and a call.
Result<LayerReport> bench_layer(const LayerBenchOptions& options);

Json to_json(const LayerResult& result);
Json to_json(const GpuFacts& gpu);
// "sustained: after 10 s of work, 4 s measured", or why it is a burst.
std::string sustained_text(const GpuFacts& gpu);

}  // namespace fp4moe::bench
