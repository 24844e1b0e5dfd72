#include "device.hpp"

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "call_arguments.hpp"
#include "errors.hpp"

namespace fp4moe::python {
namespace {

using moe::ConstRows;
using moe::cuda::DeviceSession;
using moe::cuda::SessionCall;
using tensor::DType;

// torch's function that tells the stream; looked up once: an import costs more than a call.
nb::handle current_stream() {
  // Never torn down: the interpreter may be gone by then.
  static const nb::object& found =
      *new nb::object(nb::module_::import_("torch._C").attr("_cuda_getCurrentRawStream"));
  return found;
}

// The stream that the caller's framework enqueues on. Others than torch: the default stream.
kernels::cuda::Stream stream_of(const Array& tokens) {
  if (tokens.kind() != Kind::torch) return nullptr;
  const nb::object number = current_stream()(*tokens.device());
  // NOLINTNEXTLINE(performance-no-int-to-ptr): torch shows a stream as a number
  return reinterpret_cast<kernels::cuda::Stream>(nb::cast<std::uintptr_t>(number));
}

// The layer's session, made by its first call. With the layer's mutex.
Result<DeviceSession*> session_of(OpenLayer& open) {
  if (!open.session) {
    Result<DeviceSession> result = open.layer.device_session();
    if (!result) return result.why();
    open.session = std::move(*result);
  }
  return &*open.session;
}

enum class Way : std::uint8_t { apply, run };

// All arrays lie where the tokens do.
void enqueue(OpenLayer& open, SessionCall call, const Array& tokens, Way way) {
  const kernels::cuda::Stream stream = stream_of(tokens);
  done_or_raise(without_gil([&]() -> Result<Done> {
    const std::lock_guard lock(open.mutex);
    const auto session = session_of(open);
    if (!session) return session.why();
    // Arrays say which device they lie on: only for another one the driver has to say more.
    call.is_on_device = tokens.device() == (*session)->layer().device().facts().ordinal;
    return way == Way::run ? (*session)->run(call, stream) : (*session)->apply(call, stream);
  }));
}

// Ids and weights as kernels read them: those of other types are converted on the device.
Array dense(nb::handle given, const char* what, const Array& tokens, DType wanted) {
  Array seen = take_same_device(given, what, tokens);
  const auto element = static_cast<std::int64_t>(moe::element_bytes(DType::f32));
  if (seen.dimensions() == 2 && seen.dtype() == wanted &&
      (seen.shape(1) <= 1 || seen.stride(1) == element) &&
      (seen.shape(0) <= 1 || seen.stride(0) == seen.shape(1) * element))
    return seen;
  if (seen.kind() != Kind::torch || seen.dimensions() != 2)
    raise(usage("routes.memory", fmt::format("unreadable memory: {}", what))
              .expects(fmt::format("a dense 2-D array of {}", tensor::name(wanted)),
                       fmt::format("{} of {}", seen.shape_text(), seen.dtype_text())));
  const nb::object converted =
      given.attr(wanted == DType::i32 ? "int" : "float")().attr("contiguous")();
  return take_same_device(converted, what, tokens);
}

}  // namespace

nb::object run_on_device(const Layer& layer, nb::handle x, const Array& tokens, nb::handle logits,
                         nb::handle out) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  const ConstRows rows = rows_of(tokens, "tokens");
  const Array scores = take_same_device(logits, "logits", tokens);
  Output output = take_output(x, tokens, rows, out);
  const SessionCall call{.in = {.x = rows, .logits = rows_of(scores, "logits")},
                         .out = output.rows};
  check_no_overlap(rows, output.rows, "the tokens");
  check_no_overlap(call.in.logits, output.rows, "the logits");
  enqueue(*open, call, tokens, Way::run);
  return std::move(output.object);
}

nb::object apply_on_device(const Layer& layer, nb::handle x, const Array& tokens,
                           const DeviceRoutes& routes, nb::handle out) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  const ConstRows rows = rows_of(tokens, "tokens");
  const Array ids = dense(routes.ids, "ids", tokens, DType::i32);
  const Array weights = dense(routes.weights, "weights", tokens, DType::f32);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::int64_t expected = i == 0 ? tokens.shape(0) : ids.shape(1);
    if (ids.shape(i) != expected || weights.shape(i) != expected)
      raise(usage("routes.weights", "shapes of tokens, ids and weights differ")
                .expects(fmt::format("[{}, top_k] twice", tokens.shape(0)),
                         fmt::format("{} and {}", ids.shape_text(), weights.shape_text())));
  }
  Output output = take_output(x, tokens, rows, out);
  check_no_overlap(rows, output.rows, "the tokens");
  check_no_overlap(rows_of(weights, "weights"), output.rows, "the weights");
  const auto top_k = static_cast<std::uint64_t>(ids.shape(1));
  const std::size_t assignments = rows.rows * top_k;
  const SessionCall call{
      .in = {.x = rows,
             .top_k = top_k,
             .ids = {static_cast<const std::int32_t*>(ids.data()), assignments},
             .weights = {static_cast<const float*>(weights.data()), assignments}},
      .out = output.rows};
  enqueue(*open, call, tokens, Way::apply);
  return std::move(output.object);
}

void reserve(const Layer& layer, std::int64_t tokens, std::int64_t top_k) {
  const std::shared_ptr<OpenLayer> open = layer.get();
  if (tokens < 0 || top_k < 0)
    raise(usage("options.negative", tokens < 0 ? "invalid number of tokens" : "invalid top_k")
              .expects("0 or more", fmt::format("{} tokens, top_k {}", tokens, top_k)));
  const std::uint64_t assignments =
      top_k == 0 ? open->layer.facts().router.top_k : static_cast<std::uint64_t>(top_k);
  done_or_raise(without_gil([&]() -> Result<Done> {
    const std::lock_guard lock(open->mutex);
    const auto session = session_of(*open);
    if (!session) return session.why();
    return (*session)->reserve(static_cast<std::uint64_t>(tokens), assignments);
  }));
}

}  // namespace fp4moe::python
