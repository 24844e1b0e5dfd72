// A libcuda.so.1 for machines without one: memory is the host's, kernels do nothing (or what a test
// says, see emulator/), and tests say what fails. Host code that opens devices, loads kernels and
// enqueues work is tested with it.
#pragma once
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <dlfcn.h>

namespace fp4moe::kernels::cuda {

// What the engine launches, then what benchmarks do.
inline constexpr std::string_view kKernels[] = {"prepare",
                                                "gather",
                                                "activate",
                                                "combine_f32",
                                                "combine_bf16",
                                                "pack",
                                                "row_scales",
                                                "gather_fp8",
                                                "quantize_hidden",
                                                "grouped_gemm_fp8_token_n64",
                                                "grouped_gemm_fp8_token_n160",
                                                "grouped_gemm_fp8_block_n160",
                                                "grouped_gemm_n32_mxfp4",
                                                "grouped_gemm_n64_mxfp4",
                                                "grouped_gemm_n88_mxfp4",
                                                "grouped_gemm_n128_mxfp4",
                                                "grouped_gemm_n192_mxfp4",
                                                "decode_generic_mxfp4",
                                                "decode_bf16_mxfp4",
                                                "decode_quantized_mxfp4",
                                                "grouped_gemm_n32_nvfp4",
                                                "grouped_gemm_n64_nvfp4",
                                                "grouped_gemm_n88_nvfp4",
                                                "grouped_gemm_n128_nvfp4",
                                                "grouped_gemm_n192_nvfp4",
                                                "decode_generic_nvfp4",
                                                "decode_bf16_nvfp4",
                                                "decode_quantized_nvfp4",
                                                "read",
                                                "rate"};
// Those of the family sm80.
inline constexpr std::string_view kSm80Kernels[] = {"prepare",
                                                    "gather",
                                                    "route_gather",
                                                    "activate",
                                                    "combine_f32",
                                                    "combine_bf16",
                                                    "pack",
                                                    "grouped_gemm_n32_mxfp4",
                                                    "grouped_gemm_n64_mxfp4",
                                                    "grouped_gemm_n128_mxfp4",
                                                    "grouped_gemm_n32_nvfp4",
                                                    "grouped_gemm_n64_nvfp4",
                                                    "grouped_gemm_n128_nvfp4",
                                                    "read",
                                                    "rate"};

struct FakeLaunch {
  std::string kernel{};
  unsigned blocks = 0, threads = 0, shared_bytes = 0;
  bool is_cooperative = false, has_pdl = false;
  int first_param = 0;  // the first int of the struct
};

// What it says of an address: 0 unknown, 1 the host's, 2 a device's.
struct FakePointer {
  unsigned type = 0;
  int ordinal = -1;
  bool is_managed = false;
};

struct FakeDriver {
  // What it answers.
  int version = 13000, devices = 2, major = 9, minor = 0;
  int shared_bytes = 227 * 1024, multiprocessors = 116;
  std::size_t memory_bytes = std::size_t{1} << 20;
  std::map<std::string, int> failing{};  // name of a function -> its code
  // Runs a kernel; null: kernels do nothing.
  void (*run)(const FakeLaunch& launch, const void* params) = nullptr;
  std::map<const void*, FakePointer> pointers{};
  std::array<std::array<char, 1>, 2> context_of{};  // addresses that stand for contexts

  // What is held and was done.
  int contexts = 0, modules = 0, allocations = 0, pinned = 0, streams = 0, events = 0, graphs = 0;
  int pushed = 0, popped = 0;
  std::map<std::string, int> calls{};  // of each function that may fail, its name without a version
  int unknown_kernels = 0;             // names that were asked for in a module without them
  std::size_t used_bytes = 0;
  std::vector<FakeLaunch> launches{};
};

inline constexpr int kFirstHandle = 40;  // of device 0

// Code that this driver accepts begins so; a kernel's name follows, ended by a zero.
inline constexpr char kFakeCode[] = "fake code: .text.";

// Its exported function of this name gives the one object there is.
inline constexpr char kFakeDriverSymbol[] = "fake_driver";
using FakeDriverFunction = FakeDriver*();

// A function of the library at `path`, which stays open; null: there is none, dlerror() says why.
template <class Function>
Function* fake_driver_function(const char* path, const char* name) {
  void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return opened == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(opened, name));
}
// Its one object; null: as above.
inline FakeDriver* open_fake_driver(const char* path) {
  auto* const function = fake_driver_function<FakeDriverFunction>(path, kFakeDriverSymbol);
  return function == nullptr ? nullptr : function();
}

}  // namespace fp4moe::kernels::cuda
