#include "fp4moe/runtime/layer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/convert/folder/converted_folder.hpp"
#include "fp4moe/moe/exchange/all.hpp"
#include "fp4moe/oracle/vllm/quant_config.hpp"
#include "fp4moe/runtime/pool.hpp"

namespace fp4moe::runtime {
namespace {

using moe::ActivationKey;
using oracle::Kind;
using oracle::TokenFormat;

Error missing_input_scale(std::uint64_t expert, std::string_view backend) {
  return invalid("scale.input", "the backend quantizes activations, but an input scale is missing")
      .at(fmt::format("expert {}", expert))
      .expects("a positive finite input_scale", "none")
      .try_this(fmt::format(
          "give them (--input-scale X,H), or use a backend with 16-bit activations instead of {}",
          backend));
}

std::string shape_text(const checkpoint::MoeShape& shape, tensor::DType bias_type) {
  return fmt::format("{} of hidden size {}, rows {}, {} biases, {} input scales",
                     name(shape.format), shape.hidden, name(shape.order),
                     shape.has_bias ? tensor::name(bias_type) : "no",
                     shape.has_input_scale ? "with" : "without");
}

bool is_scale(float value) { return std::isfinite(value) && value > 0; }

}  // namespace

moe::ActivationParams params_of(const Choice& choice, const LayerFacts& facts,
                                moe::Activation activation) {
  const oracle::Layer& layer = facts.model.layer;
  moe::ActivationParams params = moe::row(activation).params;
  const oracle::GateConstants gate =
      oracle::gate_constants(*choice.backend, choice.policy->policy_date, choice.mode, layer);
  if (gate.alpha) params.alpha = *gate.alpha;
  if (gate.beta) params.beta = *gate.beta;
  if (gate.clamp) params.limit = *gate.clamp;
  if (facts.alpha) params.alpha = *facts.alpha;
  if (facts.beta) params.beta = *facts.beta;
  if (facts.limit) params.limit = *facts.limit;
  if (layer.situ_beta) params.situ_beta = *layer.situ_beta;
  if (layer.situ_linear_beta) params.situ_linear_beta = *layer.situ_linear_beta;
  return params;
}

Result<MoeLayer> MoeLayer::make(LayerFacts facts, Choice choice, LayerOptions options) {
  MoeLayer result;
  result.facts_ = std::move(facts);
  result.choice_ = std::move(choice);
  result.options_ = std::move(options);
  result.pool_ = result.options_.pool;
  if (!result.pool_) result.pool_ = make_pool(result.options_.threads);
  if (result.facts_.router.method != moe::routing::Method::unspecified) {
    Result<moe::routing::Router> router = moe::routing::Router::make(result.facts_.router);
    if (!router) return router.why();
    result.router_ = std::move(*router);
  }
  if (!result.options_.physical_experts.empty()) {
    Result<moe::ReplicaTable> table =
        moe::replica_table(result.facts_.model.shape.experts, result.options_.physical_experts);
    if (!table) return table.why();
    result.replicas_ = std::move(*table);
    if (result.options_.slice.placement != checkpoint::Placement::linear)
      return usage("layer.placement", "experts with copies are sharded in order")
          .expects("placement linear", "round-robin");
  }
  const checkpoint::Slice& slice = result.options_.slice;
  auto local =
      checkpoint::local_experts(result.physical_experts(), slice.expert_parallel, slice.placement);
  if (!local) return local.why();
  result.local_ = std::move(*local);
  if (slice.expert_parallel.size > 1) {
    auto map = moe::expert_map(result.physical_experts(), slice.expert_parallel, slice.placement);
    if (!map) return map.why();
    result.expert_map_ = std::move(*map);
  }
  return result;
}

std::uint64_t MoeLayer::physical_experts() const {
  return replicas_ ? replicas_->physical : facts_.model.shape.experts;
}

Result<MoeLayer> MoeLayer::create(const checkpoint::Checkpoint& checkpoint, std::size_t number,
                                  LayerOptions options) {
  if (number >= checkpoint.layers().size())
    return usage("layer.number", "the checkpoint has no such MoE layer")
        .expects(fmt::format("below {}", checkpoint.layers().size()), fmt::format("{}", number));
  Result<LayerFacts> facts = layer_facts(checkpoint, number);
  if (!facts) return facts.why();
  return create_from(std::move(*facts), std::move(options), [&](const convert::Recipe& recipe) {
    return convert::layer_job(checkpoint, number, recipe);
  });
}

Result<MoeLayer> MoeLayer::create(const LayerDescription& description,
                                  const checkpoint::LayerWeightsView& weights,
                                  LayerOptions options) {
  Result<LayerFacts> facts = layer_facts(description, weights.shape());
  if (!facts) return facts.why();
  const convert::MemoryLayer layer{facts->model.shape, facts->model.rule, weights};
  return create_from(std::move(*facts), std::move(options), [&](const convert::Recipe& recipe) {
    return convert::layer_job(layer, recipe);
  });
}

// The part that this rank packs. Every rank may hold copies of any expert, so reading is not
// limited to the rank's own.
Result<convert::LayerJob> MoeLayer::job_by(const MakeJob& make_job) const {
  checkpoint::Slice readable = options_.slice;
  if (replicas_) readable.expert_parallel = {};
  Result<convert::LayerJob> job = make_job(choice_.recipe(readable, facts_.model.layer.activation));
  if (!job || !replicas_) return job;
  job->experts.clear();
  for (const std::uint64_t physical : local_)
    job->experts.push_back(static_cast<std::uint64_t>(options_.physical_experts[physical]));
  job->problem.experts = job->experts.size();
  return job;
}

Result<MoeLayer> MoeLayer::create_from(LayerFacts facts, LayerOptions options,
                                       const MakeJob& make_job) {
  // Rows that stay mapped are read by our own CPU kernels alone: whoever wants them wants those.
  if (options.weights == moe::WeightsHome::mapped &&
      (options.backend_request.backend.empty() || options.backend_request.backend == "auto"))
    options.backend_request.backend = "CPU";
  Result<Choice> choice = choose(facts.model, options.slice, options.backend_request);
  if (!choice) return choice.why();
  Result<MoeLayer> result = make(std::move(facts), std::move(*choice), std::move(options));
  if (!result) return result.why();
  Result<convert::LayerJob> job = result->job_by(make_job);
  if (!job) return job.why();
  const Result<bool> mapped = result->stays_mapped();
  if (!mapped) return mapped.why();
  result->is_mapped_ = *mapped;
  const layout::Layout& layout = *result->choice_.layout;
  Result<PackedWeights> packed = *mapped ? PackedWeights::describe(layout, job->problem)
                                         : PackedWeights::create(layout, job->problem);
  if (!packed) return packed.why();
  result->packed_ = std::make_unique<PackedWeights>(std::move(*packed));
  result->job_ = std::move(*job);
  if (const auto done = result->describe(); !done) return done.why();
  return result;
}

Result<bool> MoeLayer::stays_mapped() const {
  if (options_.weights == moe::WeightsHome::packed) return false;
  if (!choice_.layout->id.starts_with("cpu_native."))
    return usage("layer.weights", "only our own CPU kernels read a checkpoint's rows")
        .expects("backend CPU", choice_.backend->name)
        .try_this("--backend CPU, or --weights packed");
  return true;
}

namespace {

std::string ranks_text(const checkpoint::Slice& slice) {
  return fmt::format("tp {}, ep {} ({})", convert::text(slice.tensor_parallel),
                     convert::text(slice.expert_parallel), convert::name(slice.placement));
}

// A caller that names no rank takes the folder's.
Result<Done> check_rank(const convert::ConvertedFolder& folder, checkpoint::Slice asked) {
  const checkpoint::Slice& own = folder.manifest().slice;
  if (asked.tensor_parallel.size == 1 && asked.expert_parallel.size == 1) return Done{};
  if (asked.expert_parallel.size == 1) asked.placement = own.placement;  // all experts are here
  if (ranks_text(asked) == ranks_text(own)) return Done{};
  return invalid("converted.shard", "the folder is another rank's share")
      .in(folder.path())
      .expects(ranks_text(asked), ranks_text(own))
      .try_this("open the folder of this rank, or convert for it: --tp R/N, --ep R/N");
}

}  // namespace

Result<MoeLayer> MoeLayer::open(const std::shared_ptr<const convert::ConvertedFolder>& folder,
                                std::size_t number, LayerOptions options) {
  const convert::Manifest& manifest = folder->manifest();
  if (number >= manifest.layers.size())
    return usage("layer.number", "the folder has no such MoE layer")
        .in(folder->path())
        .expects(fmt::format("below {}", manifest.layers.size()), fmt::format("{}", number));
  if (const auto fits = check_rank(*folder, options.slice); !fits) return fits.why();
  Result<PackedWeights> packed = PackedWeights::map(folder, number);
  if (!packed) return packed.why();
  Result<LayerFacts> facts = layer_facts(*folder, number);
  if (!facts) return facts.why();
  // The user may give the scales, or say how activations are quantized.
  const bool has_input_scales =
      facts->model.shape.has_input_scale || options.input_scale || options.quantizes;
  Result<Choice> choice = backend_of_folder(manifest.backend, packed->packer().layout(),
                                            options.backend_request.policy, has_input_scales);
  if (!choice) return choice.why();
  options.slice = manifest.slice;
  if (!options.physical_experts.empty())
    return usage("layer.placement", "a converted folder holds every expert once")
        .in(folder->path())
        .expects("no copies of experts", "some");
  return of(std::move(*facts), std::move(*choice), std::move(*packed), std::move(options));
}

Result<MoeLayer> MoeLayer::of(LayerFacts facts, Choice choice, PackedWeights packed,
                              LayerOptions options) {
  Result<MoeLayer> result = make(std::move(facts), std::move(choice), std::move(options));
  if (!result) return result.why();
  const std::uint64_t given = packed.packer().problem().experts;
  if (given != result->local_.size())
    return usage("layer.experts", "the weights are of another number of experts")
        .expects(fmt::format("{} on this rank", result->local_.size()), fmt::format("{}", given));
  result->packed_ = std::make_unique<PackedWeights>(std::move(packed));
  result->is_loaded_ = true;
  if (const auto done = result->describe(); !done) return done.why();
  return result;
}

// Fills the engine's problem, except for scales that come with the weights.
Result<Done> MoeLayer::describe() {
  const oracle::Layer& layer = facts_.model.layer;
  const auto activation = moe::activation_from_name(oracle::name(layer.activation));
  if (!activation)
    return usage("layer.activation", "this activation is not computed here")
        .expects("a known activation", oracle::name(layer.activation));
  const Result<moe::NumericsKind> numerics =
      options_.numerics ? *options_.numerics : moe::numerics_from_name(choice_.backend->numerics);
  if (!numerics) return numerics.why();
  problem_.shape = packed_->source().shape;
  problem_.activation = *activation;
  problem_.params = params_of(choice_, facts_, *activation);
  problem_.numerics = moe::row(*numerics);
  const oracle::QuantScheme scheme = oracle::scheme_of(*choice_.backend, choice_.mode, layer);
  const oracle::Request request{.device = choice_.device, .layer = layer};
  const ActivationKey form = oracle::form_from_layer(*choice_.policy, request).activations;
  problem_.quantizes = options_.quantizes.value_or(oracle::activations_of(scheme, form));
  if (problem_.numerics.id == "exact") problem_.quantizes = ActivationKey::none;
  return Done{};
}

Result<Done> MoeLayer::load() {
  if (!job_) return Done{};  // mapped
  if (const auto done = packed_->load(*job_, pool_->threads()); !done) return done.why();
  is_loaded_ = true;
  return Done{};
}

Result<Done> MoeLayer::load(const checkpoint::LayerWeightsView& weights) {
  if (!job_) return packed_->check_own_memory();
  const checkpoint::MoeShape &found = weights.shape(), &mine = facts_.model.shape;
  const convert::Problem& problem = job_->problem;
  if (found.format != mine.format || found.hidden != mine.hidden || found.order != problem.order ||
      found.has_bias != problem.has_bias || weights.bias_type() != problem.bias_type ||
      found.has_input_scale != mine.has_input_scale)
    return usage("weights.other", "the weights are not what the layer was made for")
        .expects(shape_text(mine, problem.bias_type), shape_text(found, weights.bias_type()));
  Result<convert::LayerJob> job = job_by([&](const convert::Recipe& recipe) {
    return convert::layer_job(convert::MemoryLayer{mine, facts_.model.rule, weights}, recipe);
  });
  if (!job) return job.why();
  job_ = std::move(*job);
  return load();
}

Result<Done> MoeLayer::load_expert(std::size_t position) {
  if (!is_loaded_)
    return usage("layer.order", "one expert is loaded again before all of them were")
        .expects("load() first", "nothing loaded");
  if (!job_ || position >= job_->experts.size())
    return usage("layer.position", "there is no such expert to load again")
        .expects(fmt::format("below {}", job_ ? job_->experts.size() : 0),
                 fmt::format("{}", position));
  return packed_->load_expert(*job_, position);
}

// G of NVFP4 is the reciprocal of the input scale; static FP8 takes the scale itself. Layouts that
// carry kernel scalars have them ready; others are asked for their experts' own.
Result<Done> MoeLayer::read_input_scales() {
  problem_.input_scales.clear();
  problem_.hidden_scales.clear();
  const bool inverts = problem_.quantizes == ActivationKey::nvfp4;
  if (!inverts && problem_.quantizes != ActivationKey::fp8_static_tensor) return Done{};
  if (const auto& given = options_.input_scale) {
    problem_.input_scales = {inverts ? 1.0f / given->input : given->input};
    problem_.hidden_scales = {inverts ? 1.0f / given->hidden : given->hidden};
    return Done{};
  }
  if (inverts) {
    problem_.input_scales = packed_->scalars("a1_gscale");
    problem_.hidden_scales = packed_->scalars("a2_gscale");
    if (!problem_.input_scales.empty() && !problem_.hidden_scales.empty()) return Done{};
  }
  float input = 0, hidden = 0;
  for (std::size_t position = 0; position < problem_.shape.experts; ++position) {
    const convert::ExpertScalars& scalars = packed_->packer().scalars(position);
    const float first =
        std::max(scalars.gate_input.value_or(0.0f), scalars.up_input.value_or(0.0f));
    const float second = scalars.down_input.value_or(0.0f);
    if (!is_scale(first) || !is_scale(second))
      return missing_input_scale(local_[position], choice_.backend->name);
    input = std::max(input, first);
    hidden = std::max(hidden, second);
  }
  problem_.input_scales = {inverts ? 1.0f / input : input};
  problem_.hidden_scales = {inverts ? 1.0f / hidden : hidden};
  return Done{};
}

Result<Done> MoeLayer::process() {
  if (!is_loaded_)
    return usage("layer.order", "a layer is processed before it is loaded")
        .expects("load() first", "nothing loaded");
  if (const auto done = read_input_scales(); !done) return done.why();
  Result<std::unique_ptr<moe::Engine>> engine =
      make_engine(options_.engine, pool_,
                  {.weights = is_mapped_ ? moe::WeightsHome::mapped : moe::WeightsHome::packed,
                   .on_gpu = options_.backend_request.device.kind == platform::PlatformKind::cuda});
  if (!engine) return engine.why();
  Result<moe::ExpertSource> found =
      is_mapped_ ? packed_->source(*job_) : Result<moe::ExpertSource>(packed_->source());
  if (!found) return found.why();
  moe::ExpertSource source = std::move(*found);
  // Kernels with one w13 have one global scale for it, the gate's.
  source.shares_global = problem_.shape.gated() && problem_.numerics.shares_global;
  if (source.shares_global)
    source.visit = [visit = source.visit](std::size_t position, const moe::UseExpert& use) {
      return visit(position, [&](const checkpoint::ExpertView& given) {
        checkpoint::ExpertView view = given;
        view.up.global_scale = view.gate.global_scale;
        return use(view);
      });
    };
  Result<std::unique_ptr<moe::Experts>> experts = (*engine)->make(problem_, source);
  if (!experts) return experts.why();
  experts_ = std::move(*experts);
  return make_kernels();
}

const oracle::ExpertsClass* MoeLayer::experts_row(Kind kind) const {
  const TokenFormat format = moe::exchange::row(options_.exchange).format;
  for (const oracle::ExpertsClass* experts : choice_.backend->experts)
    if (experts->kind == kind && experts->format == format) return experts;
  return nullptr;
}

bool MoeLayer::exchanges_tokens() const {
  return moe::exchange::row(options_.exchange).needs_ranks;
}

bool MoeLayer::routes_itself(const oracle::ExpertsClass& row) const {
  const auto routing = oracle::routing_from_name(moe::routing::name(facts_.router.method));
  return row.routings.empty() || (routing && row.routings.contains(*routing));
}

Result<std::unique_ptr<moe::Exchange>> MoeLayer::make_exchange() const {
  return moe::exchange::make_exchange(options_.exchange,
                                      {.ranks = exchanges_tokens() ? options_.ranks : nullptr,
                                       .experts = physical_experts(),
                                       .expert_parallel = options_.slice.expert_parallel,
                                       .placement = options_.slice.placement,
                                       .max_tokens = options_.max_tokens});
}

Result<Done> MoeLayer::make_kernels() {
  modular_.reset();
  monolithic_.reset();
  auto exchange = make_exchange();
  if (!exchange) return exchange.why();
  const moe::ExchangeTraits traits = (*exchange)->traits();
  const bool is_batched = traits.format == TokenFormat::batched;
  moe::ExpertsRole role{.format = traits.format, .leaves_weights = is_batched};
  // A backend without a class of this form is emulated as if it had one: engines take any form.
  const oracle::ExpertsClass* row = experts_row(Kind::modular);
  role.takes_unquantized = row != nullptr ? row->takes_unquantized : !is_batched;
  if (problem_.input_scales.size() > 1) role.takes_unquantized = true;
  if (is_batched) {
    role.takes_unquantized = false;
    role.max_tokens = traits.max_tokens_per_rank.value_or(options_.max_tokens);
    role.dispatchers = traits.dispatchers;
  }
  const moe::KernelOptions kernel{
      .weight_on_input = facts_.weight_on_input,
      .chunk =
          options_.chunk != 0 || traits.dispatchers > 1 ||
                  choice_.backend->family != "flashinfer_trtllm"
              ? options_.chunk
              : moe::trtllm_chunk(problem_.shape.format, physical_experts(), facts_.router.top_k)};
  auto modular = moe::ModularKernel::make(std::move(*exchange), experts_, role, kernel);
  if (!modular) return modular.why();
  modular_ = std::move(*modular);

  const oracle::ExpertsClass* own = experts_row(Kind::monolithic);
  const bool is_linear = options_.slice.placement == checkpoint::Placement::linear ||
                         options_.slice.expert_parallel.size == 1;
  if (own == nullptr || !router_ || is_batched || !routes_itself(*own) || !is_linear ||
      !traits.routes || facts_.router.zero_experts != 0 || replicas_ || local_.empty())
    return Done{};
  auto second = make_exchange();
  if (!second) return second.why();
  role.kind = Kind::monolithic;
  auto monolithic = moe::MonolithicKernel::make(
      std::move(*second), experts_, *router_, role,
      {.kernel = kernel, .first_expert = local_.empty() ? 0 : local_.front()});
  if (!monolithic) return monolithic.why();
  monolithic_ = std::move(*monolithic);
  return Done{};
}

std::vector<std::string> MoeLayer::warnings() const {
  std::vector<std::string> all = packed_->packer().warnings();
  all.insert(all.end(), facts_.notes.begin(), facts_.notes.end());
  return all;
}

}  // namespace fp4moe::runtime
