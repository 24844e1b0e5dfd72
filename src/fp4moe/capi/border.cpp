#include "fp4moe/capi/border.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <variant>

#include <fmt/format.h>

#include "fp4moe/base/error_json.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/base/thrown.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/platform/settings.hpp"
#include "fp4moe/runtime/selection_request.hpp"

namespace fp4moe::capi {
namespace {

static_assert(FP4MOE_USAGE == static_cast<int>(ErrorCode::usage) &&
              FP4MOE_FAILED == static_cast<int>(ErrorCode::failed) &&
              FP4MOE_INVALID_INPUT == static_cast<int>(ErrorCode::invalid_input) &&
              FP4MOE_NO_BACKEND == static_cast<int>(ErrorCode::no_backend) &&
              FP4MOE_MISMATCH == static_cast<int>(ErrorCode::mismatch) &&
              FP4MOE_EXHAUSTED == static_cast<int>(ErrorCode::exhausted) &&
              FP4MOE_LACKING == static_cast<int>(ErrorCode::unavailable) &&
              FP4MOE_INTERRUPTED == static_cast<int>(ErrorCode::interrupted));
// Every field of every struct is a word, so that a size which is a multiple of it cuts none in two.
static_assert(sizeof(std::size_t) == 8 && sizeof(void*) == 8);

constexpr std::size_t kWord = 8, kLargestStruct = 4096;
constexpr std::uint64_t kMaxRanks = 1u << 16;

struct LastError {
  std::string line{}, id{}, json = "{}";
  bool is_exhausted = false;  // not even the words could be stored
};
LastError& last_error() {
  thread_local LastError words;
  return words;
}

using Object = std::variant<std::shared_ptr<const runtime::Model>, std::shared_ptr<OpenLayer>,
                            std::shared_ptr<const OpenAdapters>>;
constexpr std::string_view kKinds[] = {"model", "layer", "set of adapters"};

// State behind the C functions: open handles, and the host's sink for warnings.
struct Host {
  std::mutex mutex{};
  std::unordered_map<std::uintptr_t, Object> objects{};
  std::uintptr_t next = 1;
  fp4moe_log sink = nullptr;
  void* user = nullptr;
};
Host& host() {
  // Never torn down: threads may outlive main.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static Host& result = *new Host;
  return result;
}

// Odd, so that no address of an object of the caller's can be one.
constexpr std::uintptr_t kStep = 16, kMark = 9;

std::uintptr_t number_of(const void* handle) { return reinterpret_cast<std::uintptr_t>(handle); }

template <class Handle>
Handle* add_object(Object object) {
  Host& all = host();
  const std::lock_guard lock(all.mutex);
  const std::uintptr_t number = all.next * kStep + kMark;
  all.objects.emplace(number, std::move(object));
  ++all.next;
  return reinterpret_cast<Handle*>(number);  // NOLINT(performance-no-int-to-ptr): never followed
}

template <class T>
Result<T> find_object(const void* handle, std::string_view kind) {
  const std::string expected = fmt::format("the handle of an open {}", kind);
  if (handle == nullptr)
    return usage("handle.null", fmt::format("the {} is a null pointer", kind))
        .expects(expected, "null");
  Host& all = host();
  const std::lock_guard lock(all.mutex);
  const std::uintptr_t number = number_of(handle);
  const auto found = all.objects.find(number);
  if (found == all.objects.end()) {
    const bool was_open = number % kStep == kMark && number / kStep < all.next && number > kStep;
    return usage(was_open ? "handle.freed" : "handle.unknown",
                 fmt::format("this is not the handle of an open {}", kind))
        .expects(expected, was_open ? "one that was closed" : "a number that never was one");
  }
  if (T* object = std::get_if<T>(&found->second)) return *object;
  return usage("handle.kind", fmt::format("the handle is not that of a {}", kind))
      .expects(expected, fmt::format("that of a {}", kKinds[found->second.index()]));
}

void remove_object(const void* handle, std::size_t kind) noexcept {
  if (handle == nullptr) return;
  guarded([&]() -> Result<Done> {
    std::optional<Object> last;  // dies after the lock is given back
    Host& all = host();
    const std::lock_guard lock(all.mutex);
    const auto found = all.objects.find(number_of(handle));
    if (found == all.objects.end() || found->second.index() != kind) return Done{};
    last = std::move(found->second);
    all.objects.erase(found);
    return Done{};
  });
}

}  // namespace

fp4moe_status fail(const Error& why) noexcept {
  LastError& words = last_error();
  try {
    LastError result{text(why), why.id, to_json(why).dump()};
    words = std::move(result);
  } catch (...) {
    words.is_exhausted = true;
  }
  return static_cast<fp4moe_status>(why.code);
}

fp4moe_status fail_thrown() noexcept {
  const auto exhausted = []() noexcept {
    last_error().is_exhausted = true;
    return FP4MOE_EXHAUSTED;
  };
  try {
    const Error why = thrown_error();
    return why.id == "memory.exhausted" ? exhausted() : fail(why);
  } catch (...) {  // no memory for these words
    return exhausted();
  }
}

void log(fp4moe_log_level level, const std::string& message) {
  Host& all = host();
  std::unique_lock lock(all.mutex);
  const fp4moe_log sink = all.sink;
  void* const user = all.user;
  lock.unlock();  // the sink may call us
  if (sink != nullptr) sink(level, message.c_str(), user);
}

void log_all(fp4moe_log_level level, const std::vector<std::string>& messages) {
  for (const std::string& message : messages) log(level, message);
}

fp4moe_model* add(std::shared_ptr<const runtime::Model> model) {
  return add_object<fp4moe_model>(std::move(model));
}
fp4moe_layer* add(std::shared_ptr<OpenLayer> layer) {
  return add_object<fp4moe_layer>(std::move(layer));
}
fp4moe_adapters* add(std::shared_ptr<const OpenAdapters> adapters) {
  return add_object<fp4moe_adapters>(std::move(adapters));
}
Result<std::shared_ptr<const runtime::Model>> find(const fp4moe_model* handle) {
  return find_object<std::shared_ptr<const runtime::Model>>(handle, "model");
}
Result<std::shared_ptr<OpenLayer>> find(const fp4moe_layer* handle) {
  return find_object<std::shared_ptr<OpenLayer>>(handle, "layer");
}
Result<std::shared_ptr<const OpenAdapters>> find(const fp4moe_adapters* handle) {
  return find_object<std::shared_ptr<const OpenAdapters>>(handle, "set of adapters");
}

void close(const fp4moe_model* handle) noexcept { remove_object(handle, 0); }
void close(const fp4moe_layer* handle) noexcept { remove_object(handle, 1); }
void close(const fp4moe_adapters* handle) noexcept { remove_object(handle, 2); }

Error null_argument(std::string_view what) {
  return usage("argument.null", fmt::format("{} is missing", what)).expects("a pointer", "null");
}

Result<Done> give(const std::string& text, char** to) {
  char* const result = static_cast<char*>(std::malloc(text.size() + 1));
  if (result == nullptr) return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
  std::memcpy(result, text.c_str(), text.size() + 1);
  *to = result;
  return Done{};
}

Result<Done> give(const Json& json, char** to) { return give(json.dump(2), to); }

Result<std::string> require_text(const char* text, std::string_view what) {
  if (text == nullptr) return null_argument(what);
  if (*text == '\0')
    return usage("argument.empty", fmt::format("{} is empty", what)).expects("a text", "''");
  return std::string(text);
}

Result<Done> copy_struct(const void* given, std::string_view what, std::span<std::byte> to) {
  const auto* bytes = static_cast<const std::byte*>(given);
  std::size_t size = 0;
  std::memcpy(&size, bytes, sizeof size);
  if (size < kWord || size > kLargestStruct || size % kWord != 0)
    return usage("struct.size", fmt::format("{} does not begin with its size", what))
        .expects(fmt::format("sizeof, {} in this version", to.size()), fmt::format("{}", size));
  std::memcpy(to.data(), bytes, std::min(size, to.size()));
  for (std::size_t at = to.size(); at < size; ++at)
    if (bytes[at] != std::byte{0})
      return usage("struct.tail", fmt::format("{} has unknown fields", what))
          .expects(fmt::format("zeros after byte {}", to.size()),
                   fmt::format("{} at byte {}", std::to_integer<int>(bytes[at]), at))
          .try_this(fmt::format("fp4moe {} is older than the program's header", kVersion));
  return Done{};
}

Error too_many(std::string_view what, std::uint64_t count, std::uint64_t max) {
  return usage("struct.count", fmt::format("too many structs {}", what))
      .expects(fmt::format("at most {}", max), fmt::format("{}", count));
}
Error uneven(std::string_view what, std::size_t first, std::size_t other) {
  return usage("struct.size", fmt::format("structs {} in one list have different sizes", what))
      .expects(fmt::format("{} bytes each", first), fmt::format("{}", other));
}

Result<std::size_t> threads_of(std::uint64_t backend_request) {
  if (backend_request > platform::kMaxThreads)
    return usage("options.threads", "invalid number of threads")
        .expects(fmt::format("0 to {}", platform::kMaxThreads), fmt::format("{}", backend_request));
  const Result<platform::Settings> settings = platform::read_settings();
  if (!settings) return settings.why();
  return platform::choose_threads(
      backend_request == 0 ? std::nullopt
                           : std::optional<std::size_t>(static_cast<std::size_t>(backend_request)),
      *settings);
}

Result<checkpoint::Rank> rank_of(std::uint64_t rank, std::uint64_t size, std::string_view what) {
  const std::uint64_t ranks = size == 0 ? 1 : size;
  if (rank >= ranks || ranks > kMaxRanks)
    return usage("options.rank", fmt::format("there is no such {} rank", what))
        .expects(fmt::format("a rank below a size of 1 to {}", kMaxRanks),
                 fmt::format("rank {} of {}", rank, size));
  return checkpoint::Rank{rank, ranks};
}

Result<platform::Device> device_of(const char* name) {
  return runtime::resolve_device({.device = text_or(name, "auto")});
}

Result<runtime::LayerOptions> layer_options(const fp4moe_layer_options& given) {
  runtime::LayerOptions result;
  const auto read = runtime::read_words({.engine = text_or(given.engine, ""),
                                         .weights = text_or(given.weights, ""),
                                         .numerics = text_or(given.numerics, "")},
                                        result);
  if (!read) return read.why();
  result.backend_request.policy = text_or(given.policy, "native");
  result.backend_request.backend = text_or(given.backend, "auto");
  Result<platform::Device> device = device_of(given.device);
  if (!device) return device.why();
  result.backend_request.device = *std::move(device);
  const Result<std::size_t> threads = threads_of(given.threads);
  if (!threads) return threads.why();
  result.threads = *threads;
  const Result<checkpoint::Rank> tp = rank_of(given.tp_rank, given.tp_size, "tensor-parallel");
  if (!tp) return tp.why();
  const Result<checkpoint::Rank> ep = rank_of(given.ep_rank, given.ep_size, "expert-parallel");
  if (!ep) return ep.why();
  result.slice = {.tensor_parallel = *tp, .expert_parallel = *ep};
  return result;
}

}  // namespace fp4moe::capi

using fp4moe::capi::host;
using fp4moe::capi::last_error;

namespace {

constexpr const char* kOutOfMemory = "memory.exhausted: out of memory";

struct StatusName {
  std::int32_t status;
  const char* name;
};
constexpr StatusName kStatusNames[] = {
    {FP4MOE_OK, "ok"},
    {FP4MOE_FAILED, "failed"},
    {FP4MOE_USAGE, "usage"},
    {FP4MOE_INVALID_INPUT, "invalid_input"},
    {FP4MOE_NO_BACKEND, "no_backend"},
    {FP4MOE_MISMATCH, "mismatch"},
    {FP4MOE_EXHAUSTED, "exhausted"},
    {FP4MOE_LACKING, "lacking"},
    {FP4MOE_INTERRUPTED, "interrupted"},
};

}  // namespace

extern "C" {

const char* fp4moe_version(void) { return fp4moe::kVersion.data(); }
uint32_t fp4moe_api_version(void) { return FP4MOE_API_VERSION; }

const char* fp4moe_status_name(int32_t status) {
  for (const StatusName& row : kStatusNames)
    if (row.status == status) return row.name;
  return "unknown";
}

const char* fp4moe_last_error(void) {
  const auto& words = last_error();
  return words.is_exhausted ? kOutOfMemory : words.line.c_str();
}
const char* fp4moe_last_error_id(void) {
  const auto& words = last_error();
  return words.is_exhausted ? "memory.exhausted" : words.id.c_str();
}
const char* fp4moe_last_error_json(void) {
  const auto& words = last_error();
  return words.is_exhausted ? R"({"code":6,"id":"memory.exhausted","message":"out of memory"})"
                            : words.json.c_str();
}

void fp4moe_free_string(char* string) { std::free(string); }

void fp4moe_set_log(fp4moe_log sink, void* user) {
  fp4moe::capi::guarded([&]() -> fp4moe::Result<fp4moe::Done> {
    auto& all = host();
    const std::lock_guard lock(all.mutex);
    all.sink = sink;
    all.user = user;
    return fp4moe::Done{};
  });
}

}  // extern "C"
