// Calls on a layer: fp4moe_layer_apply, _apply_monolithic, _run, _call and _reserve.
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/capi/border.hpp"
#include "fp4moe/capi/rows.hpp"

namespace fp4moe::capi {
namespace {

using moe::cuda::DeviceSession;
using moe::cuda::SessionCall;
using runtime::MoeLayer;

// Adapters of a call and each token's adapter; empty: none.
struct Additions {
  std::shared_ptr<const OpenAdapters> adapters{};  // lives as long as the call
  std::vector<std::int32_t> of_token{};
  moe::LoraView view() const { return adapters ? adapters->set.view() : moe::LoraView{}; }
};

Result<Additions> take_additions(const OpenLayer& open, const fp4moe_call& call,
                                 std::uint64_t tokens) {
  Additions result;
  if (call.adapters == nullptr) {
    if (call.adapter_of_token == nullptr) return result;
    return usage("lora.tokens", "tokens have adapters, but there are none")
        .expects("adapters beside their numbers", "null");
  }
  auto found = find(call.adapters);
  if (!found) return found.why();
  if ((*found)->layer.lock().get() != &open)
    return usage("lora.layer", "the adapters were loaded for another layer")
        .expects("those of this layer", "those of another");
  result.adapters = *std::move(found);
  if (call.adapter_of_token == nullptr) {
    result.of_token.assign(tokens, 0);
    return result;
  }
  if (const auto fine = check_numbers(call.adapter_of_token, tokens, 1, "the tokens' adapters");
      !fine)
    return fine.why();
  result.of_token.assign(call.adapter_of_token, call.adapter_of_token + tokens);
  const auto count = static_cast<std::int64_t>(result.view().adapters());
  for (const std::int32_t number : result.of_token)
    if (number < -1 || number >= count)
      return usage("lora.tokens", "a token asks for an adapter that is not loaded")
          .expects(fmt::format("-1 (none) to {}", count - 1), fmt::format("{}", number));
  return result;
}

Result<DeviceSession*> session_of(OpenLayer& open) {
  if (!open.session) {
    Result<DeviceSession> result = open.layer.device_session();
    if (!result) return result.why();
    open.session = std::move(*result);
  }
  return &*open.session;
}

Result<Done> call_on_device(OpenLayer& open, const fp4moe_call& call, SessionCall result) {
  if (call.adapters != nullptr || call.adapter_of_token != nullptr)
    return usage("call.adapters", "adapters are added to tokens on the host")
        .expects("rows in the host's memory", "on_device")
        .try_this("give tokens in the host's memory, or merge the adapter: fp4moe merge");
  const auto session = session_of(open);
  if (!session) return session.why();
  result.is_on_device = call.trusted != 0;
  auto* const stream = static_cast<kernels::cuda::Stream>(call.stream);
  return call.routes != nullptr ? (*session)->apply(result, stream)
                                : (*session)->run(result, stream);
}

Result<Done> call_layer(OpenLayer& open, const fp4moe_call& call) {
  if ((call.routes == nullptr) == (call.logits == nullptr))
    return usage("call.routes", "a call brings either routes or logits")
        .expects("one of them", call.routes == nullptr ? "neither" : "both");
  if (call.on_device == 0 && (call.stream != nullptr || call.trusted != 0))
    return usage("call.device", "a stream is for calls on a device")
        .expects("on_device beside it", "0");
  const Result<Sides> sides = take_sides(open.layer, call.x, call.out);
  if (!sides) return sides.why();
  const std::uint64_t tokens = sides->x.rows;
  runtime::Tokens in{.x = sides->x};
  if (call.routes != nullptr) {
    const auto routes = take_routes(open.layer, call.routes, tokens);
    if (!routes) return routes.why();
    in.top_k = routes->top_k;
    in.ids = {routes->ids, static_cast<std::size_t>(tokens * routes->top_k)};
    in.weights = {routes->weights, in.ids.size()};
  } else {
    const auto logits = take_logits(open.layer, call.logits, tokens);
    if (!logits) return logits.why();
    in.logits = *logits;
  }
  if (call.on_device != 0) return call_on_device(open, call, {.in = in, .out = sides->out});
  const Result<Additions> additions = take_additions(open, call, tokens);
  if (!additions) return additions.why();
  in.adapters = additions->of_token;
  if (call.routes != nullptr) return open.layer.apply(in, sides->out, additions->view());
  if (tokens == 0) return Done{};
  return open.layer.run(in, sides->out, additions->view());
}

Result<Done> apply_monolithic(MoeLayer& layer, const fp4moe_call& call) {
  const Result<Sides> sides = take_sides(layer, call.x, call.out);
  if (!sides) return sides.why();
  const auto logits = take_logits(layer, call.logits, sides->x.rows);
  if (!logits) return logits.why();
  if (sides->x.rows == 0) return Done{};
  return layer.apply_monolithic({.x = sides->x, .logits = *logits}, sides->out);
}

Result<Done> reserve(OpenLayer& open, std::uint64_t tokens, std::uint64_t top_k) {
  const auto session = session_of(open);
  if (!session) return session.why();
  return (*session)->reserve(tokens, top_k == 0 ? open.layer.facts().router.top_k : top_k);
}

// A call of one of the functions that were there before fp4moe_call.
fp4moe_call plain(const fp4moe_rows* x, const fp4moe_output* out) {
  fp4moe_call result{};
  result.size = sizeof result;
  result.x = x;
  result.out = out;
  return result;
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;
using capi::OpenLayer;

extern "C" {

fp4moe_status fp4moe_layer_apply(fp4moe_layer* layer, const fp4moe_rows* x,
                                 const fp4moe_routes* routes, const fp4moe_output* out) {
  return capi::on_layer(layer, [&](OpenLayer& open) -> fp4moe::Result<fp4moe::Done> {
    if (routes == nullptr) return capi::null_argument("fp4moe_routes");
    fp4moe_call call = capi::plain(x, out);
    call.routes = routes;
    return capi::call_layer(open, call);
  });
}

fp4moe_status fp4moe_layer_apply_monolithic(fp4moe_layer* layer, const fp4moe_rows* x,
                                            const fp4moe_rows* logits, const fp4moe_output* out) {
  return capi::on_layer(layer, [&](OpenLayer& open) {
    fp4moe_call call = capi::plain(x, out);
    call.logits = logits;
    return capi::apply_monolithic(open.layer, call);
  });
}

fp4moe_status fp4moe_layer_run(fp4moe_layer* layer, const fp4moe_rows* x, const fp4moe_rows* logits,
                               const fp4moe_output* out) {
  return capi::on_layer(layer, [&](OpenLayer& open) -> fp4moe::Result<fp4moe::Done> {
    if (logits == nullptr) return capi::null_argument("logits");
    fp4moe_call call = capi::plain(x, out);
    call.logits = logits;
    return capi::call_layer(open, call);
  });
}

fp4moe_status fp4moe_layer_call(fp4moe_layer* layer, const fp4moe_call* call) {
  return capi::on_layer(layer, [&](OpenLayer& open) -> fp4moe::Result<fp4moe::Done> {
    const auto given = capi::take_struct(call, "fp4moe_call");
    if (!given) return given.why();
    return capi::call_layer(open, *given);
  });
}

fp4moe_status fp4moe_layer_reserve(fp4moe_layer* layer, uint64_t tokens, uint64_t top_k) {
  return capi::on_layer(layer, [&](OpenLayer& open) { return capi::reserve(open, tokens, top_k); });
}

}  // extern "C"
