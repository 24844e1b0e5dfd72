// fp4moe_route and fp4moe_layer_route: logits in, experts and weights out.
#include "fp4moe/capi/routing.hpp"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/capi/rows.hpp"

namespace fp4moe::capi {
namespace {

using moe::routing::kMaxExperts;
using moe::routing::Router;
using moe::routing::RouterOptions;

constexpr std::uint64_t kMaxTokenIds = 1u << 24;

Error wrong_number(std::string_view what, std::uint64_t max, std::uint64_t found) {
  return usage("routing.size", fmt::format("the router's {} are more than any model has", what))
      .expects(fmt::format("at most {}", max), fmt::format("{}", found));
}

Result<moe::routing::Method> method_of(const char* given) {
  const Result<std::string> name = require_text(given, "the routing method");
  if (!name) return name.why();
  if (const auto method = moe::routing::method_from_name(*name)) return *method;
  std::vector<std::string_view> names;
  for (const moe::routing::MethodRow& row : moe::routing::kMethods) names.push_back(row.name);
  return usage("routing.method", "there is no such routing method")
      .expects(fmt::format("one of {}", fmt::join(names, ", ")),
               fmt::format("'{}'", printable(*name)));
}

}  // namespace

Result<RouterOptions> take_routing(const fp4moe_routing* pointer, std::uint64_t otherwise_experts,
                                   std::uint64_t otherwise_top_k) {
  const auto given = take_struct(pointer, "fp4moe_routing");
  if (!given) return given.why();
  const auto method = method_of(given->method);
  if (!method) return method.why();
  RouterOptions result{.method = *method,
                       .experts = given->experts == 0 ? otherwise_experts : given->experts,
                       .top_k = given->top_k == 0 ? otherwise_top_k : given->top_k,
                       .groups = given->groups,
                       .chosen_groups = given->chosen_groups,
                       .scale = given->scale == 0 ? 1 : given->scale,
                       .scale_on_output = given->scale_on_output != 0,
                       .zero_experts = given->zero_experts,
                       .shared_experts = given->shared_experts,
                       .weights_in_bf16 = given->weights_in_bf16 != 0};
  for (const std::uint64_t count : {result.experts, result.top_k, result.zero_experts,
                                    result.shared_experts, result.groups, result.chosen_groups})
    if (count > kMaxExperts) return wrong_number("experts", kMaxExperts, count);
  if (given->renormalize > 2)
    return usage("routing.renormalize", "invalid value of renormalize")
        .expects("0 (as the method does), 1 (yes) or 2 (no)",
                 fmt::format("{}", given->renormalize));
  if (given->renormalize != 0) result.renormalize = given->renormalize == 1;
  if (given->bias != nullptr) {
    const std::uint64_t count = result.experts + result.zero_experts;
    if (const auto fine = check_numbers(given->bias, count, 1, "the router's bias"); !fine)
      return fine.why();
    result.bias.assign(given->bias, given->bias + count);
  }
  if (given->table_rows > kMaxTokenIds)
    return wrong_number("token ids", kMaxTokenIds, given->table_rows);
  if (given->table_rows != 0) {
    if (const auto fine =
            check_numbers(given->table, given->table_rows, result.top_k, "the router's table");
        !fine)
      return fine.why();
    if (result.top_k != 0)
      result.hash_table.assign(given->table, given->table + given->table_rows * result.top_k);
  }
  return result;
}

namespace {

Result<Done> route(const Router& router, const fp4moe_route_call* pointer, ThreadPool& pool) {
  const auto given = take_struct(pointer, "fp4moe_route_call");
  if (!given) return given.why();
  const auto logits = take_rows(given->logits, "logits");
  if (!logits) return logits.why();
  if (const auto fine = moe::check_rows(*logits, "logits", router.columns()); !fine)
    return fine.why();
  if (given->slots != router.assignments_per_token())
    return usage("routes.top_k", "wrong top_k of ids and weights")
        .expects(fmt::format("{} assignments", router.assignments_per_token()),
                 fmt::format("{}", given->slots));
  const std::uint64_t tokens = logits->rows;
  const bool has_identities = router.options().zero_experts != 0;
  if (const auto fine = check_numbers(given->ids, tokens, given->slots, "the place for ids"); !fine)
    return fine.why();
  if (const auto fine =
          check_numbers(given->weights, tokens, given->slots, "the place for weights");
      !fine)
    return fine.why();
  if (has_identities)
    if (const auto fine =
            check_numbers(given->identity_weights, tokens, 1, "the place for identity weights");
        !fine)
      return fine.why();
  if (const auto fine =
          check_numbers(given->token_ids, given->token_ids == nullptr ? 0 : tokens, 1, "token ids");
      !fine)
    return fine.why();
  const auto count = static_cast<std::size_t>(tokens);
  moe::routing::RouteInput input{
      .logits = {.data = logits->data,
                 .dtype = logits->dtype,
                 .tokens = tokens,
                 .columns = logits->columns,
                 .stride = logits->stride / moe::element_bytes(logits->dtype)}};
  if (given->token_ids != nullptr) input.token_ids = {given->token_ids, count};
  if (given->is_padding != nullptr) input.is_padding = {given->is_padding, count};
  const std::size_t assignments = count * static_cast<std::size_t>(given->slots);
  moe::routing::RouteOutput output{.ids = {given->ids, assignments},
                                   .weights = {given->weights, assignments}};
  if (has_identities) output.identity_weights = {given->identity_weights, count};
  return router.route(input, output, pool);
}

Result<Done> route_by(const fp4moe_routing* routing, const fp4moe_route_call* call) {
  auto options = take_routing(routing, 0, 0);
  if (!options) return options.why();
  const Result<Router> router = Router::make(*std::move(options));
  if (!router) return router.why();
  ThreadPool alone(1);
  return route(*router, call, alone);
}

Result<Done> route_layer(const runtime::MoeLayer& layer, const fp4moe_route_call* call) {
  if (!layer.has_router())
    return usage("layer.routing", "the layer has no router: calls bring ids and weights")
        .expects("a description with a routing", "none")
        .try_this("describe the router when the layer is made, or call fp4moe_route");
  return route(layer.router(), call, layer.pool());
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;

extern "C" {

fp4moe_status fp4moe_route(const fp4moe_routing* routing, const fp4moe_route_call* call) {
  return capi::guarded([&] { return capi::route_by(routing, call); });
}

fp4moe_status fp4moe_layer_route(fp4moe_layer* layer, const fp4moe_route_call* call) {
  return capi::on_layer(layer,
                        [&](capi::OpenLayer& open) { return capi::route_layer(open.layer, call); });
}

}  // extern "C"
