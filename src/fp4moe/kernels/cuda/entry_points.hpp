// The functions of the CUDA driver that we call, looked up by name in its library. Their types are
// written here with plain numbers and pointers: a build needs no header of the toolkit.
// entry_points_test.cpp compares them with the toolkit's where there is one.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"

namespace fp4moe::kernels::cuda {

using Code = int;            // CUresult
using Address = std::byte*;  // CUdeviceptr, a number passed like a pointer
using Context = void*;
using Module = void*;

enum : Code {
  code_success = 0,
  code_out_of_memory = 2,
  code_no_device = 100,
  code_not_found = 500,
};

// CUdevice_attribute
enum class DeviceAttribute : int {
  clock_rate = 13,
  multiprocessors = 16,
  pci_bus = 33,
  pci_device = 34,
  l2_bytes = 38,
  pci_domain = 50,
  major = 75,
  minor = 76,
  cooperative_launch = 95,
  shared_bytes_opt_in = 97,
};

enum class PointerAttribute : int { memory_type = 2, is_managed = 8, device_ordinal = 9 };
enum class MemoryType : unsigned { unknown = 0, host = 1, device = 2 };
enum class FunctionAttribute : int { max_dynamic_shared_bytes = 8 };
enum class CaptureMode : int { of_this_thread = 1 };
enum class LaunchAttributeId : int { cooperative = 2, programmatic_stream_serialization = 6 };

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kPinnedPortable = 1;

// CUlaunchAttribute: both of ours are one int that is 1.
struct LaunchAttribute {
  LaunchAttributeId id{};
  std::array<char, 4> pad{};
  int value = 0;
  std::array<char, 60> rest{};
};

// CUlaunchConfig
struct LaunchConfig {
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared_bytes = 0;
  void* stream = nullptr;
  const LaunchAttribute* attributes = nullptr;
  unsigned num_attributes = 0;
};

struct EntryPoints {
  Code (*init)(unsigned flags);
  Code (*driver_version)(int* version);
  Code (*error_name)(Code code, const char** name);
  Code (*error_string)(Code code, const char** words);

  Code (*device_count)(int* count);
  Code (*device)(int* device, int ordinal);
  Code (*device_name)(char* name, int size, int device);
  Code (*device_memory)(std::size_t* bytes, int device);
  Code (*device_attribute)(int* value, DeviceAttribute attribute, int device);

  Code (*retain_context)(Context* context, int device);
  Code (*release_context)(int device);
  Code (*current_context)(Context* context);
  Code (*push_context)(Context context);
  Code (*pop_context)(Context* context);

  Code (*load_module)(Module* module, const void* image);
  Code (*unload_module)(Module module);
  Code (*module_function)(void** function, Module module, const char* name);
  Code (*load_function)(void* function);  // null: older than CUDA 12.4
  Code (*set_function_attribute)(void* function, FunctionAttribute attribute, int value);
  Code (*launch)(const LaunchConfig* config, void* function, const void** params, void** extra);

  Code (*allocate)(Address* address, std::size_t bytes);
  Code (*free)(Address address);
  Code (*memory_info)(std::size_t* free, std::size_t* total);
  Code (*allocate_host)(void** address, std::size_t bytes, unsigned flags);
  Code (*free_host)(void* address);
  Code (*pointer_attributes)(unsigned count, const PointerAttribute* attributes, void** values,
                             const void* address);

  Code (*copy_to_device)(Address to, const void* from, std::size_t bytes, void* stream);
  Code (*copy_to_host)(void* to, const std::byte* from, std::size_t bytes, void* stream);
  Code (*copy_on_device)(Address to, const std::byte* from, std::size_t bytes, void* stream);
  Code (*fill)(Address at, unsigned char value, std::size_t bytes, void* stream);

  Code (*make_stream)(void** stream, unsigned flags);
  Code (*drop_stream)(void* stream);
  Code (*wait_for_stream)(void* stream);
  Code (*begin_capture)(void* stream, CaptureMode mode);
  Code (*end_capture)(void* stream, void** graph);
  Code (*instantiate)(void** executable, void* graph, unsigned long long flags);
  Code (*drop_captured)(void* graph);
  Code (*launch_graph)(void* executable, void* stream);
  Code (*drop_graph)(void* executable);

  Code (*make_event)(void** event, unsigned flags);
  Code (*record)(void* event, void* stream);
  Code (*wait_for_event)(void* event);
  Code (*elapsed)(float* milliseconds, void* begin, void* end);
  Code (*drop_event)(void* event);
};

// Opens the driver and finds all functions; initializes nothing. Errors: cuda.driver.
Result<std::shared_ptr<const EntryPoints>> load_entry_points(const std::string& library);

// The failure of a driver call, in the driver's words: cuda.memory if no memory is left, else
// cuda.failed. `doing` follows "cannot" in the sentence.
Error failure(const EntryPoints& driver, Code code, std::string_view doing);
// "CUDA_ERROR_INVALID_VALUE (1): invalid argument"
std::string words_of(const EntryPoints& driver, Code code);

}  // namespace fp4moe::kernels::cuda
