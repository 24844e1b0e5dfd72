#include "fp4moe/bench/layer_model.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/runtime/engines.hpp"
#include "fp4moe/runtime/layer.hpp"

namespace fp4moe::bench {
namespace {

using runtime::PackedWeights;

constexpr std::uint64_t kMinLayers = 2, kMaxLayers = 64;

// Groups of a family's router, which the table of models does not hold:
// without them DeepSeek's experts would not be grouped.
void use_groups(const checkpoint::ModelRow& row, checkpoint::ModelConfig& config) {
  if (row.model_type != "deepseek_v3") return;
  config.groups = 8;
  config.chosen_groups = 4;
  config.routed_scale = 2.5;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

Result<const NumericsWord*> require_numerics_word(std::string_view word) {
  std::vector<std::string_view> words;
  for (const NumericsWord& row : kNumericsWords) {
    if (row.word == word) return &row;
    words.push_back(row.word);
  }
  return usage("bench.numerics", "there are no such numerics to measure")
      .expects(fmt::format("one of {}", fmt::join(words, ", ")),
               fmt::format("'{}'", printable(word)));
}

Result<LayerModel> LayerModel::open(const LayerModelOptions& options) {
  LayerModel result;
  result.name_ = options.model;
  const bool is_path = checkpoint::find_model(options.model) == nullptr && exists(options.model);
  Result<Done> done = is_path ? result.read_checkpoint(options) : result.read_table(options);
  if (done) done = result.choose(options);
  if (done) done = is_path ? result.pack_checkpoint(options) : result.pack_random(options);
  if (!done) return done.why();
  return result;
}

Result<Done> LayerModel::read_table(const LayerModelOptions& options) {
  const Result<const checkpoint::ModelRow*> row = checkpoint::require_model(options.model);
  if (!row) return row.why();
  std::optional<checkpoint::WeightFormat> format;
  if (!options.format.empty()) {
    format = formats::weight_format_from_name(options.format);
    if (!format)
      return usage("bench.format", "there is no such format of weights")
          .expects("mxfp4 or nvfp4", fmt::format("'{}'", printable(options.format)));
  }
  plan::Model model = plan::model_from_row(**row, format);
  if (options.experts != 0) model.shape.experts = options.experts;
  if (options.hidden != 0) model.shape.hidden = options.hidden;
  if (options.intermediate != 0) model.shape.intermediate = options.intermediate;
  checkpoint::ModelConfig config;
  config.model_type = (*row)->model_type;
  config.top_k = std::min((*row)->top_k, model.shape.experts);
  use_groups(**row, config);
  const auto nothing = [](std::string_view) -> std::optional<tensor::TensorView> { return {}; };
  const auto no_names = [](std::string_view) { return std::vector<std::string>(); };
  Result<runtime::LayerFacts> facts =
      runtime::layer_facts(config, model.shape, "model.layers.0.", model.rule, nothing, no_names);
  if (!facts) return facts.why();
  facts_ = std::move(*facts);
  return Done{};
}

Result<Done> LayerModel::read_checkpoint(const LayerModelOptions& options) {
  Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(options.model);
  if (!checkpoint) return checkpoint.why();
  checkpoint_ = std::make_unique<checkpoint::Checkpoint>(std::move(*checkpoint));
  if (checkpoint_->layers().empty())
    return invalid("bench.layers", "the checkpoint has no MoE layer to measure").in(options.model);
  Result<runtime::LayerFacts> facts = runtime::layer_facts(*checkpoint_, 0);
  if (!facts) return facts.why();
  facts_ = std::move(*facts);
  const std::string_view format = formats::name(shape().format);
  if (!options.format.empty() && options.format != format)
    return usage("bench.format", "the checkpoint's weights have another format")
        .in(options.model)
        .expects(format, fmt::format("'{}'", printable(options.format)));
  return Done{};
}

Result<Done> LayerModel::choose(const LayerModelOptions& options) {
  const std::string_view activation = oracle::name(facts_.model.layer.activation);
  if (!moe::activation_from_name(activation))
    return usage("bench.activation", "this activation is not computed here")
        .expects("a known activation", activation);
  // Weights alone are measured: activations stay in 16 bits, whatever the checkpoint offers.
  runtime::BackendRequest backend_request{.backend = "CPU", .device = options.device};
  Result<runtime::Choice> choice = runtime::choose(facts_.model, {}, backend_request);
  if (!choice) return choice.why();
  choice_ = std::move(*choice);
  return Done{};
}

Result<std::uint64_t> LayerModel::count_layers(const LayerModelOptions& options) const {
  const double layer = expert_bytes() * static_cast<double>(shape().experts);
  std::uint64_t wanted = options.layers;
  if (wanted == 0)
    wanted = std::clamp(static_cast<std::uint64_t>(static_cast<double>(options.keep) / layer) + 1,
                        kMinLayers, kMaxLayers);
  if (options.memory == 0) return wanted;
  const auto fit = static_cast<std::uint64_t>(static_cast<double>(options.memory) / layer);
  if (fit == 0)
    return error(ErrorCode::exhausted, "bench.memory", "one layer does not fit into memory")
        .expects(human_bytes(static_cast<std::uint64_t>(layer)),
                 fmt::format("{} for weights", human_bytes(options.memory)))
        .try_this("measure a smaller model");
  return std::min(wanted, fit);
}

Result<Done> LayerModel::pack_random(const LayerModelOptions& options) {
  const Result<std::uint64_t> count = count_layers(options);
  if (!count) return count.why();
  layers_ = *count;
  Result<RandomExperts> experts = RandomExperts::make(shape(), options.seed);
  if (!experts) return experts.why();
  if (!options.packs) {
    random_ = std::make_unique<RandomExperts>(std::move(*experts));
    return Done{};
  }
  const convert::Recipe recipe = choice_.recipe({}, facts_.model.layer.activation);
  const auto padded = convert::padded_sizes(recipe.sizing, shape(), {}, facts_.model.rule);
  if (!padded) return padded.why();
  const convert::Problem problem{.experts = shape().experts,
                                 .real = {shape().hidden, shape().intermediate},
                                 .padded = *padded,
                                 .order = shape().order,
                                 .has_bias = shape().has_bias};
  packed_.resize(*count);
  return parallel_for(options.threads, *count, [&](std::size_t layer) -> Result<Done> {
    Result<PackedWeights> packed = PackedWeights::create(*choice_.layout, problem);
    if (!packed) return packed.why();
    packed_[layer] = std::make_unique<PackedWeights>(std::move(*packed));
    return packed_[layer]->load(experts->source(layer));
  });
}

// Layers of the first one's shape; where there are fewer than caches need, copies of them.
Result<Done> LayerModel::pack_checkpoint(const LayerModelOptions& options) {
  const Result<std::uint64_t> count = count_layers(options);
  if (!count) return count.why();
  const convert::Recipe recipe = choice_.recipe({}, facts_.model.layer.activation);
  std::vector<std::size_t> alike;
  for (std::size_t layer = 0; layer < checkpoint_->layers().size(); ++layer)
    if (checkpoint_->layers()[layer].shape == shape()) alike.push_back(layer);
  layers_ = *count;
  for (std::size_t i = 0; i < *count; ++i) {
    auto job = convert::layer_job(*checkpoint_, alike[i % alike.size()], recipe);
    if (!job) return job.why();
    Result<PackedWeights> packed = options.packs
                                       ? PackedWeights::create(*choice_.layout, job->problem)
                                       : PackedWeights::describe(*choice_.layout, job->problem);
    if (!packed) return packed.why();
    packed_.push_back(std::make_unique<PackedWeights>(std::move(*packed)));
    if (!options.packs) {
      jobs_.push_back(std::make_unique<convert::LayerJob>(std::move(*job)));
      if (const auto rows = packed_.back()->source(*jobs_.back()); !rows) return rows.why();
      continue;
    }
    if (const auto done = packed_.back()->load(*job, options.threads); !done) return done.why();
  }
  return Done{};
}

moe::ExpertSource LayerModel::source(std::size_t layer) const {
  if (random_) return random_->source(layer);
  if (jobs_.empty()) return packed_[layer]->source();
  auto rows = packed_[layer]->source(*jobs_[layer]);
  return rows ? std::move(*rows) : packed_[layer]->source();  // asked for when it was opened
}

std::uint64_t LayerModel::expert_weights() const {
  return (shape().w13_rows() + shape().intermediate) * shape().hidden;
}

double LayerModel::expert_bytes() const {
  const double per_weight = 0.5 + 1.0 / static_cast<double>(formats::block_size(shape().format));
  return static_cast<double>(expert_weights()) * per_weight;
}

moe::ExpertsProblem LayerModel::problem(const moe::Numerics& numerics) const {
  const oracle::Layer& layer = facts_.model.layer;
  moe::ExpertsProblem result{.shape = source(0).shape, .numerics = numerics};
  result.activation =
      moe::activation_from_name(oracle::name(layer.activation)).value_or(moe::Activation::silu);
  result.params = runtime::params_of(choice_, facts_, result.activation);
  return result;
}

Result<LayerModel::Callable> LayerModel::make(std::string_view engine, std::string_view numerics,
                                              std::shared_ptr<ThreadPool> pool) const {
  const auto row = moe::require_numerics(numerics);
  if (!row) return row.why();
  const Result<runtime::EngineKind> kind = runtime::engine_from_name(engine);
  if (!kind) return kind.why();
  const auto maker = runtime::make_engine(*kind, std::move(pool));
  if (!maker) return maker.why();
  const bool on_input = router().method == moe::routing::Method::llama4;
  const moe::ExpertsRole role{.kind = oracle::Kind::monolithic, .takes_unquantized = true};
  Callable result{.engine = std::string((*maker)->name())};
  for (const auto& packed : packed_) {
    Result<moe::routing::Router> routes = moe::routing::Router::make(router());
    if (!routes) return routes.why();
    Result<std::unique_ptr<moe::Experts>> experts =
        (*maker)->make(problem(**row), packed->source());
    if (!experts) return experts.why();
    result.kernel = (*experts)->kernel();
    auto exchange = moe::exchange::make_exchange(moe::exchange::ExchangeKind::local,
                                                 {.experts = shape().experts});
    if (!exchange) return exchange.why();
    auto kernel = moe::MonolithicKernel::make(
        std::move(*exchange), std::shared_ptr<moe::Experts>(std::move(*experts)),
        std::move(*routes), role, {.kernel = {.weight_on_input = on_input}});
    if (!kernel) return kernel.why();
    result.layers.push_back(std::move(*kernel));
  }
  return result;
}

}  // namespace fp4moe::bench
