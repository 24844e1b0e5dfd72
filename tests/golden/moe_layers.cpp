// Golden cases of whole layers: each output of a case is computed by the reference engine with the
// numerics that it names, and compared.
//
//   exact and its parts    every element within 1e-12 of the largest
//   staged_*               bf16 values: equal, but for at most one element in a hundred that may be
//                          off by two units in the last place (a sum that lands on a tie)
//   *_staged               activations quantized on the way, where one flipped code is legal:
//                          cosine of at least 0.9999
//
// Other engines sum in float32 and may round activations to 16 bits: what is exact has there an
// error (relative root mean square) of at most moe::exactness; and since a last bit may turn the
// next rounding to bf16 over, staged outputs one of at most 2^-8, half a unit in the last place.
#include "golden/moe_layers.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/moe/reference/engine.hpp"
#include "golden/fields.hpp"
#include "golden/moe.hpp"
#include "golden/moe_layer.hpp"

namespace fp4moe::golden {
namespace {

using moe::ActivationKey;
using moe::ConstRows;
using moe::ExpertsCall;
using moe::ExpertsProblem;
using moe::OutputForm;
using moe::Prepared;
using moe::reference::ReferenceEngine;
using moe::reference::Trace;
using tensor::DType;

enum class Measure : std::uint8_t { exact, near, staged, near_staged, quantized };

struct ModeRow {
  std::string_view name;
  std::string_view numerics;
  ActivationKey quantizes = ActivationKey::none;
  Measure measure = Measure::staged;
};
constexpr ModeRow kModes[] = {
    {"exact", "exact", ActivationKey::none, Measure::exact},
    {"staged_bf16", "unfused"},
    {"staged_marlin", "marlin"},
    {"staged_trtllm_w4a16", "trtllm"},
    {"staged_triton_fused", "triton_fused"},
    {"w4a8_mxfp8_staged", "unfused", ActivationKey::mxfp8, Measure::quantized},
    {"w4a4_nvfp4_staged", "unfused", ActivationKey::nvfp4, Measure::quantized},
    {"w4a4_mxfp4_even_staged", "unfused", ActivationKey::mxfp4, Measure::quantized},
};

constexpr double kNearStaged = 0x1p-8;  // of other engines

Measure measure_by(Measure measure, const moe::Engine* engine) {
  if (engine == nullptr) return measure;
  if (measure == Measure::quantized) return measure;
  return measure == Measure::exact ? Measure::near : Measure::near_staged;
}

double unit_in_last_place(double value) {
  return value == 0 ? 0.0 : std::ldexp(1.0, std::ilogb(value) - 7);
}

struct Comparison {
  std::span<const double> found{};
  std::uint64_t columns = 1;
  const moe::Engine* by = nullptr;  // null: the reference
};

std::optional<Mismatch> mismatch_at(std::size_t i, double expected, const Comparison& with,
                                    std::string_view what) {
  return Mismatch{
      .what = fmt::format("{} at row {}, column {}", what, i / with.columns, i % with.columns),
      .expected = show(expected),
      .found = show(with.found[i])};
}

std::optional<Mismatch> compare_exact(const MoeValues& expected, const Comparison& with) {
  double largest = 0;
  for (const double value : expected.values) largest = std::max(largest, std::fabs(value));
  for (std::size_t i = 0; i < expected.values.size(); ++i)
    if (!(std::fabs(with.found[i] - expected.values[i]) <= 1e-12 * largest))
      return mismatch_at(i, expected.values[i], with, "beyond 1e-12 of the largest");
  return std::nullopt;
}

std::optional<Mismatch> compare_near(const MoeValues& expected, const Comparison& with,
                                     double allowed) {
  double wrong = 0, all = 0;
  std::size_t worst = 0;
  const auto difference = [&](std::size_t i) {
    return std::fabs(with.found[i] - expected.values[i]);
  };
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    wrong += difference(i) * difference(i);
    all += expected.values[i] * expected.values[i];
    if (!(difference(i) <= difference(worst))) worst = i;
  }
  if (wrong <= allowed * allowed * all) return std::nullopt;
  return mismatch_at(worst, expected.values[worst], with,
                     fmt::format("relative error {:.2e} is above {:g}, farthest",
                                 std::sqrt(wrong / all), allowed));
}

std::optional<Mismatch> compare_staged(const MoeValues& expected, const Comparison& with) {
  double largest = 0;
  for (const double value : expected.values) largest = std::max(largest, std::fabs(value));
  std::size_t unequal = 0, first = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double difference = std::fabs(with.found[i] - expected.values[i]);
    if (difference == 0) continue;
    const double allowed =
        2 * unit_in_last_place(expected.values[i]) + unit_in_last_place(largest / 64);
    if (!(difference <= allowed))
      return mismatch_at(i, expected.values[i], with, "beyond two units in the last place");
    if (unequal++ == 0) first = i;
  }
  if (unequal * 100 > expected.values.size())
    return mismatch_at(
        first, expected.values[first], with,
        fmt::format("{} of {} elements differ, first", unequal, expected.values.size()));
  return std::nullopt;
}

std::optional<Mismatch> compare_quantized(const MoeValues& expected, const Comparison& with) {
  double product = 0, own = 0, other = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    product += expected.values[i] * with.found[i];
    own += with.found[i] * with.found[i];
    other += expected.values[i] * expected.values[i];
    if (std::fabs(with.found[i] - expected.values[i]) >
        std::fabs(with.found[worst] - expected.values[worst]))
      worst = i;
  }
  if (expected.values.empty() || (own == 0 && other == 0)) return std::nullopt;
  const double cosine = product / std::sqrt(own * other);
  if (cosine >= 0.9999) return std::nullopt;
  return mismatch_at(worst, expected.values[worst], with,
                     fmt::format("cosine {:.6f} is below 0.9999, farthest", cosine));
}

std::optional<Mismatch> compare(Measure measure, const MoeValues& expected,
                                const Comparison& with) {
  switch (measure) {
    case Measure::exact:
      return compare_exact(expected, with);
    case Measure::near:
      return compare_near(expected, with, moe::exactness(with.by->name()).error);
    case Measure::near_staged:
      return compare_near(expected, with, kNearStaged);
    case Measure::staged:
      return compare_staged(expected, with);
    case Measure::quantized:
      break;
  }
  return compare_quantized(expected, with);
}

// The tokens as the experts see them: with the router's weight where it belongs on the input.
std::vector<double> input_rows(const MoeLayerCase& layer, const ModeRow& mode) {
  std::vector<double> x = layer.x.values();
  if (!layer.weight_on_input) return x;
  const std::uint64_t hidden = layer.shape.hidden;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double weight = layer.topk_weights[i / hidden];
    x[i] = mode.measure == Measure::exact
               ? x[i] * weight
               : moe::rounded_to_bf16(x[i] * moe::rounded_to_bf16(weight));
  }
  return x;
}

struct Computed {
  std::vector<double> out{};  // [tokens, hidden]
  Trace trace{};
};

struct How {
  const moe::Engine* engine = nullptr;  // null: the reference
  std::uint64_t traced = 0;             // the assignment whose stages it is asked for
};

Result<std::unique_ptr<moe::Experts>> make_experts(const How& how, const ExpertsProblem& problem,
                                                   const moe::ExpertSource& source, Trace& trace) {
  if (how.engine != nullptr) return how.engine->make(problem, source);
  const ReferenceEngine engine(std::make_shared<ThreadPool>(1));
  auto experts = engine.make_reference(problem, source);
  if (!experts) return experts.why();
  trace.assignment = how.traced;
  (*experts)->watch(&trace);
  return std::unique_ptr<moe::Experts>(std::move(*experts));
}

// Experts of `part`; expert_map is empty for the whole layer.
Result<Computed> compute(const MoeLayerCase& layer, const ModeRow& mode, const LayerPart& part,
                         const How& how) {
  const auto numerics = moe::require_numerics(mode.numerics);
  if (!numerics) return numerics.why();
  const moe::ExpertSource source = layer.source(part);
  const ExpertsProblem problem{.shape = source.shape,
                               .activation = layer.activation,
                               .params = layer.params,
                               .numerics = **numerics,
                               .quantizes = mode.quantizes,
                               .input_scales = {layer.a1_gscale},
                               .hidden_scales = {layer.a2_gscale}};
  Computed result;
  const auto experts = make_experts(how, problem, source, result.trace);
  if (!experts) return experts.why();
  std::vector<std::int32_t> map(layer.shape.experts, -1);
  for (std::size_t i = 0; i < part.experts.size(); ++i)
    map[part.experts[i]] = static_cast<std::int32_t>(i);

  const std::uint64_t hidden = layer.shape.hidden, tokens = layer.tokens;
  const std::vector<double> x = input_rows(layer, mode);
  std::vector<float> weights(layer.topk_weights.begin(), layer.topk_weights.end());
  const Prepared in{{.x = moe::dense_rows(std::span<const double>(x), DType::f64, tokens, hidden),
                     .top_k = layer.top_k,
                     .ids = layer.ids.numbers,
                     .weights = weights,
                     .adapters = layer.token_adapters}};
  const std::vector<moe::LoraExpert> lora = layer.lora();
  const ExpertsCall call{.in = in,
                         .expert_map = map,
                         .lora = {lora, layer.shape.experts},
                         .weight_on_input = layer.weight_on_input};
  result.out.assign(tokens * hidden, 0.0);
  if (mode.measure != Measure::exact) {
    const auto done =
        (*experts)->compute(call, OutputForm::summed,
                            moe::dense_rows(std::span(result.out), DType::f64, tokens, hidden));
    if (!done) return done.why();
    return result;
  }
  // Float32 weights would hide errors below 1e-7: assignments come without them, and are summed here.
  std::vector<double> assignments(tokens * layer.top_k * hidden, 0.0);
  const auto done = (*experts)->compute(
      call, OutputForm::assignments,
      moe::dense_rows(std::span(assignments), DType::f64, tokens * layer.top_k, hidden));
  if (!done) return done.why();
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    const double weight = layer.weight_on_input ? 1.0 : layer.topk_weights[i / hidden];
    result.out[i / hidden / layer.top_k * hidden + i % hidden] += weight * assignments[i];
  }
  return result;
}

Outcome run_mode(const MoeLayerCase& layer, const ModeRow& mode, const Json& outputs,
                 const moe::Engine* engine) {
  const Result<MoeValues> expected =
      read_moe_values(outputs, mode.name, {layer.tokens, layer.shape.hidden});
  if (!expected) return expected.why();
  const Result<Computed> found = compute(layer, mode, layer.whole(), {engine});
  if (!found) return found.why();
  return compare(measure_by(mode.measure, engine), *expected,
                 {found->out, layer.shape.hidden, engine});
}

struct Partition {
  LayerPart part{};
  std::uint64_t rank = 0;
};

Result<Partition> expert_part(const MoeLayerCase& layer, const Json& split, const Json& rank) {
  const Result<std::uint64_t> size = number_field(split, "ep_size", 1u << 16);
  if (!size) return size.why();
  const Result<std::string> strategy = string_field(split, "strategy");
  if (!strategy) return strategy.why();
  if (*strategy != "linear" && *strategy != "round_robin")
    return malformed("strategy", "linear or round_robin", *strategy);
  const Result<std::uint64_t> number = number_field(rank, "rank", *size);
  if (!number) return number.why();
  const Result<std::uint64_t> count = number_field(rank, "local_num_experts", layer.shape.experts);
  if (!count) return count.why();
  const auto placement =
      *strategy == "linear" ? checkpoint::Placement::linear : checkpoint::Placement::round_robin;
  Result<std::vector<std::uint64_t>> local =
      checkpoint::local_experts(layer.shape.experts, {*number, *size}, placement);
  if (!local) return local.why();
  if (local->size() != *count)
    return malformed("local_num_experts", fmt::format("{}", local->size()),
                     fmt::format("{}", *count));
  return Partition{{.experts = std::move(*local), .begin = 0, .end = layer.shape.intermediate},
                   *number};
}

Result<Partition> tensor_part(const MoeLayerCase& layer, const Json& split, const Json& rank) {
  const Result<std::uint64_t> size = number_field(split, "tp_size", 1u << 16);
  if (!size) return size.why();
  const Result<std::uint64_t> number = number_field(rank, "rank", *size);
  if (!number) return number.why();
  const std::uint64_t block = formats::block_size(layer.shape.format);
  const Result<checkpoint::Range> range = checkpoint::split_intermediate(
      layer.shape.intermediate, block, {*number, *size}, checkpoint::SplitRule::ceil_blocks);
  if (!range) return range.why();
  for (const auto& [key, value] : {std::pair{"start", range->begin}, {"end", range->end}}) {
    const Result<std::uint64_t> told = number_field(rank, key, layer.shape.intermediate);
    if (!told) return told.why();
    if (*told != value) return malformed(key, fmt::format("{}", value), fmt::format("{}", *told));
  }
  LayerPart part = layer.whole();
  part.begin = range->begin;
  part.end = range->end;
  return Partition{std::move(part), *number};
}

using PartOf = Result<Partition> (*)(const MoeLayerCase&, const Json&, const Json&);

struct SplitCase {
  const Json& split;
  const Json& outputs;  // of the whole layer
  PartOf part_of;
  const moe::Engine* engine;
};

// Every rank's partial result, and their sum against the whole.
Outcome run_split(const MoeLayerCase& layer, const SplitCase& given) {
  const Json& split = given.split;
  const Measure measure = measure_by(Measure::exact, given.engine);
  const auto ranks = split.find("ranks");
  if (ranks == split.end() || !ranks->is_array()) return malformed("ranks", "a list", "none");
  std::vector<double> sum(layer.tokens * layer.shape.hidden, 0.0);
  for (const Json& rank : *ranks) {
    const Result<Partition> part = given.part_of(layer, split, rank);
    if (!part) return part.why();
    const Result<MoeValues> expected =
        read_moe_values(rank, "partial", {layer.tokens, layer.shape.hidden});
    if (!expected) return expected.why();
    const Result<Computed> found = compute(layer, kModes[0], part->part, {given.engine});
    if (!found) return found.why();
    if (auto wrong = compare(measure, *expected, {found->out, layer.shape.hidden, given.engine})) {
      wrong->what = fmt::format("rank {}: {}", part->rank, wrong->what);
      return wrong;
    }
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += found->out[i];
  }
  const Result<MoeValues> whole =
      read_moe_values(given.outputs, "exact", {layer.tokens, layer.shape.hidden});
  if (!whole) return whole.why();
  auto wrong = compare(measure, *whole, {sum, layer.shape.hidden, given.engine});
  if (wrong) wrong->what = fmt::format("the sum over ranks: {}", wrong->what);
  return wrong;
}

// The reference tells w13's columns in their own order, we keep gates before ups.
std::vector<double> in_case_order(const MoeLayerCase& layer, const std::vector<double>& halves) {
  if (layer.shape.order != checkpoint::RowOrder::interleaved) return halves;
  std::vector<double> result(halves.size());
  for (std::size_t i = 0; i < halves.size() / 2; ++i) {
    result[2 * i] = halves[i];
    result[2 * i + 1] = halves[halves.size() / 2 + i];
  }
  return result;
}

Outcome run_debug(const MoeLayerCase& layer, const Json& debug) {
  const Result<std::uint64_t> token = number_field(debug, "token", layer.tokens);
  if (!token) return token.why();
  const Result<std::uint64_t> assignment = number_field(debug, "slot", layer.top_k);
  if (!assignment) return assignment.why();
  const Result<std::uint64_t> expert = number_field(debug, "expert", layer.shape.experts);
  if (!expert) return expert.why();
  const std::uint64_t number = *token * layer.top_k + *assignment;
  const Result<Computed> found = compute(layer, kModes[0], layer.whole(), {.traced = number});
  if (!found) return found.why();
  if (!found->trace.is_seen || layer.ids.numbers[number] != static_cast<std::int32_t>(*expert))
    return std::optional(Mismatch{"the assignment goes to another expert",
                                  fmt::format("{}", *expert),
                                  fmt::format("{}", layer.ids.numbers[number])});
  std::vector<double> weighted = found->trace.second;
  if (!layer.weight_on_input)
    for (double& value : weighted) value *= layer.topk_weights[number];
  const std::pair<std::string_view, std::vector<double>> stages[] = {
      {"gemm1", in_case_order(layer, found->trace.first)},
      {"act", found->trace.middle},
      {"weighted_gemm2", std::move(weighted)}};
  for (const auto& [key, values] : stages) {
    const Result<MoeValues> expected = read_moe_values(debug, key, {values.size()});
    if (!expected) return expected.why();
    if (auto wrong = compare_exact(*expected, {values, values.size()})) {
      wrong->what = fmt::format("{}: {}", key, wrong->what);
      return wrong;
    }
  }
  return std::optional<Mismatch>{};
}

// A layer's own routing is a case like those of the section `routing`.
Outcome run_routing(const Json& item) {
  const Json& told = item["routing"];
  const Result<std::string> method = string_field(told, "method");
  if (!method) return method.why();
  const Json& tensors = item["tensors"];
  Json params = told;
  params.erase("method");
  Json routing{{"method", *method},
               {"num_tokens", item["num_tokens"]},
               {"num_experts", item["num_experts"]},
               {"top_k", item["top_k"]},
               {"logits", tensors["router_logits"]},
               {"params", std::move(params)},
               {"topk_ids", item["topk_ids"]},
               {"topk_weights", item["topk_weights"]}};
  if (const auto bias = tensors.find("e_score_correction_bias"); bias != tensors.end())
    routing["bias"] = *bias;
  return check_moe_routing(routing);
}

// Layers of a file and who computes them.
struct LayerRun {
  const Json& item;
  std::string_view id;
  const moe::Engine* engine;
};

void run_splits(const MoeLayerCase& layer, const LayerRun& run, std::string_view key,
                Report& report) {
  const PartOf part_of = key == "expert_parallel" ? expert_part : tensor_part;
  const Json& outputs = run.item["outputs"];
  const Json& splits = outputs[std::string(key)];
  if (!splits.is_array())
    return report.add(fmt::format("{}/{}", run.id, key),
                      malformed(key, "a list", splits.type_name()));
  for (std::size_t i = 0; i < splits.size(); ++i)
    report.add(fmt::format("{}/{}/{}", run.id, key, i),
               run_split(layer, {splits[i], outputs, part_of, run.engine}));
}

void run_layer(const LayerRun& run, Report& report) {
  const auto& [item, id, engine] = run;
  const Result<MoeLayerCase> layer = read_layer_case(item);
  if (!layer) return report.add(id, layer.why());
  const auto outputs = item.find("outputs");
  if (outputs == item.end() || !outputs->is_object())
    return report.add(id, malformed("outputs", "an object", "none"));
  for (const auto& [key, value] : outputs->items()) {
    if (key == "expert_parallel" || key == "tensor_parallel") {
      run_splits(*layer, run, key, report);
      continue;
    }
    const std::string case_id = fmt::format("{}/{}", id, key);
    const auto mode = std::ranges::find(kModes, std::string_view(key), &ModeRow::name);
    report.add(case_id, mode == std::end(kModes) ? Outcome(malformed("outputs", "known modes", key))
                                                 : run_mode(*layer, *mode, *outputs, engine));
  }
  if (layer->logits && item.contains("routing"))
    report.add(fmt::format("{}/routing", id), run_routing(item));
  if (const auto debug = item.find("debug"); debug != item.end() && engine == nullptr)
    report.add(fmt::format("{}/debug", id), run_debug(*layer, *debug));
}

}  // namespace

void run_moe_layers(const Json& layers, const moe::Engine* engine, Report& report) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Result<std::string> name = string_field(layers[i], "name");
    const std::string id = name ? fmt::format("layers/{}", *name) : fmt::format("layers/{}", i);
    run_layer({layers[i], id, engine}, report);
  }
}

}  // namespace fp4moe::golden
