#include "fp4moe/kernels/cuda/entry_points.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/platform/open_library.hpp"

namespace fp4moe::kernels::cuda {
namespace {

// Looks names up and keeps the first that is missing.
class Finder {
 public:
  explicit Finder(void* library) : library_(library) {}

  template <class Pointer>
  void operator()(Pointer& into, const char* name) {
    optional(into, name);
    if (into == nullptr && missing_.empty()) missing_ = name;
  }
  template <class Pointer>
  void optional(Pointer& into, const char* name) {
    into = reinterpret_cast<Pointer>(platform::find_symbol(library_, name));
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_{};
};

void find_device(Finder& find, EntryPoints& to) {
  find(to.init, "cuInit");
  find(to.driver_version, "cuDriverGetVersion");
  find(to.error_name, "cuGetErrorName");
  find(to.error_string, "cuGetErrorString");
  find(to.device_count, "cuDeviceGetCount");
  find(to.device, "cuDeviceGet");
  find(to.device_name, "cuDeviceGetName");
  find(to.device_memory, "cuDeviceTotalMem_v2");
  find(to.device_attribute, "cuDeviceGetAttribute");
  find(to.retain_context, "cuDevicePrimaryCtxRetain");
  find(to.release_context, "cuDevicePrimaryCtxRelease_v2");
  find(to.current_context, "cuCtxGetCurrent");
  find(to.push_context, "cuCtxPushCurrent_v2");
  find(to.pop_context, "cuCtxPopCurrent_v2");
  find(to.load_module, "cuModuleLoadData");
  find(to.unload_module, "cuModuleUnload");
  find(to.module_function, "cuModuleGetFunction");
  find.optional(to.load_function, "cuFuncLoad");
  find(to.set_function_attribute, "cuFuncSetAttribute");
}

void find_work(Finder& find, EntryPoints& to) {
  find(to.launch, "cuLaunchKernelEx");
  find(to.allocate, "cuMemAlloc_v2");
  find(to.free, "cuMemFree_v2");
  find(to.memory_info, "cuMemGetInfo_v2");
  find(to.allocate_host, "cuMemHostAlloc");
  find(to.free_host, "cuMemFreeHost");
  find(to.pointer_attributes, "cuPointerGetAttributes");
  find(to.copy_to_device, "cuMemcpyHtoDAsync_v2");
  find(to.copy_to_host, "cuMemcpyDtoHAsync_v2");
  find(to.copy_on_device, "cuMemcpyDtoDAsync_v2");
  find(to.fill, "cuMemsetD8Async");
  find(to.make_stream, "cuStreamCreate");
  find(to.drop_stream, "cuStreamDestroy_v2");
  find(to.wait_for_stream, "cuStreamSynchronize");
  find(to.begin_capture, "cuStreamBeginCapture_v2");
  find(to.end_capture, "cuStreamEndCapture");
  find(to.instantiate, "cuGraphInstantiateWithFlags");
  find(to.drop_captured, "cuGraphDestroy");
  find(to.launch_graph, "cuGraphLaunch");
  find(to.drop_graph, "cuGraphExecDestroy");
  find(to.make_event, "cuEventCreate");
  find(to.record, "cuEventRecord");
  find(to.wait_for_event, "cuEventSynchronize");
  find(to.elapsed, "cuEventElapsedTime");
  find(to.drop_event, "cuEventDestroy_v2");
}

struct Advice {
  Code code;
  std::string_view remedy;
};

constexpr std::string_view kContextIsLost =
    "nothing works on this device any more until the process ends; compute-sanitizer names the "
    "kernel and the line";

// clang-format off
constexpr Advice kAdvice[] = {
    {1,   "a size, an address or a handle is not one of this device's"},
    {209, "the kernels are machine code for compute capability 9.0 only"},
    {700, kContextIsLost}, {702, kContextIsLost}, {709, kContextIsLost}, {710, kContextIsLost},
    {714, kContextIsLost}, {715, kContextIsLost}, {716, kContextIsLost}, {717, kContextIsLost},
    {718, kContextIsLost}, {719, kContextIsLost},
    {720, "launch at most as many blocks as fit on the device at once"},
    {900, "end the capture of the stream first"},
    {901, "the capture was spoilt by an earlier call; begin it again"},
};
// clang-format on

}  // namespace

Result<std::shared_ptr<const EntryPoints>> load_entry_points(const std::string& library) {
  const auto [opened, why, remedy] = platform::open_library(library);
  if (!platform::opens_libraries())
    return error(ErrorCode::unavailable, "cuda.driver", why).try_this(remedy);
  if (opened == nullptr)
    return error(ErrorCode::unavailable, "cuda.driver", fmt::format("{} cannot be opened", library))
        .expects("the NVIDIA driver's library", why)
        .try_this("install the NVIDIA driver; in a container, pass the GPU in");
  auto found = std::make_shared<EntryPoints>();
  Finder find(opened);
  find_device(find, *found);
  find_work(find, *found);
  if (!find.missing().empty())
    return error(ErrorCode::unavailable, "cuda.driver",
                 fmt::format("{} is not a driver that can run these kernels", library))
        .expects(find.missing(), "a library without it")
        .try_this("update the NVIDIA driver to one for CUDA 12 or newer");
  return std::shared_ptr<const EntryPoints>(std::move(found));
}

std::string words_of(const EntryPoints& driver, Code code) {
  const char* name = nullptr;
  const char* words = nullptr;
  if (driver.error_name(code, &name) != code_success || name == nullptr) name = "CUresult";
  if (driver.error_string(code, &words) != code_success || words == nullptr)
    words = "no explanation";
  return fmt::format("{} ({}): {}", name, code, words);
}

Error failure(const EntryPoints& driver, Code code, std::string_view doing) {
  const bool is_memory = code == code_out_of_memory;
  Error why = error(is_memory ? ErrorCode::exhausted : ErrorCode::failed,
                    is_memory ? "cuda.memory" : "cuda.failed",
                    fmt::format("cannot {}: {}", doing, words_of(driver, code)));
  const auto* const advice = std::ranges::find(kAdvice, code, &Advice::code);
  if (advice != std::end(kAdvice)) why.remedy = advice->remedy;
  return why;
}

}  // namespace fp4moe::kernels::cuda
