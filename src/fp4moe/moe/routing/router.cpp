#include "fp4moe/moe/routing/router.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/routing/rows.hpp"

namespace fp4moe::moe::routing {
namespace {

using tensor::DType;

constexpr std::array<std::string_view, 2> kSimulations{"uniform_random", "normal_routing"};
constexpr std::size_t kGrain = 32;  // rows a thread takes at a time

// Impossible grouping is skipped, as in the reference.
bool groups_apply(const RouterOptions& options, std::uint64_t columns) {
  return options.groups > 1 && columns > options.groups && columns % options.groups == 0;
}

Result<Done> check_method(const RouterOptions& options) {
  const MethodRow& method = row(options.method);
  if (options.method == Method::custom || options.method == Method::unspecified)
    return usage("routing.method",
                 "this router is a function of the model, which is not known here")
        .expects("a method of docs/routing.md", method.name)
        .try_this("Compute ids and weights yourself and hand them to the layer");
  if (options.experts == 0 || options.experts > kMaxExperts ||
      options.zero_experts > kMaxExperts - options.experts || options.shared_experts > kMaxExperts)
    return usage("routing.experts", "too many experts")
        .expects(fmt::format("1 to {} in all", kMaxExperts),
                 fmt::format("{} and {} zero experts, {} shared", options.experts,
                             options.zero_experts, options.shared_experts));
  const std::uint64_t columns = options.experts + options.zero_experts;
  if (options.top_k == 0 || options.top_k > columns)
    return usage("routing.top_k", "invalid top_k")
        .expects(fmt::format("1 to {}", columns), std::to_string(options.top_k));
  if (options.method == Method::llama4 && options.top_k != 1)
    return usage("routing.top_k", "Llama4 routes to one expert")
        .expects("1", std::to_string(options.top_k));
  return Done{};
}

Result<Done> check_groups(const RouterOptions& options) {
  const std::uint64_t columns = options.experts + options.zero_experts;
  if (options.groups > 1 && !row(options.method).takes_groups)
    return usage("routing.groups", fmt::format("{} does not group experts", name(options.method)))
        .expects("no groups", std::to_string(options.groups))
        .try_this("Use DeepSeekV3, SoftmaxBias or GroupedSoftmax");
  if (!groups_apply(options, columns)) return Done{};
  if (options.chosen_groups == 0 || options.chosen_groups > options.groups)
    return usage("routing.groups", "invalid number of chosen groups")
        .expects(fmt::format("1 to {}", options.groups), std::to_string(options.chosen_groups));
  const std::uint64_t reachable = options.chosen_groups * (columns / options.groups);
  if (options.top_k > reachable)
    return usage("routing.groups", "the chosen groups have too few experts")
        .expects(fmt::format("at least {}", options.top_k), std::to_string(reachable))
        .try_this("Choose more groups");
  return Done{};
}

Result<Done> check_numbers(const RouterOptions& options) {
  const MethodRow& method = row(options.method);
  const std::uint64_t columns = options.experts + options.zero_experts;
  if (!options.bias.empty()) {
    if (!method.takes_bias)
      return usage("routing.bias", fmt::format("{} knows no correction bias", method.name))
          .expects("none", std::to_string(options.bias.size()));
    if (options.bias.size() != columns)
      return usage("routing.bias", "the correction bias has a number for every expert")
          .expects(std::to_string(columns), std::to_string(options.bias.size()));
    const auto wild = std::ranges::find_if(options.bias, [](float b) { return !std::isfinite(b); });
    if (wild != options.bias.end())
      return usage("routing.bias", "correction bias is not finite")
          .expects("a number", fmt::format("{} for expert {}", *wild, wild - options.bias.begin()));
  }
  if (!std::isfinite(options.scale) || options.scale <= 0)
    return usage("routing.scale", "invalid scaling factor")
        .expects("more than 0", fmt::format("{}", options.scale));
  if (options.scale != 1 && !options.scale_on_output && !method.takes_scale)
    return usage("routing.scale", fmt::format("{} does not scale its weights", method.name))
        .expects("1", fmt::format("{}", options.scale))
        .try_this("Scale the layer's output instead (scale_on_output)");
  const bool divides = method.normalization == Normalization::over_sum ||
                       method.normalization == Normalization::over_sum_eps ||
                       method.normalization == Normalization::softmax;
  if (options.renormalize && method.normalization != Normalization::optional &&
      *options.renormalize != divides)
    return usage("routing.renormalize",
                 fmt::format("{} {} its weights", method.name,
                             divides ? "always normalizes" : "never normalizes"))
        .expects(divides ? "true" : "false", *options.renormalize ? "true" : "false");
  return Done{};
}

Result<Done> check_hash(const RouterOptions& options) {
  if (options.hash_table.empty()) return Done{};
  if (options.method != Method::deepseek_v4)
    return usage("routing.hash", "only DeepseekV4 chooses by a table of token ids")
        .expects("DeepseekV4", name(options.method));
  if (options.hash_table.size() % options.top_k != 0)
    return usage("routing.hash", "the table has as many experts for every token id")
        .expects(fmt::format("a multiple of {}", options.top_k),
                 std::to_string(options.hash_table.size()));
  const auto columns = static_cast<std::int32_t>(options.experts + options.zero_experts);
  const auto wrong = std::ranges::find_if(options.hash_table,
                                          [&](std::int32_t id) { return id < 0 || id >= columns; });
  if (wrong == options.hash_table.end()) return Done{};
  return usage("routing.hash", "the table names experts there are")
      .expects(fmt::format("0 to {}", columns - 1),
               fmt::format(
                   "{} for token id {}", *wrong,
                   static_cast<std::uint64_t>(wrong - options.hash_table.begin()) / options.top_k));
}

Error wrong_input(std::string_view what, std::uint64_t wanted, std::uint64_t found) {
  return usage("routing.input", fmt::format("{} has the wrong size", what))
      .expects(std::to_string(wanted), std::to_string(found));
}

bool is_padding(const RouteInput& input, std::uint64_t token) {
  return !input.is_padding.empty() && input.is_padding[token] != 0;
}

}  // namespace

std::optional<Simulation> simulation_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kSimulations, name);
  if (found == kSimulations.end()) return std::nullopt;
  return static_cast<Simulation>(found - kSimulations.begin());
}

Result<Router> Router::make(RouterOptions options) {
  for (const auto& check : {check_method, check_groups, check_numbers, check_hash})
    if (const Result<Done> good = check(options); !good) return good.why();
  return Router(std::move(options));
}

bool Router::is_grouped() const { return groups_apply(options_, columns()); }

RowPlan Router::plan() const {
  const MethodRow& method = row(options_.method);
  const bool has_bias = std::ranges::any_of(options_.bias, [](float b) { return b != 0; });
  RowPlan result{.key = method.key,
                 .weight = method.weight,
                 .normalization = method.normalization,
                 .columns = columns(),
                 .top_k = options_.top_k,
                 .groups = is_grouped() ? options_.groups : 1,
                 .chosen_groups = is_grouped() ? options_.chosen_groups : 1,
                 .adds_two_per_group = !options_.bias.empty(),
                 .hash_table = options_.hash_table,
                 .scale = options_.scale_on_output ? 1 : options_.scale,
                 .scores_in_logits_dtype = options_.scores_in_logits_dtype && is_grouped()};
  if (has_bias) result.bias = options_.bias;
  if (result.normalization == Normalization::optional)
    result.normalization =
        options_.renormalize.value_or(true) ? Normalization::over_sum : Normalization::none;
  return result;
}

Result<Done> Router::check(const RouteInput& input, const RouteOutput& output) const {
  const LogitsView& logits = input.logits;
  const std::uint64_t tokens = logits.tokens;
  const bool reads = options_.method != Method::simulated;
  if (reads && logits.dtype != DType::f32 && logits.dtype != DType::bf16 &&
      logits.dtype != DType::f16)
    return usage("routing.dtype", "router logits are of another type")
        .expects("F32, BF16 or F16", tensor::name(logits.dtype));
  if (reads && logits.columns != columns())
    return wrong_input("a row of logits", columns(), logits.columns);
  if (reads && logits.stride != 0 && logits.stride < logits.columns)
    return wrong_input("the step from row to row", logits.columns, logits.stride);
  if (reads && tokens > 0 && logits.data == nullptr)
    return wrong_input("the memory of logits", tokens * columns(), 0);
  if (output.ids.size() / assignments_per_token() != tokens ||
      output.ids.size() % assignments_per_token() != 0)
    return wrong_input("ids", tokens * assignments_per_token(), output.ids.size());
  if (output.weights.size() != output.ids.size())
    return wrong_input("weights", output.ids.size(), output.weights.size());
  if (options_.zero_experts > 0 && output.identity_weights.size() != tokens)
    return wrong_input("identity_weights", tokens, output.identity_weights.size());
  if (!input.is_padding.empty() && input.is_padding.size() != tokens)
    return wrong_input("is_padding", tokens, input.is_padding.size());
  if (options_.hash_table.empty()) return Done{};
  if (input.token_ids.size() != tokens)
    return wrong_input("token_ids", tokens, input.token_ids.size());
  const std::uint64_t known = options_.hash_table.size() / options_.top_k;
  for (std::uint64_t t = 0; t < tokens; ++t) {
    const std::int32_t id = input.token_ids[t];
    if (is_padding(input, t) || (id >= 0 && static_cast<std::uint64_t>(id) < known)) continue;
    return usage("routing.input", fmt::format("token {} is not in the table", t))
        .expects(fmt::format("a token id from 0 to {}", known - 1), std::to_string(id));
  }
  return Done{};
}

void Router::route_rows(const RouteInput& input, const RouteOutput& output, Rows rows) const {
  const RowPlan plan = this->plan();
  const LogitsView& logits = input.logits;
  const std::size_t width = tensor::row(logits.dtype).block_bytes;
  const std::uint64_t step = width * (logits.stride == 0 ? logits.columns : logits.stride);
  const auto shared_weight =
      static_cast<float>(options_.scale_on_output ? 1 / options_.scale : 1.0);
  for (std::uint64_t t = rows.begin; t < rows.end; ++t) {
    const auto ids = output.ids.subspan(t * assignments_per_token(), assignments_per_token());
    const auto weights =
        output.weights.subspan(t * assignments_per_token(), assignments_per_token());
    if (options_.zero_experts > 0) output.identity_weights[t] = 0;
    if (is_padding(input, t)) {
      std::ranges::fill(ids, -1);
      std::ranges::fill(weights, 0.0f);
      continue;
    }
    Row one{.logits = static_cast<const std::byte*>(logits.data) + t * step,
            .dtype = logits.dtype,
            .token_id = input.token_ids.empty() ? 0 : input.token_ids[t],
            .ids = ids.first(options_.top_k),
            .weights = weights.first(options_.top_k)};
    if (options_.method == Method::simulated)
      simulate_row({options_.simulation, options_.seed, t, columns()}, one.ids, one.weights);
    else if (rows.exactly || !route_row_fast(plan, one))
      route_row_exact(plan, one);
    if (options_.zero_experts > 0)
      for (std::size_t j = 0; j < options_.top_k; ++j) {
        if (ids[j] < static_cast<std::int32_t>(options_.experts)) continue;
        output.identity_weights[t] += weights[j];
        ids[j] = 0;
        weights[j] = 0;
      }
    for (std::uint64_t j = options_.top_k; j < assignments_per_token(); ++j) {
      ids[j] = static_cast<std::int32_t>(options_.experts + j - options_.top_k);
      weights[j] = shared_weight;
    }
    if (options_.weights_in_bf16)
      for (float& weight : weights) weight = formats::Bf16::decode(formats::Bf16::encode(weight));
  }
}

Result<Done> Router::route(const RouteInput& input, const RouteOutput& output,
                           ThreadPool& pool) const {
  if (Result<Done> good = check(input, output); !good) return good;
  pool.run_ranges(input.logits.tokens, kGrain,
                  [&](std::size_t begin, std::size_t end, std::size_t) {
                    route_rows(input, output, {begin, end, false});
                  });
  return Done{};
}

Result<Done> Router::route_reference(const RouteInput& input, const RouteOutput& output) const {
  if (Result<Done> good = check(input, output); !good) return good;
  route_rows(input, output, {0, input.logits.tokens, true});
  return Done{};
}

Result<Done> pack_routing(std::span<const std::int32_t> ids, std::span<const float> weights,
                          std::span<std::int32_t> packed) {
  if (weights.size() != ids.size() || packed.size() != ids.size())
    return wrong_input("packed routing", ids.size(), std::min(weights.size(), packed.size()));
  for (std::size_t i = 0; i < ids.size(); ++i)
    packed[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(ids[i]) << 16 |
                                          formats::Bf16::encode(weights[i]));
  return Done{};
}

}  // namespace fp4moe::moe::routing
