#include "layer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <pthread.h>
#include <unistd.h>

#include "adapters.hpp"
#include "arrays.hpp"
#include "call_arguments.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/platform/settings.hpp"
#include "fp4moe/runtime/describe.hpp"
#include "fp4moe/runtime/pool.hpp"
#include "openmp.hpp"

namespace fp4moe::python {
namespace {

using moe::ConstRows;
using moe::MutableRows;
using runtime::MoeLayer;
using tensor::DType;

Result<std::uint64_t> whole(std::int64_t given, std::string_view what) {
  if (given >= 0) return static_cast<std::uint64_t>(given);
  return usage("options.negative", fmt::format("{} is negative", what))
      .expects("0 or more", fmt::format("{}", given));
}

Result<checkpoint::Rank> rank_of(std::pair<std::int64_t, std::int64_t> given,
                                 std::string_view what) {
  const auto rank = whole(given.first, fmt::format("the {} rank", what));
  if (!rank) return rank.why();
  const auto size = whole(given.second, fmt::format("the number of {} ranks", what));
  if (!size) return size.why();
  return capi::rank_of(*rank, *size, what);
}

// Errors: layer.source where nothing is left to read again.
void check_sources(const OpenLayer& open) {
  if (!open.model.open)
    raise(usage("layer.source", "the arrays that the layer was made of are gone")
              .expects("a layer of a model", "one of from_weights")
              .try_this("give it all of them again with load_weights()"));
  if (open.model.sources) open.model.sources->check(open.layer.facts().prefix);
}

// Ctrl-C ends it between experts.
Result<Done> load_and_process(MoeLayer& layer) {
  const InterruptGuard guard;
  if (const auto done = layer.load(); !done) return done.why();
  return layer.process();
}

// A number that a fork changes in the child. Asking for the process is a call of the kernel, which
// takes longer than looking at an array: forks are counted instead.
std::uint64_t process_number() {
  static std::atomic<std::uint64_t> forks{0};
  static const bool kAreCounted =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); }) == 0;
  return kAreCounted ? forks.load(std::memory_order_relaxed) : static_cast<std::uint64_t>(getpid());
}

Result<std::shared_ptr<OpenLayer>> make_layer(const Model& model, std::int64_t number,
                                              const LayerWords& words) {
  const auto index = whole(number, "the layer's number");
  if (!index) return index.why();
  Result<runtime::LayerOptions> options = options_of(words);
  if (!options) return options.why();
  take_threads(words.threads, *options);
  Result<MoeLayer> result = model.open->layer(*index, std::move(*options));
  if (!result) return result.why();
  if (const auto done = load_and_process(*result); !done) return done.why();
  return std::make_shared<OpenLayer>(model, *index, std::move(*result));
}

// Ids and weights without gaps. Arrays that lie so are used as they are; these are a few numbers
// per token, so others are copied.
struct Routes {
  std::uint64_t tokens = 0, top_k = 0;
  std::span<const std::int32_t> ids{};
  std::span<const float> weights{};
  std::vector<std::int32_t> own_ids{};
  std::vector<float> own_weights{};
};

bool is_dense(const Array& array, std::int64_t element) {
  return (array.shape(1) <= 1 || array.stride(1) == element) &&
         (array.shape(0) <= 1 || array.stride(0) == array.shape(1) * element) &&
         reinterpret_cast<std::uintptr_t>(array.data()) % static_cast<std::uintptr_t>(element) == 0;
}

[[noreturn]] void raise_id(std::int64_t id, std::uint64_t experts) {
  raise(usage("routes.ids", "there is no expert of this number")
            .expects(fmt::format("-1 (none) to {}", experts - 1), fmt::format("{}", id)));
}

// Numbers beyond 32 bits are as wrong as the nearest that fit.
template <class T>
void copy_ids(const Array& from, std::vector<std::int32_t>& to) {
  const auto* data = static_cast<const std::byte*>(from.data());
  for (std::int64_t row = 0; row < from.shape(0); ++row)
    for (std::int64_t column = 0; column < from.shape(1); ++column) {
      T id{};
      std::memcpy(&id, data + row * from.stride(0) + column * from.stride(1), sizeof id);
      to.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(
          id, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max())));
    }
}

void take_ids(const Array& array, Routes& routes) {
  const std::optional<DType> dtype = array.dtype();
  if (array.dimensions() != 2 || (dtype != DType::i32 && dtype != DType::i64))
    raise(usage("routes.ids", "the experts' numbers cannot be read")
              .expects("a 2-D array [tokens, top_k] of I32 or I64",
                       fmt::format("{} of {}", array.shape_text(), array.dtype_text())));
  routes.tokens = static_cast<std::uint64_t>(array.shape(0));
  routes.top_k = static_cast<std::uint64_t>(array.shape(1));
  const std::size_t count = routes.tokens * routes.top_k;
  if (dtype == DType::i32 && is_dense(array, 4)) {
    routes.ids = {static_cast<const std::int32_t*>(array.data()), count};
    return;
  }
  routes.own_ids.reserve(count);
  if (dtype == DType::i32)
    copy_ids<std::int32_t>(array, routes.own_ids);
  else
    copy_ids<std::int64_t>(array, routes.own_ids);
  routes.ids = routes.own_ids;
}

void take_weights(const Array& array, Routes& routes) {
  const ConstRows rows = rows_of(array, "weights");
  if (rows.rows != routes.tokens || rows.columns != routes.top_k)
    raise(usage("routes.weights", "ids and weights have different shapes")
              .expects(fmt::format("[{}, {}]", routes.tokens, routes.top_k), array.shape_text()));
  const std::size_t count = routes.tokens * routes.top_k;
  if (rows.dtype == DType::f32 && is_dense(array, 4)) {
    routes.weights = {static_cast<const float*>(array.data()), count};
    return;
  }
  routes.own_weights.resize(count);
  for (std::uint64_t row = 0; row < rows.rows; ++row)
    moe::read_row(rows, row,
                  std::span(routes.own_weights).subspan(row * rows.columns, rows.columns));
  routes.weights = routes.own_weights;
}

// The layer itself takes every number that is none of its experts for unassigned.
void check_routes(const MoeLayer& layer, const Routes& routes) {
  const std::uint64_t experts = layer.facts().model.shape.experts;
  if (routes.top_k == 0 || routes.top_k > experts)
    raise(usage("routes.top_k", "invalid top_k")
              .expects(fmt::format("1 to {}", experts), fmt::format("{}", routes.top_k)));
  for (const std::int32_t id : routes.ids)
    if (id < -1 || static_cast<std::int64_t>(id) >= static_cast<std::int64_t>(experts))
      raise_id(id, experts);
}

struct ApplyArguments {
  nb::handle x, ids, weights, out;
  nb::handle lora = nb::none(), lora_of_token = nb::none();
};

// A call whose arguments are checked and held, so that it can run without the GIL, and again.
class ApplyCall {
 public:
  ApplyCall(const Layer& layer, Array tokens, const ApplyArguments& given)
      : open_(layer.get()),
        x_(std::move(tokens)),
        ids_(take_same_device(given.ids, "ids", x_)),
        weights_(take_same_device(given.weights, "weights", x_)),
        rows_(rows_of(x_, "tokens")),
        output_((check_width(), take_output(given.x, x_, rows_, given.out))) {
    take_ids(ids_, routes_);
    take_weights(weights_, routes_);
    check_count(rows_.rows, routes_.tokens, "ids");
    check_routes(open_->layer, routes_);
    check_no_overlap(rows_, output_.rows, "the tokens");
    if (routes_.own_weights.empty() && routes_.tokens != 0)
      check_no_overlap(rows_of(weights_, "weights"), output_.rows, "the weights");
    if (routes_.own_ids.empty() && routes_.tokens != 0)  // as rows of the same width
      check_no_overlap({static_cast<const std::byte*>(ids_.data()), DType::f32, routes_.tokens,
                        routes_.top_k, routes_.top_k * 4},
                       output_.rows, "the ids");
    additions_ = take_additions(open_, rows_.rows, given.lora, given.lora_of_token);
  }

  Result<Done> run() {
    if (rows_.rows == 0) return Done{};
    const std::lock_guard lock(open_->mutex);
    return open_->layer.apply({.x = rows_,
                               .top_k = routes_.top_k,
                               .ids = routes_.ids,
                               .weights = routes_.weights,
                               .adapters = additions_.of_token},
                              output_.rows, additions_.view);
  }
  nb::object take_result() { return std::move(output_.object); }

 private:
  void check_width() const {
    done_or_raise(moe::check_rows(rows_, "tokens", open_->layer.problem().shape.hidden));
  }

  std::shared_ptr<OpenLayer> open_;
  Array x_, ids_, weights_;
  ConstRows rows_;
  Output output_;
  Routes routes_{};
  Additions additions_{};
};

void refuse_adapters(nb::handle lora) {
  if (!lora.is_none())
    raise(usage("layer.device", "adapters lie in the host's memory")
              .expects("tokens there, too", "tokens on a GPU")
              .try_this("move the tokens: x.cpu()"));
}

nb::object apply(const Layer& layer, nb::handle x, nb::handle ids, nb::handle weights,
                 nb::handle out, nb::handle lora, nb::handle lora_of_token) {
  Array tokens = Array::take(x, "tokens", {.where = Where::anywhere});
  if (tokens.device()) {
    refuse_adapters(lora);
    return apply_on_device(layer, x, tokens, {ids, weights}, out);
  }
  ApplyCall call(layer, std::move(tokens), {x, ids, weights, out, lora, lora_of_token});
  done_or_raise(without_gil([&] { return call.run(); }));
  return call.take_result();
}

// Seconds of one call without Python around it: what the overhead of Python is measured against.
double time_apply(const Layer& layer, nb::handle x, nb::handle ids, nb::handle weights,
                  std::uint32_t calls) {
  ApplyCall call(layer, Array::take(x, "tokens"), {x, ids, weights, nb::none()});
  const auto begin = std::chrono::steady_clock::now();
  done_or_raise(without_gil([&]() -> Result<Done> {
    for (std::uint32_t i = 0; i < calls; ++i)
      if (const auto done = call.run(); !done) return done.why();
    return Done{};
  }));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
         std::max(1u, calls);
}

nb::object run(const Layer& layer, nb::handle x, nb::handle logits, nb::handle out, nb::handle lora,
               nb::handle lora_of_token) {
  const Array tokens = Array::take(x, "tokens", {.where = Where::anywhere});
  if (tokens.device()) {
    refuse_adapters(lora);
    return run_on_device(layer, x, tokens, logits, out);
  }
  const std::shared_ptr<OpenLayer> open = layer.get();
  const ConstRows rows = rows_of(tokens, "tokens");
  done_or_raise(moe::check_rows(rows, "tokens", open->layer.problem().shape.hidden));
  const Array scores = take_same_device(logits, "logits", tokens);
  const ConstRows score_rows = rows_of(scores, "logits");
  check_count(rows.rows, score_rows.rows, "logits");
  done_or_raise(moe::check_rows(score_rows, "logits", open->layer.router().columns()));
  Output output = take_output(x, tokens, rows, out);
  check_no_overlap(rows, output.rows, "the tokens");
  check_no_overlap(score_rows, output.rows, "the logits");
  const Additions added = take_additions(open, rows.rows, lora, lora_of_token);
  if (rows.rows != 0)
    done_or_raise(without_gil([&] {
      const std::lock_guard lock(open->mutex);
      return open->layer.run({.x = rows, .logits = score_rows, .adapters = added.of_token},
                             output.rows, added.view);
    }));
  return std::move(output.object);
}

nb::tuple route(const Layer& layer, nb::handle logits) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  const Array scores = Array::take(logits, "logits");
  const ConstRows rows = rows_of(scores, "logits");
  const moe::routing::Router& router = open->layer.router();
  done_or_raise(moe::check_rows(rows, "logits", router.columns()));
  nb::object ids = empty_of(logits, scores, "int32", rows.rows, router.assignments_per_token());
  nb::object weights =
      empty_of(logits, scores, "float32", rows.rows, router.assignments_per_token());
  const Array id_array = Array::take(ids, "ids", {.access = Access::write});
  const Array weight_array = Array::take(weights, "weights", {.access = Access::write});
  const std::size_t count = rows.rows * router.assignments_per_token();
  std::vector<float> identity(router.options().zero_experts == 0 ? 0 : rows.rows);
  if (rows.rows != 0)
    done_or_raise(without_gil([&] {
      ThreadPool alone(1);
      return router.route({.logits = {.data = rows.data,
                                      .dtype = rows.dtype,
                                      .tokens = rows.rows,
                                      .columns = rows.columns,
                                      .stride = rows.stride / moe::element_bytes(rows.dtype)}},
                          {.ids = {static_cast<std::int32_t*>(id_array.data()), count},
                           .weights = {static_cast<float*>(weight_array.data()), count},
                           .identity_weights = identity},
                          alone);
    }));
  return nb::make_tuple(std::move(ids), std::move(weights));
}

void load(const Layer& layer) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  check_sources(*open);
  done_or_raise(without_gil([&] {
    const std::lock_guard lock(open->mutex);
    open->session.reset();  // it has the weights of before
    return load_and_process(open->layer);
  }));
}

void load_expert(const Layer& layer, std::int64_t position) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  const std::uint64_t index = value_or_raise(whole(position, "the expert's position"));
  check_sources(*open);
  done_or_raise(without_gil([&]() -> Result<Done> {
    const std::lock_guard lock(open->mutex);
    if (const auto done = open->layer.load_expert(index); !done) return done.why();
    open->session.reset();
    return open->layer.process();
  }));
}

nb::object info(const Layer& layer) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  return to_python(value_or_raise(without_gil([&]() -> Result<Json> {
    const std::lock_guard lock(open->mutex);
    return runtime::describe(open->layer);
  })));
}

std::string representation(const Layer& layer) {
  if (layer.is_closed()) return "<fp4moe.Layer, closed>";
  const auto open = layer.get();
  const checkpoint::MoeShape& shape = open->layer.problem().shape;
  return fmt::format("<fp4moe.Layer {} experts, hidden {}, intermediate {}, backend {}>",
                     shape.experts, shape.hidden, shape.intermediate,
                     open->layer.choice().backend->name);
}

template <class Get>
auto number(const Get& get) {
  return [get](const Layer& layer) -> std::uint64_t { return get(layer.get()->layer); };
}

}  // namespace

Result<runtime::LayerOptions> options_of(const LayerWords& words) {
  runtime::LayerOptions result;
  const auto read = runtime::read_words({.engine = words.engine,
                                         .weights = words.weights,
                                         .numerics = words.numerics,
                                         .activations = words.activations},
                                        result);
  if (!read) return read.why();
  result.backend_request.policy = words.policy;
  result.backend_request.backend = words.backend;
  Result<platform::Device> device = capi::device_of(words.device.c_str());
  if (!device) return device.why();
  result.backend_request.device = *std::move(device);
  const auto given_threads = whole(words.threads, "the number of threads");
  if (!given_threads) return given_threads.why();
  const Result<std::size_t> threads = capi::threads_of(*given_threads);
  if (!threads) return threads.why();
  result.threads = *threads;
  const Result<checkpoint::Rank> tp = rank_of(words.tp, "tensor-parallel");
  if (!tp) return tp.why();
  const Result<checkpoint::Rank> ep = rank_of(words.ep, "expert-parallel");
  if (!ep) return ep.why();
  result.slice = {.tensor_parallel = *tp, .expert_parallel = *ep};
  return result;
}

std::shared_ptr<ThreadPool> shared_pool(std::size_t threads, bool is_asked_for) {
  static runtime::Pools& pools = *new runtime::Pools;  // threads may end after everything else
  const Result<platform::Settings> settings = platform::read_settings();
  if (!settings || !settings->openmp.value_or(true)) return pools.get(threads);
  const std::optional<OpenMp> openmp = find_openmp();
  if (!openmp) return pools.get(threads);
  const bool is_said = is_asked_for || settings->threads;
  return pools.get(is_said ? threads : openmp->threads, openmp->team);
}

void take_threads(std::int64_t asked, runtime::LayerOptions& options) {
  options.pool = shared_pool(options.threads, asked != 0);
  options.threads = options.pool->threads();
}

Layer Layer::open(const Model& model, std::int64_t number, const LayerWords& words) {
  if (model.sources) model.sources->check("");
  return Layer(value_or_raise(without_gil([&] { return make_layer(model, number, words); })));
}

Layer::Layer(std::shared_ptr<OpenLayer> open)
    : open_(std::move(open)), process_(process_number()) {}
bool Layer::is_of_another_process() const { return process_ != process_number(); }

Layer::~Layer() {
  // A forked child has none of the threads that the layer would wait for: it lets the memory be.
  if (open_ && is_of_another_process())
    new (std::nothrow) std::shared_ptr<OpenLayer>(std::move(open_));
}

std::shared_ptr<OpenLayer> Layer::get() const {
  if (!open_)
    raise(usage("layer.closed", "the layer was closed").expects("an open layer", "a closed one"));
  if (is_of_another_process())
    raise(usage("layer.forked", "the layer belongs to the process that opened it")
              .expects("the process that opened it", "a fork of it, which has no threads")
              .try_this("open the layer in the child, or start it by spawn"));
  return open_;
}

void Layer::close() {
  if (open_ && is_of_another_process()) {
    new std::shared_ptr<OpenLayer>(std::move(open_));
    return;
  }
  const std::shared_ptr<OpenLayer> last = std::move(open_);
  const nb::gil_scoped_release released;  // a call under way elsewhere goes on
}

namespace {

// A function of words as one of single arguments.
auto open_by(Layer (*open)(nb::handle, std::int64_t, const LayerWords&)) {
  return [open](nb::handle from, std::int64_t position, std::string engine, std::string backend,
                std::string policy, std::string device, std::string numerics,
                std::string activations, std::string weights, std::int64_t threads,
                std::pair<std::int64_t, std::int64_t> tp,
                std::pair<std::int64_t, std::int64_t> ep) {
    return open(from, position,
                {std::move(engine), std::move(backend), std::move(policy), std::move(device),
                 std::move(numerics), std::move(activations), std::move(weights), threads, tp, ep});
  };
}

Layer open_path(nb::handle path, std::int64_t position, const LayerWords& words) {
  return Layer::open(open_model(path), position, words);
}
Layer open_layer(nb::handle model, std::int64_t position, const LayerWords& words) {
  return Layer::open(nb::cast<const Model&>(model), position, words);
}

// Calls define(extra...) with the names and defaults of a layer's options.
template <class Define>
void with_options(const Define& define) {
  const std::pair<std::int64_t, std::int64_t> alone{0, 1};
  define(nb::arg("number"), nb::kw_only(), nb::arg("engine") = "auto", nb::arg("backend") = "auto",
         nb::arg("policy") = "native", nb::arg("device") = "auto", nb::arg("numerics") = "",
         nb::arg("activations") = "", nb::arg("weights") = "auto", nb::arg("threads") = 0,
         nb::arg("tp") = alone, nb::arg("ep") = alone);
}

}  // namespace

nb::class_<Layer> bind_layer(nb::module_& module, nb::class_<Model>& model) {
  nb::class_<Layer> layer(module, "Layer", nb::is_weak_referenceable(),
                          "One MoE layer, loaded and ready.");
  with_options([&](const auto&... options) {
    layer.def_static("open", open_by(open_path), nb::arg("path"), options...,
                     "Open a model and load one of its layers; tp and ep are (rank, ranks).");
    model.def("layer", open_by(open_layer), options...,
              "Load one of the layers; tp and ep are (rank, ranks).");
  });
  layer
      .def("run", &run, nb::arg("x").none(), nb::arg("logits").none(),
           nb::arg("out").none() = nb::none(), nb::kw_only(), nb::arg("lora").none() = nb::none(),
           nb::arg("lora_of_token").none() = nb::none(),
           nb::sig("def run(self, x: typing.Any, logits: typing.Any, out: typing.Any = None, *, "
                   "lora: Adapters | None = None, lora_of_token: typing.Any = None) -> typing.Any"),
           "Compute, given the router's logits [tokens, experts].")
      .def("__call__", &run, nb::arg("x").none(), nb::arg("logits").none(),
           nb::arg("out").none() = nb::none(), nb::kw_only(), nb::arg("lora").none() = nb::none(),
           nb::arg("lora_of_token").none() = nb::none(),
           nb::sig("def __call__(self, x: typing.Any, logits: typing.Any, out: typing.Any = None, "
                   "*, lora: Adapters | None = None, lora_of_token: typing.Any = None) -> "
                   "typing.Any"),
           "The same as run.")
      .def("apply", &apply, nb::arg("x").none(), nb::arg("ids").none(), nb::arg("weights").none(),
           nb::arg("out").none() = nb::none(), nb::kw_only(), nb::arg("lora").none() = nb::none(),
           nb::arg("lora_of_token").none() = nb::none(),
           nb::sig("def apply(self, x: typing.Any, ids: typing.Any, weights: typing.Any, "
                   "out: typing.Any = None, *, lora: Adapters | None = None, "
                   "lora_of_token: typing.Any = None) -> typing.Any"),
           "Compute, given each token's experts and their weights [tokens, top_k].")
      .def("route", &route, nb::arg("logits").none(),
           nb::sig("def route(self, logits: typing.Any) -> tuple[typing.Any, typing.Any]"),
           "Each token's experts (int32) and weights (float32), as run would choose them.")
      .def("reserve", &reserve, nb::arg("tokens"), nb::arg("top_k") = 0,
           "GPU only: memory for calls of up to `tokens` tokens, before a stream is captured.")
      .def("load", &load, "Read the weights again, after they changed; addresses stay.")
      .def("load_expert", &load_expert, nb::arg("position"),
           "Read one expert again, by its position among those of this rank.")
      .def("info", &info, nb::sig("def info(self) -> dict[str, typing.Any]"),
           "Backend, layout, numerics, engine, kernel, bytes; wide_rows on a GPU.")
      .def("close", &Layer::close, "Give the memory back; later calls are refused.")
      .def_prop_ro("closed", &Layer::is_closed, "Whether close() was called.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Layer"))
      .def(
          "__exit__", [](Layer& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *raised: object) -> None"))
      .def_prop_ro("hidden",
                   number([](const MoeLayer& self) { return self.problem().shape.hidden; }),
                   "Columns of tokens and outputs.")
      .def_prop_ro("intermediate",
                   number([](const MoeLayer& self) { return self.problem().shape.intermediate; }),
                   "Columns of the activation, of this rank.")
      .def_prop_ro("experts",
                   number([](const MoeLayer& self) { return self.facts().model.shape.experts; }),
                   "All experts.")
      .def_prop_ro("local_experts",
                   number([](const MoeLayer& self) { return self.problem().shape.experts; }),
                   "Experts of this rank.")
      .def_prop_ro("top_k", number([](const MoeLayer& self) { return self.facts().router.top_k; }),
                   "Experts of a token.")
      .def("__repr__", &representation)
      .def("_time_apply", &time_apply, nb::arg("x"), nb::arg("ids"), nb::arg("weights"),
           nb::arg("calls"), "Seconds of one call without Python around it.");
  return layer;
}

}  // namespace fp4moe::python
