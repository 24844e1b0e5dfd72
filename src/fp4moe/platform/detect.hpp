// Which accelerators this machine has. Every platform is asked on its own and keeps the reason when
// it has nothing to offer, so that `doctor` can tell a missing driver from a broken one. Nothing
// here links against a vendor's library, prints, or fails: a machine without a GPU is a CPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/platform/device.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::platform {

// The calls of the CUDA driver that detection makes. Each returns the driver's own code, 0 for
// success; `device` is the driver's handle.
struct CudaDriver {
  std::function<int(unsigned flags)> init{};
  std::function<int(int* version)> version{};  // 13000 is 13.0
  std::function<int(int* count)> device_count{};
  std::function<int(int* device, int ordinal)> device{};
  std::function<int(char* name, int size, int device)> name{};
  std::function<int(int* value, int attribute, int device)> attribute{};
  std::function<int(std::size_t* bytes, int device)> total_memory{};
};

// Opens the driver's library. Errors: device.driver.missing (there is no such library) and
// device.driver.symbol (it lacks a function we need), both ErrorCode::unavailable.
Result<CudaDriver> load_cuda_driver(const std::string& library = "libcuda.so.1");

// The files and calls that detection reads; tests put their own in.
struct DetectFrom {
  std::string root{};  // goes before every path; empty: this machine
  Lookup lookup = environment;
  std::function<Result<CudaDriver>()> cuda = [] { return load_cuda_driver(); };
};

enum class ProbeState : std::uint8_t {
  absent,   // nothing of this platform is installed, or no such device
  broken,   // something is there and does not work
  working,  // at least one device
};
constexpr std::string_view name(ProbeState state) {
  switch (state) {
    case ProbeState::absent:
      return "absent";
    case ProbeState::broken:
      return "broken";
    case ProbeState::working:
      break;
  }
  return "working";
}

struct Probe {
  PlatformKind kind = PlatformKind::cpu;
  ProbeState state = ProbeState::absent;
  std::vector<Device> devices{};  // without their host's part: see detect_devices
  std::string driver{};           // "CUDA 13.0", "amdkfd"; empty when there is none
  std::string reason{};           // why there are no devices, or some are left out
  std::string remedy{};
};

// The devices the CUDA driver shows, CUDA_VISIBLE_DEVICES included.
Probe probe_cuda(const Result<CudaDriver>& driver);
// The GPUs of the kernel's compute topology (amdkfd) that ROCR_VISIBLE_DEVICES and
// HIP_VISIBLE_DEVICES leave.
Probe probe_rocm(const std::string& root, const Lookup& lookup);
// Discrete Intel GPUs: bound to the xe or i915 driver and not at 0000:00:02.0, the slot of
// graphics built into a CPU.
Probe probe_xpu(const std::string& root);

// cuda, rocm, xpu, in this order.
std::vector<Probe> probe_platforms(const DetectFrom& from = {});

// The CPU of this machine as a device, without libraries.
Device host_device();

// The accelerators of all probes and the CPU last, each with the host's architecture and
// features and with the libraries that are installed. Never empty.
std::vector<Device> detect_devices(const DetectFrom& from = {});
// The first of them: an accelerator, or the CPU where there is none.
Device detect_device(const DetectFrom& from = {});

// "gfx942" of the kernel's number 90402; empty when it stands for no GPU.
std::string gfx_from_target_version(std::uint64_t version);

}  // namespace fp4moe::platform
