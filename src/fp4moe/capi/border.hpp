// The border between C and the library: errors and exceptions become a status and this thread's
// words, handles become objects, structs of any age become today's.
//
// A handle is a number that looks like a pointer and is never followed or used twice, so a handle
// that was closed, or never was one, is an error and not a crash. An object lives until the last
// call on it returns, whoever closes it meanwhile.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/fp4moe.h"
#include "fp4moe/moe/cuda/device_session.hpp"
#include "fp4moe/moe/lora_load.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/runtime/run.hpp"

namespace fp4moe::capi {

// Remembers why, for this thread.
fp4moe_status fail(const Error& why) noexcept;
// The exception that is being handled, as an error.
fp4moe_status fail_thrown() noexcept;

template <class Work>
fp4moe_status guarded(const Work& work) noexcept {
  try {
    const Result<Done> done = work();
    return done ? FP4MOE_OK : fail(done.why());
  } catch (...) {
    return fail_thrown();
  }
}

void log(fp4moe_log_level level, const std::string& message);
void log_all(fp4moe_log_level level, const std::vector<std::string>& messages);

// A layer and what it reads.
struct OpenLayer {
  explicit OpenLayer(runtime::MoeLayer result, std::shared_ptr<const runtime::Model> source = {},
                     std::size_t which = 0)
      : model(std::move(source)), number(which), layer(std::move(result)) {}

  std::shared_ptr<const runtime::Model> model;  // null: from weights in memory
  std::size_t number;                           // in the model
  runtime::MoeLayer layer;
  std::optional<moe::cuda::DeviceSession> session{};  // from the first call on a device
  std::mutex mutex{};                                 // one call at a time
};

// Adapters, and the layer whose experts they were cut for.
struct OpenAdapters {
  std::weak_ptr<const OpenLayer> layer{};
  moe::LoraSet set{};
};

fp4moe_model* add(std::shared_ptr<const runtime::Model> model);
fp4moe_layer* add(std::shared_ptr<OpenLayer> layer);
fp4moe_adapters* add(std::shared_ptr<const OpenAdapters> adapters);
// Errors: handle.null, handle.freed, handle.kind (a layer where a model belongs), handle.unknown.
Result<std::shared_ptr<const runtime::Model>> find(const fp4moe_model* handle);
Result<std::shared_ptr<OpenLayer>> find(const fp4moe_layer* handle);
Result<std::shared_ptr<const OpenAdapters>> find(const fp4moe_adapters* handle);
// Releases the handle. An invalid handle is ignored.
void close(const fp4moe_model* handle) noexcept;
void close(const fp4moe_layer* handle) noexcept;
void close(const fp4moe_adapters* handle) noexcept;

// One call on an open layer at a time.
template <class Work>
fp4moe_status on_layer(const fp4moe_layer* handle, const Work& work) noexcept {
  return guarded([&]() -> Result<Done> {
    const auto found = find(handle);
    if (!found) return found.why();
    const std::lock_guard lock((*found)->mutex);
    return work(**found);
  });
}

Error null_argument(std::string_view what);
// Null where a string or a handle is going to be. Errors: argument.null.
template <class T>
Result<Done> clear(T** to, std::string_view what) {
  if (to == nullptr) return null_argument(what);
  *to = nullptr;
  return Done{};
}

// A string of the caller's own. Errors: memory.exhausted.
Result<Done> give(const std::string& text, char** to);
Result<Done> give(const Json& json, char** to);

// A path or word that must be there. Errors: argument.null, argument.empty.
Result<std::string> require_text(const char* text, std::string_view what);
inline std::string text_or(const char* text, std::string_view otherwise) {
  return std::string(text == nullptr ? otherwise : std::string_view(text));
}

// The bytes of a struct that begins with its size, as far as both sides know it. Errors:
// struct.size, struct.tail (a caller who is newer than the library asks for something).
Result<Done> copy_struct(const void* given, std::string_view what, std::span<std::byte> to);
Error too_many(std::string_view what, std::uint64_t count, std::uint64_t max);
Error uneven(std::string_view what, std::size_t first, std::size_t other);

// Null: the defaults.
template <class T>
Result<T> take_options(const T* given, std::string_view what) {
  T result{};
  if (given == nullptr) return result;
  const auto copied = copy_struct(given, what, std::as_writable_bytes(std::span(&result, 1)));
  if (!copied) return copied.why();
  return result;
}
template <class T>
Result<T> take_struct(const T* given, std::string_view what) {
  if (given == nullptr) return null_argument(what);
  return take_options(given, what);
}

// `count` structs, as far apart as the first one says it is long. Errors: also struct.count,
// argument.null.
template <class T>
Result<std::vector<T>> take_structs(const T* given, std::uint64_t count, std::uint64_t max,
                                    std::string_view what) {
  std::vector<T> result;
  if (count == 0) return result;
  if (given == nullptr) return null_argument(what);
  if (count > max) return too_many(what, count, max);
  result.reserve(count);
  const std::size_t step = given->size;
  const auto* place = reinterpret_cast<const std::byte*>(given);
  for (std::uint64_t i = 0; i < count; ++i, place += step) {
    Result<T> one = take_struct(reinterpret_cast<const T*>(place), what);
    if (!one) return one.why();
    if (one->size != step) return uneven(what, step, one->size);
    result.push_back(*std::move(one));
  }
  return result;
}

// Options that a conversion and a layer share. Errors: options.threads, options.rank, device.*.
Result<std::size_t> threads_of(std::uint64_t backend_request);
Result<checkpoint::Rank> rank_of(std::uint64_t rank, std::uint64_t size, std::string_view what);
Result<platform::Device> device_of(const char* name);
Result<runtime::LayerOptions> layer_options(const fp4moe_layer_options& given);

}  // namespace fp4moe::capi
