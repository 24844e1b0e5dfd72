#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/moe/routing/router.hpp"
#include "golden/fields.hpp"
#include "golden/moe.hpp"
#include "golden/moe_data.hpp"

namespace fp4moe::golden {
namespace {

namespace routing = moe::routing;
using routing::Method;
using routing::RouterOptions;

constexpr std::string_view kHashMethod = "DeepseekV4Hash";
constexpr std::uint64_t kMaxTokens = 1 << 20;
constexpr std::int32_t kMaxId = 1 << 24;

struct RoutingCase {
  RouterOptions options{};
  MoeTensor logits{};
  std::vector<std::int32_t> token_ids{};
  MoeNumbers ids{};
  MoeValues weights{};
};

Result<Method> method_field(const Json& item) {
  const Result<std::string> word = string_field(item, "method");
  if (!word) return word.why();
  if (*word == kHashMethod) return Method::deepseek_v4;
  if (const auto method = routing::method_from_name(*word)) return *method;
  return malformed("method", "the name of a routing method", fmt::format("\"{}\"", *word));
}

Result<Done> read_param(const std::string& key, const Json& params, RoutingCase& result) {
  const Json& value = params[key];
  if (key == "scale") {
    if (!value.is_number()) return malformed(key, "a number", value.type_name());
    result.options.scale = value.get<double>();
  } else if (key == "renorm") {
    if (!value.is_boolean()) return malformed(key, "true or false", value.type_name());
    result.options.renormalize = value.get<bool>();
  } else if (key == "n_group" || key == "topk_group") {
    const Result<std::uint64_t> number = number_field(params, key, routing::kMaxExperts);
    if (!number) return number.why();
    (key == "n_group" ? result.options.groups : result.options.chosen_groups) = *number;
  } else if (key == "tid2eid") {
    const Result<MoeNumbers> table = read_moe_rows(params, key, {-1, kMaxId});
    if (!table) return table.why();
    if (table->columns != result.options.top_k)
      return malformed(key, fmt::format("rows of {}", result.options.top_k),
                       std::to_string(table->columns));
    result.options.hash_table = table->numbers;
  } else if (key == "input_ids") {
    Result<std::vector<std::int32_t>> tokens = read_moe_list(params, key, {-1, kMaxId});
    if (!tokens) return tokens.why();
    result.token_ids = *std::move(tokens);
  } else {
    return malformed(key, "scale, renorm, n_group, topk_group, tid2eid or input_ids", "another");
  }
  return Done{};
}

Result<RoutingCase> read_routing_case(const Json& item) {
  RoutingCase result;
  const Result<Method> method = method_field(item);
  if (!method) return method.why();
  result.options.method = *method;
  const Result<std::uint64_t> tokens = number_field(item, "num_tokens", kMaxTokens);
  if (!tokens) return tokens.why();
  const Result<std::uint64_t> experts = number_field(item, "num_experts", routing::kMaxExperts);
  if (!experts) return experts.why();
  const Result<std::uint64_t> top_k = number_field(item, "top_k", routing::kMaxExperts);
  if (!top_k) return top_k.why();
  result.options.experts = *experts;
  result.options.top_k = *top_k;
  Result<MoeTensor> logits = read_moe_tensor(item, "logits", {*tokens, *experts});
  if (!logits) return logits.why();
  result.logits = *std::move(logits);
  if (item.contains("bias")) {
    const Result<MoeTensor> bias = read_moe_tensor(item, "bias", {*experts});
    if (!bias) return bias.why();
    result.options.bias = bias->floats();
  }
  const auto params = item.find("params");
  if (params == item.end() || !params->is_object())
    return malformed("params", "an object", params == item.end() ? "none" : params->type_name());
  for (const auto& [key, value] : params->items())
    if (const Result<Done> read = read_param(key, *params, result); !read) return read.why();
  const bool by_table = item["method"] == kHashMethod;
  if (by_table == result.options.hash_table.empty())
    return malformed("tid2eid", by_table ? "a table" : "none", by_table ? "none" : "a table");
  Result<MoeNumbers> ids = read_moe_rows(item, "topk_ids", {-1, kMaxId});
  if (!ids) return ids.why();
  if (ids->rows != *tokens || (ids->rows > 0 && ids->columns != *top_k))
    return malformed("topk_ids", fmt::format("[{}, {}]", *tokens, *top_k),
                     fmt::format("[{}, {}]", ids->rows, ids->columns));
  result.ids = *std::move(ids);
  Result<MoeValues> weights = read_moe_values(item, "topk_weights", {*tokens, *top_k});
  if (!weights) return weights.why();
  result.weights = *std::move(weights);
  return result;
}

std::optional<Mismatch> compare_routes(const RoutingCase& given, const routing::RouteOutput& found,
                                       std::string_view path) {
  for (std::size_t assignment = 0; assignment < given.ids.numbers.size(); ++assignment) {
    const std::string where =
        fmt::format("token {}, assignment {}, {} path", assignment / given.options.top_k,
                    assignment % given.options.top_k, path);
    if (found.ids[assignment] != given.ids.numbers[assignment])
      return Mismatch{where + ": id", std::to_string(given.ids.numbers[assignment]),
                      std::to_string(found.ids[assignment])};
    const double wanted = given.weights.values[assignment];
    const auto weight = static_cast<double>(found.weights[assignment]);
    const double slack = std::isfinite(wanted) ? 2e-6 * std::abs(wanted) + 1e-12 : 0;
    if (!(std::abs(weight - wanted) <= slack))
      return Mismatch{where + ": weight", show(wanted), show(weight)};
  }
  return std::nullopt;
}

}  // namespace

Outcome check_moe_routing(const Json& item) {
  const Result<RoutingCase> given = read_routing_case(item);
  if (!given) return given.why();
  const Result<routing::Router> router = routing::Router::make(given->options);
  if (!router) return router.why();
  const std::size_t assignments = given->ids.rows * given->options.top_k;
  std::vector<std::int32_t> ids(assignments);
  std::vector<float> weights(assignments);
  const routing::RouteInput input{.logits = {.data = given->logits.bytes.data(),
                                             .dtype = given->logits.dtype,
                                             .tokens = given->logits.extent(0),
                                             .columns = given->logits.extent(1)},
                                  .token_ids = given->token_ids};
  const routing::RouteOutput output{.ids = ids, .weights = weights};
  ThreadPool alone(1);
  if (const Result<Done> done = router->route(input, output, alone); !done) return done.why();
  if (std::optional<Mismatch> found = compare_routes(*given, output, "fast")) return found;
  if (const Result<Done> done = router->route_reference(input, output); !done) return done.why();
  return compare_routes(*given, output, "slow");
}

}  // namespace fp4moe::golden
