// fp4moe_layer_*: a layer's life, on rows in the caller's memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/runtime/describe.hpp"

namespace fp4moe::capi {
namespace {

using moe::ConstRows;
using moe::MutableRows;
using runtime::MoeLayer;
using tensor::DType;

Result<runtime::LayerOptions> layer_options(const fp4moe_layer_options& given) {
  runtime::LayerOptions made{.engine = text_or(given.engine, "auto"),
                             .weights = text_or(given.weights, "auto"),
                             .numerics = text_or(given.numerics, "")};
  made.wish.policy = text_or(given.policy, "native");
  made.wish.backend = text_or(given.backend, "auto");
  Result<platform::Device> device = device_of(given.device);
  if (!device) return device.why();
  made.wish.device = *std::move(device);
  const Result<std::size_t> threads = threads_of(given.threads);
  if (!threads) return threads.why();
  made.threads = *threads;
  const Result<weights::Rank> tp = rank_of(given.tp_rank, given.tp_size, "tensor-parallel");
  if (!tp) return tp.why();
  const Result<weights::Rank> ep = rank_of(given.ep_rank, given.ep_size, "expert-parallel");
  if (!ep) return ep.why();
  made.slice = {.tensor_parallel = *tp, .expert_parallel = *ep};
  return made;
}

struct CreateCall {
  const fp4moe_model* model;
  std::uint64_t number;
  const fp4moe_layer_options* options;
  fp4moe_layer** layer;
};

Result<Done> create_layer(const CreateCall& call) {
  if (const auto fine = clear(call.layer, "the place for the layer"); !fine) return fine.why();
  const auto model = find(call.model);
  if (!model) return model.why();
  const auto given = take_options(call.options, "fp4moe_layer_options");
  if (!given) return given.why();
  Result<runtime::LayerOptions> options = layer_options(*given);
  if (!options) return options.why();
  Result<MoeLayer> made = (*model)->layer(call.number, std::move(*options));
  if (!made) return made.why();
  log_all(FP4MOE_LOG_NOTE, made->facts().notes);
  *call.layer = add(std::make_shared<OpenLayer>(*model, std::move(*made)));
  return Done{};
}

// One call on an open layer at a time.
template <class Work>
fp4moe_status on_layer(const fp4moe_layer* handle, const Work& work) noexcept {
  return guarded([&]() -> Result<Done> {
    const auto found = find(handle);
    if (!found) return found.why();
    const std::lock_guard lock((*found)->mutex);
    return work((*found)->layer);
  });
}

Result<Done> load_layer(MoeLayer& layer) {
  if (const auto done = layer.load(); !done) return done.why();
  log_all(FP4MOE_LOG_WARNING, layer.weights().packer().warnings());
  return Done{};
}

Result<DType> dtype_of(std::uint64_t given, std::string_view what) {
  constexpr std::array kTypes{DType::bf16, DType::f16, DType::f32, DType::f64};
  if (given >= FP4MOE_BF16 && given <= FP4MOE_F64) return kTypes[given - FP4MOE_BF16];
  return usage("rows.type", fmt::format("{} have a type that is not computed with", what))
      .expects("FP4MOE_BF16 (1), F16 (2), F32 (3) or F64 (4)", fmt::format("{}", given));
}

// Rows as the library has them, whatever can be known of them checked. Errors: struct.*, rows.*.
template <class Given>
auto take_rows(const Given* pointer, const char* what)
    -> Result<std::conditional_t<std::is_same_v<Given, fp4moe_rows>, ConstRows, MutableRows>> {
  using Rows = std::conditional_t<std::is_same_v<Given, fp4moe_rows>, ConstRows, MutableRows>;
  const Result<Given> given = take_struct(pointer, what);
  if (!given) return given.why();
  const Result<DType> dtype = dtype_of(given->dtype, what);
  if (!dtype) return dtype.why();
  const std::uint64_t element = moe::element_bytes(*dtype);
  const auto dense = checked_multiply(given->columns, element);
  const std::uint64_t stride = given->stride != 0 ? given->stride : dense.value_or(0);
  const auto whole = checked_multiply(given->rows, stride);
  if (!dense || !whole || *whole > PTRDIFF_MAX)
    return usage("rows.size", fmt::format("{} are larger than any memory", what))
        .expects("less than 2^63 bytes",
                 fmt::format("{} rows of {} columns, {} bytes from row to row", given->rows,
                             given->columns, given->stride));
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(given->data) % element == 0;
  if (!is_aligned || stride % element != 0)
    return usage("rows.alignment", fmt::format("{} are not aligned as their type is", what))
        .expects(fmt::format("multiples of {} bytes", element),
                 fmt::format("address {}, {} bytes from row to row", given->data, stride));
  using Byte = std::remove_pointer_t<decltype(Rows::data)>;
  const Rows made{static_cast<Byte*>(given->data), *dtype, given->rows, given->columns, stride};
  if (const auto fine = moe::check_rows(made, what, made.columns); !fine) return fine.why();
  return made;
}

Result<Done> check_count(std::uint64_t expected, std::uint64_t found, std::string_view what) {
  if (expected == found) return Done{};
  return usage("rows.count", fmt::format("{} are not as many as the tokens", what))
      .expects(fmt::format("{} rows", expected), fmt::format("{}", found));
}

// Tokens and outputs; both have the layer's width.
struct Sides {
  ConstRows x{};
  MutableRows out{};
};
Result<Sides> take_sides(const MoeLayer& layer, const fp4moe_rows* x, const fp4moe_output* out) {
  const auto tokens = take_rows(x, "tokens");
  if (!tokens) return tokens.why();
  const auto outputs = take_rows(out, "outputs");
  if (!outputs) return outputs.why();
  if (const auto same = check_count(tokens->rows, outputs->rows, "outputs"); !same)
    return same.why();
  const std::uint64_t hidden = layer.problem().shape.hidden;
  if (const auto fine = moe::check_rows(*tokens, "tokens", hidden); !fine) return fine.why();
  if (const auto fine = moe::check_rows(*outputs, "outputs", hidden); !fine) return fine.why();
  return Sides{*tokens, *outputs};
}

struct ApplyCall {
  const fp4moe_rows* x;
  const fp4moe_routes* routes;  // or logits
  const fp4moe_rows* logits;
  const fp4moe_output* out;
};

Result<Done> apply_layer(MoeLayer& layer, const ApplyCall& call) {
  const Result<Sides> sides = take_sides(layer, call.x, call.out);
  if (!sides) return sides.why();
  const auto routes = take_struct(call.routes, "fp4moe_routes");
  if (!routes) return routes.why();
  if (const auto same = check_count(sides->x.rows, routes->tokens, "routes"); !same)
    return same.why();
  const std::uint64_t most = layer.facts().model.shape.experts;
  if (routes->top_k == 0 || routes->top_k > most)
    return usage("routes.top_k", "a token's experts are some of them")
        .expects(fmt::format("1 to {}", most), fmt::format("{}", routes->top_k));
  const auto slots = checked_multiply(routes->tokens, routes->top_k);
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(routes->ids) % 4 == 0 &&
                          reinterpret_cast<std::uintptr_t>(routes->weights) % 4 == 0;
  if (!slots || *slots > PTRDIFF_MAX / 4 || !is_aligned)
    return usage("routes.memory", "ids and weights cannot lie there")
        .expects("arrays that are aligned to 4 bytes",
                 fmt::format("{} of each", slots.value_or(UINT64_MAX)));
  if (*slots != 0 && (routes->ids == nullptr || routes->weights == nullptr))
    return null_argument(routes->ids == nullptr ? "the routes' ids" : "the routes' weights");
  return layer.apply({.x = sides->x,
                      .top_k = routes->top_k,
                      .ids = {routes->ids, static_cast<std::size_t>(*slots)},
                      .weights = {routes->weights, static_cast<std::size_t>(*slots)}},
                     sides->out);
}

enum class Way : std::uint8_t { monolithic, either };

Result<Done> run_layer(MoeLayer& layer, const ApplyCall& call, Way way) {
  const Result<Sides> sides = take_sides(layer, call.x, call.out);
  if (!sides) return sides.why();
  const auto logits = take_rows(call.logits, "logits");
  if (!logits) return logits.why();
  if (const auto same = check_count(sides->x.rows, logits->rows, "logits"); !same)
    return same.why();
  const moe::routing::RouterOptions& router = layer.facts().router;
  const std::uint64_t columns = router.experts + router.zero_experts;
  if (const auto fine = moe::check_rows(*logits, "logits", columns); !fine) return fine.why();
  if (sides->x.rows == 0) return Done{};
  const runtime::Tokens tokens{.x = sides->x, .logits = *logits};
  return way == Way::monolithic ? layer.apply_monolithic(tokens, sides->out)
                                : layer.run(tokens, sides->out);
}

Result<Done> shape_of(const MoeLayer& layer, fp4moe_shape* to) {
  Result<fp4moe_shape> made = take_struct(to, "fp4moe_shape");
  if (!made) return made.why();
  const weights::MoeShape& local = layer.problem().shape;
  const std::size_t size = made->size;
  *made = {.size = size,
           .hidden = local.hidden,
           .intermediate = local.intermediate,
           .experts = layer.facts().model.shape.experts,
           .local_experts = local.experts,
           .top_k = layer.facts().router.top_k};
  std::memcpy(to, &*made, std::min(size, sizeof *made));
  return Done{};
}

}  // namespace
}  // namespace fp4moe::capi

namespace capi = fp4moe::capi;
using fp4moe::runtime::MoeLayer;

extern "C" {

fp4moe_status fp4moe_layer_create(const fp4moe_model* model, uint64_t number,
                                  const fp4moe_layer_options* options, fp4moe_layer** layer) {
  return capi::guarded([&] { return capi::create_layer({model, number, options, layer}); });
}

void fp4moe_layer_destroy(fp4moe_layer* layer) { capi::close(layer); }

fp4moe_status fp4moe_layer_load(fp4moe_layer* layer) {
  return capi::on_layer(layer, [](MoeLayer& found) { return capi::load_layer(found); });
}

fp4moe_status fp4moe_layer_load_expert(fp4moe_layer* layer, uint64_t position) {
  return capi::on_layer(layer, [&](MoeLayer& found) { return found.load_expert(position); });
}

fp4moe_status fp4moe_layer_process(fp4moe_layer* layer) {
  return capi::on_layer(layer, [](MoeLayer& found) { return found.process(); });
}

fp4moe_status fp4moe_layer_apply(fp4moe_layer* layer, const fp4moe_rows* x,
                                 const fp4moe_routes* routes, const fp4moe_output* out) {
  return capi::on_layer(layer, [&](MoeLayer& found) {
    return capi::apply_layer(found, {.x = x, .routes = routes, .logits = nullptr, .out = out});
  });
}

fp4moe_status fp4moe_layer_apply_monolithic(fp4moe_layer* layer, const fp4moe_rows* x,
                                            const fp4moe_rows* logits, const fp4moe_output* out) {
  return capi::on_layer(layer, [&](MoeLayer& found) {
    return capi::run_layer(found, {.x = x, .routes = nullptr, .logits = logits, .out = out},
                           capi::Way::monolithic);
  });
}

fp4moe_status fp4moe_layer_run(fp4moe_layer* layer, const fp4moe_rows* x, const fp4moe_rows* logits,
                               const fp4moe_output* out) {
  return capi::on_layer(layer, [&](MoeLayer& found) {
    return capi::run_layer(found, {.x = x, .routes = nullptr, .logits = logits, .out = out},
                           capi::Way::either);
  });
}

fp4moe_status fp4moe_layer_shape(const fp4moe_layer* layer, fp4moe_shape* shape) {
  return capi::on_layer(layer, [&](MoeLayer& found) { return capi::shape_of(found, shape); });
}

fp4moe_status fp4moe_layer_info(const fp4moe_layer* layer, char** json) {
  return capi::guarded([&]() -> fp4moe::Result<fp4moe::Done> {
    if (const auto fine = capi::clear(json, "the place for the text"); !fine) return fine.why();
    const auto found = capi::find(layer);
    if (!found) return found.why();
    const std::lock_guard lock((*found)->mutex);
    return capi::give(fp4moe::runtime::describe((*found)->layer), json);
  });
}

}  // extern "C"
