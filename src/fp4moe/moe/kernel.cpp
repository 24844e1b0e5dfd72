#include "fp4moe/moe/kernel.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace fp4moe::moe {
namespace {

using oracle::Kind;
using oracle::TokenFormat;

const char* word(TokenFormat format) {
  return format == TokenFormat::batched ? "batches per expert" : "standard rows";
}

Result<Done> check_limits(const ExpertsRole& role) {
  const bool is_batched = role.format == TokenFormat::batched;
  if (is_batched == role.max_tokens.has_value() && is_batched == role.dispatchers.has_value())
    return Done{};
  return usage("kernel.limits", is_batched ? "experts for batches need their limits"
                                           : "experts for standard rows have no limits")
      .expects(is_batched ? "max_tokens and dispatchers" : "neither max_tokens nor dispatchers",
               fmt::format("{}{}", role.max_tokens ? "max_tokens " : "",
                           role.dispatchers ? "dispatchers" : ""));
}

Result<Done> check_parts(const ExchangeTraits& traits, const Experts& experts,
                         const ExpertsRole& role, const KernelOptions& options) {
  if (traits.format != role.format)
    return usage("kernel.format", "exchange and experts want tokens in different forms")
        .expects(word(role.format), fmt::format("{} ({})", word(traits.format), traits.name))
        .try_this("choose an exchange of the experts' form, or experts of the exchange's");
  if (const auto fine = check_limits(role); !fine) return fine.why();
  const ExpertsProblem& problem = experts.problem();
  if (problem.quantizes != ActivationKey::none && !role.takes_unquantized &&
      problem.input_scales.size() > 1)
    return usage("kernel.quantiser", "rows quantized before they travel share one scale")
        .expects("one input scale", fmt::format("{}", problem.input_scales.size()))
        .try_this("let the experts quantize their input");
  if (role.takes_unquantized && !traits.takes_unquantized &&
      problem.quantizes != ActivationKey::none)
    return usage(
               "kernel.quantiser",
               fmt::format("the exchange {} does not leave quantizing to the experts", traits.name))
        .expects("experts that take quantized rows", "experts that quantize by themselves");
  if (options.chunk != 0 && traits.dispatchers > 1)
    return usage("kernel.chunk", "ranks that exchange tokens cannot chunk them")
        .expects("chunk 0", fmt::format("{}", options.chunk));
  return Done{};
}

}  // namespace

std::uint64_t trtllm_chunk(checkpoint::WeightFormat format, std::uint64_t experts,
                           std::uint64_t top_k) {
  constexpr std::uint64_t kRows = 65535, kMax = 300'000;
  const std::uint64_t free = experts < kRows ? kRows - experts : 0;
  const std::uint64_t assignments =
      format == checkpoint::WeightFormat::mxfp4 ? free * 8 : experts + (free + 1) * 128 - 1;
  return std::max<std::uint64_t>(1,
                                 std::min(kMax, assignments / std::max<std::uint64_t>(1, top_k)));
}

Result<ModularKernel> ModularKernel::make(std::unique_ptr<Exchange> exchange,
                                          std::shared_ptr<Experts> experts, const ExpertsRole& role,
                                          const KernelOptions& options) {
  if (role.kind != Kind::modular)
    return usage("kernel.kind", "experts that route by themselves are not modular")
        .expects("modular experts", "monolithic experts")
        .try_this("give them logits: make a MonolithicKernel");
  if (const auto fine = check_parts(exchange->traits(), *experts, role, options); !fine)
    return fine.why();
  ModularKernel result;
  result.exchange_ = std::move(exchange);
  result.experts_ = std::move(experts);
  result.role_ = role;
  result.options_ = options;
  return result;
}

OutputForm ModularKernel::form() const {
  if (role_.format == TokenFormat::batched) return OutputForm::batches;
  return role_.leaves_weights ? OutputForm::assignments : OutputForm::summed;
}

PrepareOptions ModularKernel::prepare_options() const {
  const ExpertsProblem& problem = experts_->problem();
  const bool quantizes = problem.quantizes != ActivationKey::none;
  PrepareOptions result{.weight_on_input = options_.weight_on_input,
                        .deferred = quantizes && role_.takes_unquantized};
  if (quantizes && !role_.takes_unquantized) {
    result.quantizer.key = problem.quantizes;
    if (!problem.input_scales.empty()) result.quantizer.global_scale = problem.input_scales[0];
  }
  return result;
}

Result<Done> ModularKernel::compute(const Prepared& prepared, const MutableRows& out,
                                    const CallOptions& call, ExpertsOutput& result) {
  const std::uint64_t hidden = experts_->problem().shape.hidden;
  result.form = form();
  result.is_weighted = result.form == OutputForm::summed;
  const std::uint64_t rows =
      result.form == OutputForm::assignments ? prepared.x.rows * prepared.top_k : prepared.x.rows;
  // Straight into the caller's memory where nothing is left to be done to it.
  const ExchangeTraits traits = exchange_->traits();
  const bool is_final = result.form == OutputForm::summed && traits.dispatchers == 1 &&
                        !traits.output_is_reduced && rows == out.rows;
  MutableRows target = out;
  if (!is_final) {
    const std::uint64_t bytes = rows * hidden * element_bytes(out.dtype);
    if (space_.size() < bytes) {
      Result<tensor::Buffer> larger = tensor::Buffer::allocate(bytes);
      if (!larger) return larger.why();
      space_ = std::move(*larger);
    }
    target = {space_.data(), out.dtype, rows, hidden, hidden * element_bytes(out.dtype)};
  }
  result.rows = target;
  if (rows == 0) return Done{};
  return experts_->compute({.in = prepared,
                            .expert_map = call.expert_map,
                            .lora = call.lora,
                            .weight_on_input = options_.weight_on_input},
                           result.form, target);
}

Result<Done> ModularKernel::apply_once(const Tokens& tokens, const MutableRows& out,
                                       const CallOptions& call) {
  const Result<Prepared> prepared = exchange_->prepare(tokens, prepare_options());
  if (!prepared) return prepared.why();
  ExpertsOutput result;
  if (const auto done = compute(*prepared, out, call, result); !done) {
    exchange_->abandon(done.why());
    return done.why();
  }
  return exchange_->finalize(result, out);
}

Result<Done> ModularKernel::apply(const Tokens& tokens, const MutableRows& out,
                                  const CallOptions& call) {
  const std::uint64_t hidden = experts_->problem().shape.hidden;
  if (const auto fine = check_rows(tokens.x, "tokens", hidden); !fine) return fine.why();
  if (const auto fine = check_rows(out, "outputs", hidden); !fine) return fine.why();
  if (out.rows != tokens.x.rows)
    return usage("kernel.output", "the output has another number of rows than the tokens")
        .expects(fmt::format("{}", tokens.x.rows), fmt::format("{}", out.rows));
  if (options_.weight_on_input && tokens.top_k != 1)
    return usage("kernel.on_input", "the router's weight on the input needs one expert per token")
        .expects("top_k 1", fmt::format("{}", tokens.top_k));
  const std::uint64_t assignments = tokens.x.rows * tokens.top_k;
  if (tokens.ids.size() != assignments || tokens.weights.size() != assignments)
    return usage("kernel.routes", "ids and weights do not fit the tokens")
        .expects(fmt::format("{} of each", assignments),
                 fmt::format("{} ids, {} weights", tokens.ids.size(), tokens.weights.size()));
  const std::uint64_t step = options_.chunk == 0 ? tokens.x.rows : options_.chunk;
  if (tokens.x.rows <= step) return apply_once(tokens, out, call);
  for (std::uint64_t begin = 0; begin < tokens.x.rows; begin += step) {
    const std::uint64_t count = std::min(step, tokens.x.rows - begin);
    Tokens part = tokens;
    part.x = tokens.x.from(begin, count);
    part.ids = tokens.ids.subspan(begin * tokens.top_k, count * tokens.top_k);
    part.weights = tokens.weights.subspan(begin * tokens.top_k, count * tokens.top_k);
    if (!tokens.adapters.empty()) part.adapters = tokens.adapters.subspan(begin, count);
    if (const auto done = apply_once(part, out.from(begin, count), call); !done) return done.why();
  }
  return Done{};
}

Result<MonolithicKernel> MonolithicKernel::make(std::unique_ptr<Exchange> exchange,
                                                std::shared_ptr<Experts> experts,
                                                routing::Router router, const ExpertsRole& role,
                                                const MonolithicOptions& options) {
  if (role.kind != Kind::monolithic || !exchange->traits().routes)
    return usage("kernel.kind", "both parts of a monolithic kernel must take logits")
        .expects("monolithic experts and an exchange that carries logits",
                 role.kind != Kind::monolithic ? "modular experts"
                                               : std::string(exchange->traits().name));
  const bool is_llama4 = router.options().method == routing::Method::llama4;
  if (is_llama4 != options.kernel.weight_on_input)
    return usage("kernel.routing", "Llama 4's routing and weights on the input go together")
        .expects(is_llama4 ? "weight_on_input" : "no weight_on_input",
                 is_llama4 ? "none" : routing::name(router.options().method));
  ExpertsRole modular = role;
  modular.kind = Kind::modular;
  Result<ModularKernel> kernel =
      ModularKernel::make(std::move(exchange), std::move(experts), modular, options.kernel);
  if (!kernel) return kernel.why();
  MonolithicKernel result(std::move(*kernel), std::move(router));
  result.options_ = options;
  const std::uint64_t local = result.experts().problem().shape.experts;
  result.expert_map_.assign(
      std::max(result.router_.options().experts, options.first_expert + local), -1);
  for (std::uint64_t e = 0; e < local; ++e)
    result.expert_map_[options.first_expert + e] = static_cast<std::int32_t>(e);
  return result;
}

Result<Prepared> MonolithicKernel::prepare(const Tokens& tokens, ThreadPool& pool) {
  if (!tokens.adapters.empty())
    return usage("kernel.lora", "monolithic kernels have no adapters")
        .expects("no adapters", fmt::format("{}", tokens.adapters.size()))
        .try_this("use a modular backend, or merge the adapter into the checkpoint");
  // The exchange weighs the input where that is asked for, so routing comes before it then.
  const std::uint64_t assignments = router_.assignments_per_token();
  const auto route = [&](const ConstRows& logits) -> Result<Done> {
    ids_.resize(logits.rows * assignments);
    weights_.resize(logits.rows * assignments);
    return router_.route({.logits = {.data = logits.data,
                                     .dtype = logits.dtype,
                                     .tokens = logits.rows,
                                     .columns = logits.columns,
                                     .stride = logits.stride / element_bytes(logits.dtype)}},
                         {.ids = ids_, .weights = weights_}, pool);
  };
  Tokens given = tokens;
  given.top_k = assignments;
  const bool routes_first = options_.kernel.weight_on_input;
  if (routes_first) {
    if (const auto done = route(tokens.logits); !done) return done.why();
    given.logits = {};
    given.ids = ids_;
    given.weights = weights_;
  }
  Result<Prepared> prepared = kernel_.exchange_->prepare(given, kernel_.prepare_options());
  if (!prepared || routes_first) return prepared;
  if (const auto done = route(prepared->logits); !done) {
    kernel_.exchange_->abandon(done.why());
    return done.why();
  }
  prepared->top_k = assignments;
  prepared->ids = ids_;
  prepared->weights = weights_;
  return prepared;
}

Result<Done> MonolithicKernel::apply(const Tokens& tokens, const MutableRows& out, ThreadPool& pool,
                                     std::span<std::int16_t> replay) {
  const std::uint64_t hidden = experts().problem().shape.hidden;
  if (const auto fine = check_rows(tokens.x, "tokens", hidden); !fine) return fine.why();
  if (const auto fine = check_rows(out, "outputs", hidden); !fine) return fine.why();
  if (out.rows != tokens.x.rows || tokens.logits.rows != tokens.x.rows)
    return usage("kernel.output", "tokens, logits and outputs differ in their rows")
        .expects(fmt::format("{} of each", tokens.x.rows),
                 fmt::format("{} logits, {} outputs", tokens.logits.rows, out.rows));
  const Result<Prepared> prepared = prepare(tokens, pool);
  if (!prepared) return prepared.why();
  if (!replay.empty()) {
    if (replay.size() < prepared->ids.size()) {
      const Error why =
          usage("kernel.replay", "the memory for chosen ids is too small")
              .expects(fmt::format("{}", prepared->ids.size()), fmt::format("{}", replay.size()));
      kernel_.exchange_->abandon(why);
      return why;
    }
    std::ranges::transform(prepared->ids, replay.begin(),
                           [](std::int32_t id) { return static_cast<std::int16_t>(id); });
  }
  ExpertsOutput result;
  const auto done = kernel_.compute(*prepared, out, {.expert_map = expert_map_}, result);
  if (!done) {
    kernel_.exchange_->abandon(done.why());
    return done.why();
  }
  return kernel_.exchange_->finalize(result, out);
}

}  // namespace fp4moe::moe
