// The work that a device is given: launches, copies, streams, graphs, events.
#include <array>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/kernels/cuda/device_state.hpp"

namespace fp4moe::kernels::cuda {
namespace {

constexpr float kMicrosecondsPerMillisecond = 1000;

}  // namespace

Current::Current(const EntryPoints& driver, Context context) : driver_(driver) {
  Context now = nullptr;
  code_ = driver_.current_context(&now);
  if (code_ != code_success || now == context) return;
  code_ = driver_.push_context(context);
  is_pushed_ = code_ == code_success;
}

Current::Current(Current&& other) noexcept
    : driver_(other.driver_),
      code_(other.code_),
      is_pushed_(std::exchange(other.is_pushed_, false)) {}

Current::~Current() {
  if (Context ours = nullptr; is_pushed_) driver_.pop_context(&ours);
}

Result<Current> Device::enter() const {
  Current result(*state_->driver, state_->context);
  if (result.code() != code_success)
    return failure(*state_->driver, result.code(), "use the device's context");
  return result;
}

Result<Done> Device::allow_shared(Function function, std::uint32_t bytes) const {
  return in_context(*state_->driver, state_->context,
                    fmt::format("allow a kernel {} bytes of shared memory (the device has {})",
                                bytes, facts_.shared_bytes),
                    [&](const EntryPoints& calls) {
                      return calls.set_function_attribute(
                          function, FunctionAttribute::max_dynamic_shared_bytes,
                          static_cast<int>(bytes));
                    });
}

Result<Done> Device::launch(const Launch& launch, Stream stream) const {
  const auto inside = enter();
  if (!inside) return inside.why();
  return this->launch(launch, stream, *inside);
}

Result<Done> Device::launch(const Launch& launch, Stream stream, const Current& /*inside*/) const {
  std::array<LaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (launch.is_cooperative)
    attributes[count++] = {.id = LaunchAttributeId::cooperative, .value = 1};
  if (launch.has_pdl && family_ == Family::sm90)
    attributes[count++] = {.id = LaunchAttributeId::programmatic_stream_serialization, .value = 1};
  const LaunchConfig config{.grid = {launch.blocks, 1, 1},
                            .block = {launch.threads, 1, 1},
                            .shared_bytes = launch.shared_bytes,
                            .stream = stream,
                            .attributes = attributes.data(),
                            .num_attributes = count};
  std::array<const void*, 1> params{launch.params};
  const EntryPoints& driver = *state_->driver;
  const Code code = driver.launch(&config, launch.function, params.data(), nullptr);
  if (code == code_success) return Done{};
  return failure(driver, code,
                 fmt::format("launch a kernel with {} blocks of {} threads and {} bytes of shared "
                             "memory",
                             launch.blocks, launch.threads, launch.shared_bytes));
}

Result<Done> Device::upload(std::byte* to, std::span<const std::byte> from, Stream stream) const {
  if (from.empty()) return Done{};
  return in_context(*state_->driver, state_->context, "copy to the device",
                    [&](const EntryPoints& calls) {
                      return calls.copy_to_device(to, from.data(), from.size(), stream);
                    });
}

Result<Done> Device::download(std::span<std::byte> to, const std::byte* from, Stream stream) const {
  if (to.empty()) return Done{};
  return in_context(*state_->driver, state_->context, "copy from the device",
                    [&](const EntryPoints& calls) {
                      return calls.copy_to_host(to.data(), from, to.size(), stream);
                    });
}

Result<Done> Device::copy(std::byte* to, const std::byte* from, std::size_t bytes,
                          Stream stream) const {
  if (bytes == 0) return Done{};
  return in_context(
      *state_->driver, state_->context, "copy on the device",
      [&](const EntryPoints& calls) { return calls.copy_on_device(to, from, bytes, stream); });
}

Result<Done> Device::clear(std::byte* at, std::uint8_t value, std::size_t bytes,
                           Stream stream) const {
  if (bytes == 0) return Done{};
  return in_context(*state_->driver, state_->context, "fill memory of the device",
                    [&](const EntryPoints& calls) { return calls.fill(at, value, bytes, stream); });
}

Result<Done> Device::wait(Stream stream) const {
  return in_context(*state_->driver, state_->context, "finish the work of a stream",
                    [&](const EntryPoints& calls) { return calls.wait_for_stream(stream); });
}

Result<Stream> Device::make_stream() const {
  Stream stream = nullptr;
  const auto done = in_context(
      *state_->driver, state_->context, "make a stream",
      [&](const EntryPoints& calls) { return calls.make_stream(&stream, kStreamNonBlocking); });
  if (!done) return done.why();
  return stream;
}

void Device::drop_stream(Stream stream) const {
  if (stream == nullptr) return;
  in_context(*state_->driver, state_->context,
             [&](const EntryPoints& calls) { return calls.drop_stream(stream); });
}

// Does not disturb captures of other threads. Until the capture ends, this thread must not allocate
// or wait; no work that is captured does.
Result<Done> Device::begin_capture(Stream stream) const {
  return in_context(*state_->driver, state_->context, "begin the capture of a stream",
                    [&](const EntryPoints& calls) {
                      return calls.begin_capture(stream, CaptureMode::of_this_thread);
                    });
}

Result<void*> Device::end_capture(Stream stream) const {
  void* executable = nullptr;
  const auto done = in_context(*state_->driver, state_->context, "make a graph of a capture",
                               [&](const EntryPoints& calls) {
                                 void* graph = nullptr;
                                 Code code = calls.end_capture(stream, &graph);
                                 if (code == code_success)
                                   code = calls.instantiate(&executable, graph, 0);
                                 if (graph != nullptr) calls.drop_captured(graph);
                                 return code;
                               });
  if (!done) return done.why();
  return executable;
}

Result<Done> Device::replay(void* graph, Stream stream) const {
  return in_context(*state_->driver, state_->context, "replay a graph",
                    [&](const EntryPoints& calls) { return calls.launch_graph(graph, stream); });
}

void Device::drop_graph(void* graph) const {
  if (graph == nullptr) return;
  in_context(*state_->driver, state_->context,
             [&](const EntryPoints& calls) { return calls.drop_graph(graph); });
}

Result<void*> Device::make_event() const {
  void* event = nullptr;
  const auto done =
      in_context(*state_->driver, state_->context, "make an event",
                 [&](const EntryPoints& calls) { return calls.make_event(&event, 0); });
  if (!done) return done.why();
  return event;
}

Result<Done> Device::record(void* event, Stream stream) const {
  return in_context(*state_->driver, state_->context, "record an event",
                    [&](const EntryPoints& calls) { return calls.record(event, stream); });
}

Result<float> Device::microseconds(void* begin, void* end) const {
  float milliseconds = 0;
  const auto done =
      in_context(*state_->driver, state_->context, "read the time between two events",
                 [&](const EntryPoints& calls) {
                   const Code code = calls.wait_for_event(end);
                   return code == code_success ? calls.elapsed(&milliseconds, begin, end) : code;
                 });
  if (!done) return done.why();
  return milliseconds * kMicrosecondsPerMillisecond;
}

void Device::drop_event(void* event) const {
  if (event == nullptr) return;
  in_context(*state_->driver, state_->context,
             [&](const EntryPoints& calls) { return calls.drop_event(event); });
}

}  // namespace fp4moe::kernels::cuda
