#include "fake_driver.hpp"

#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "fp4moe/kernels/cuda/entry_points.hpp"

namespace fp4moe::kernels::cuda {
namespace {

FakeDriver& driver() {
  static FakeDriver only;
  return only;
}

std::mutex& mutex() {
  static std::mutex only;
  return only;
}

// The contexts of this thread, the current one last.
std::vector<Context>& stack() {
  thread_local std::vector<Context> contexts;
  return contexts;
}

// Runs `act` unless this function is to fail; most need a context.
template <class Act>
Code answer(const char* name, const Act& act, bool needs_context = true) {
  const std::lock_guard lock(mutex());
  ++driver().calls[name];
  const auto failing = driver().failing.find(name);
  if (failing != driver().failing.end()) return failing->second;
  if (needs_context && stack().empty()) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  act(driver());
  return code_success;
}

// Everything given out: what a test makes us keep is no leak.
std::map<void*, std::vector<std::byte>>& blocks() {
  static std::map<void*, std::vector<std::byte>> all;
  return all;
}
void* give(std::size_t bytes) {
  std::vector<std::byte> block(bytes);
  void* const address = block.data();
  blocks().emplace(address, std::move(block));
  return address;
}

Code make(const char* name, void** handle, int& count) {
  return answer(name, [&](FakeDriver&) {
    *handle = give(1);
    ++count;
  });
}
Code drop(const char* name, void* handle, int& count) {
  return answer(name, [&](FakeDriver&) {
    blocks().erase(handle);
    --count;
  });
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the driver's names
extern "C" {

FakeDriver* fake_driver() { return &driver(); }

Code cuInit(unsigned) {
  return answer(
      "cuInit", [](FakeDriver&) {}, false);
}
Code cuDriverGetVersion(int* version) {
  return answer(
      "cuDriverGetVersion", [&](FakeDriver& fake) { *version = fake.version; }, false);
}
Code cuGetErrorName(Code code, const char** name) {
  *name = code == code_out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return code == 1999 ? 1 : code_success;
}
Code cuGetErrorString(Code code, const char** words) {
  *words = code == code_out_of_memory ? "out of memory" : "as the test wants it";
  return code == 1999 ? 1 : code_success;
}
Code cuDeviceGetCount(int* count) {
  return answer(
      "cuDeviceGetCount", [&](FakeDriver& fake) { *count = fake.devices; }, false);
}
Code cuDeviceGet(int* device, int ordinal) {
  return answer(
      "cuDeviceGet", [&](FakeDriver&) { *device = ordinal + kFirstHandle; }, false);
}
Code cuDeviceGetName(char* name, int size, int device) {
  const auto write = [&](FakeDriver&) {
    std::strncpy(name, device == kFirstHandle ? "Fake H200" : "Fake H100",
                 static_cast<std::size_t>(size));
  };
  return answer("cuDeviceGetName", write, false);
}
Code cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  return answer(
      "cuDeviceTotalMem", [&](FakeDriver& fake) { *bytes = fake.memory_bytes; }, false);
}
Code cuDeviceGetAttribute(int* value, DeviceAttribute attribute, int) {
  const auto write = [&](const FakeDriver& fake) {
    *value = attribute == DeviceAttribute::major                 ? fake.major
             : attribute == DeviceAttribute::minor               ? fake.minor
             : attribute == DeviceAttribute::shared_bytes_opt_in ? fake.shared_bytes
             : attribute == DeviceAttribute::multiprocessors     ? fake.multiprocessors
                                                             : 100 + static_cast<int>(attribute);
  };
  return answer("cuDeviceGetAttribute", write, false);
}

Code cuDevicePrimaryCtxRetain(Context* context, int device) {
  const auto retain = [&](FakeDriver& fake) {
    *context = fake.context_of[static_cast<std::size_t>(device - kFirstHandle)].data();
    ++fake.contexts;
  };
  return answer("cuDevicePrimaryCtxRetain", retain, false);
}
Code cuDevicePrimaryCtxRelease_v2(int) {
  return answer(
      "cuDevicePrimaryCtxRelease", [](FakeDriver& fake) { --fake.contexts; }, false);
}
Code cuCtxGetCurrent(Context* context) {
  const auto read = [&](FakeDriver&) { *context = stack().empty() ? nullptr : stack().back(); };
  return answer("cuCtxGetCurrent", read, false);
}
Code cuCtxPushCurrent_v2(Context context) {
  const auto push = [&](FakeDriver& fake) {
    stack().push_back(context);
    ++fake.pushed;
  };
  return answer("cuCtxPushCurrent", push, false);
}
Code cuCtxPopCurrent_v2(Context* context) {
  return answer("cuCtxPopCurrent", [&](FakeDriver& fake) {
    *context = stack().back();
    stack().pop_back();
    ++fake.popped;
  });
}

Code cuModuleLoadData(Module* module, const void* image) {
  const auto* const code = static_cast<const char*>(image);
  if (!std::string_view(code).starts_with(kFakeCode)) return 200;  // CUDA_ERROR_INVALID_IMAGE
  return answer("cuModuleLoadData", [&](FakeDriver& fake) {
    const std::size_t size = std::strlen(code + sizeof kFakeCode - 1) + 1;
    *module = give(size);
    std::memcpy(*module, code + sizeof kFakeCode - 1, size);
    ++fake.modules;
  });
}
Code cuModuleUnload(Module module) { return drop("cuModuleUnload", module, driver().modules); }
Code cuModuleGetFunction(void** function, Module module, const char* name) {
  const bool is_there = std::strcmp(static_cast<const char*>(module), name) == 0;
  const Code code = answer("cuModuleGetFunction", [&](FakeDriver& fake) {
    *function = is_there ? module : nullptr;
    fake.unknown_kernels += is_there ? 0 : 1;
  });
  return code == code_success && !is_there ? static_cast<Code>(code_not_found) : code;
}
Code cuFuncLoad(void*) {
  return answer("cuFuncLoad", [](FakeDriver&) {});
}
Code cuFuncSetAttribute(void*, FunctionAttribute, int) {
  return answer("cuFuncSetAttribute", [](FakeDriver&) {});
}
Code cuLaunchKernelEx(const LaunchConfig* config, void* function, const void** params, void**) {
  return answer("cuLaunchKernelEx", [&](FakeDriver& fake) {
    FakeLaunch launch{.kernel = static_cast<const char*>(function),
                      .blocks = config->grid[0],
                      .threads = config->block[0],
                      .shared_bytes = config->shared_bytes};
    for (unsigned i = 0; i < config->num_attributes; ++i) {
      const LaunchAttribute& attribute = config->attributes[i];
      (attribute.id == LaunchAttributeId::cooperative ? launch.is_cooperative : launch.has_pdl) =
          attribute.value == 1;
    }
    std::memcpy(&launch.first_param, params[0], sizeof launch.first_param);
    fake.launches.push_back(launch);
    if (fake.run != nullptr) fake.run(launch, params[0]);
  });
}

Code cuMemAlloc_v2(Address* address, std::size_t bytes) {
  {
    const std::lock_guard lock(mutex());
    if (bytes > driver().memory_bytes - driver().used_bytes) return code_out_of_memory;
  }
  return answer("cuMemAlloc", [&](FakeDriver& fake) {
    *address = static_cast<Address>(give(bytes));
    std::memset(*address, 0xA5, bytes);  // a device's memory holds anything
    ++fake.allocations;
    fake.used_bytes += bytes;
  });
}
Code cuMemFree_v2(Address address) {
  return answer("cuMemFree", [&](FakeDriver& fake) {
    fake.used_bytes -= blocks().at(address).size();
    --fake.allocations;
    blocks().erase(address);
  });
}
Code cuMemGetInfo_v2(std::size_t* left, std::size_t* total) {
  return answer("cuMemGetInfo", [&](FakeDriver& fake) {
    *left = fake.memory_bytes - fake.used_bytes;
    *total = fake.memory_bytes;
  });
}
Code cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  return answer("cuMemHostAlloc", [&](FakeDriver& fake) {
    *address = give(bytes);
    ++fake.pinned;
  });
}
Code cuMemFreeHost(void* address) { return drop("cuMemFreeHost", address, driver().pinned); }
Code cuPointerGetAttributes(unsigned, const PointerAttribute*, void** values, const void* at) {
  return answer("cuPointerGetAttributes", [&](FakeDriver& fake) {
    const auto told = fake.pointers.find(at);
    const bool is_ours = blocks().contains(static_cast<Address>(const_cast<void*>(at)));
    const FakePointer other{.type = is_ours ? 2u : 0u, .ordinal = is_ours ? 0 : -1};
    const FakePointer pointer = told == fake.pointers.end() ? other : told->second;
    *static_cast<unsigned*>(values[0]) = pointer.type;
    *static_cast<unsigned*>(values[1]) = pointer.is_managed ? 1 : 0;
    *static_cast<int*>(values[2]) = pointer.ordinal;
  });
}

Code cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, void*) {
  return answer("cuMemcpyHtoDAsync", [&](FakeDriver&) { std::memcpy(to, from, bytes); });
}
Code cuMemcpyDtoHAsync_v2(void* to, const std::byte* from, std::size_t bytes, void*) {
  return answer("cuMemcpyDtoHAsync", [&](FakeDriver&) { std::memcpy(to, from, bytes); });
}
Code cuMemcpyDtoDAsync_v2(Address to, const std::byte* from, std::size_t bytes, void*) {
  return answer("cuMemcpyDtoDAsync", [&](FakeDriver&) { std::memcpy(to, from, bytes); });
}
Code cuMemsetD8Async(Address at, unsigned char value, std::size_t bytes, void*) {
  return answer("cuMemsetD8Async", [&](FakeDriver&) { std::memset(at, value, bytes); });
}

Code cuStreamCreate(void** stream, unsigned) {
  return make("cuStreamCreate", stream, driver().streams);
}
Code cuStreamDestroy_v2(void* stream) { return drop("cuStreamDestroy", stream, driver().streams); }
Code cuStreamSynchronize(void*) {
  return answer("cuStreamSynchronize", [](FakeDriver&) {});
}
Code cuStreamBeginCapture_v2(void*, CaptureMode) {
  return answer("cuStreamBeginCapture", [](FakeDriver&) {});
}
Code cuStreamEndCapture(void*, void** graph) {
  return make("cuStreamEndCapture", graph, driver().graphs);
}
Code cuGraphInstantiateWithFlags(void** executable, void*, unsigned long long) {
  return make("cuGraphInstantiate", executable, driver().graphs);
}
Code cuGraphDestroy(void* graph) { return drop("cuGraphDestroy", graph, driver().graphs); }
Code cuGraphLaunch(void*, void*) {
  return answer("cuGraphLaunch", [](FakeDriver&) {});
}
Code cuGraphExecDestroy(void* graph) { return drop("cuGraphExecDestroy", graph, driver().graphs); }

Code cuEventCreate(void** event, unsigned) { return make("cuEventCreate", event, driver().events); }
Code cuEventRecord(void*, void*) {
  return answer("cuEventRecord", [](FakeDriver&) {});
}
Code cuEventSynchronize(void*) {
  return answer("cuEventSynchronize", [](FakeDriver&) {});
}
Code cuEventElapsedTime(float* milliseconds, void*, void*) {
  return answer("cuEventElapsedTime", [&](FakeDriver&) { *milliseconds = 1.5f; });
}
Code cuEventDestroy_v2(void* event) { return drop("cuEventDestroy", event, driver().events); }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)

}  // namespace fp4moe::kernels::cuda
