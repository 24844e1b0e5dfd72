#include <algorithm>
#include <array>
#include <cstring>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/open_library.hpp"

namespace fp4moe::platform {
namespace {

struct DriverCode {
  int code;
  std::string_view meaning;
  std::string_view remedy;
};

// clang-format off
constexpr DriverCode kDriverCodes[] = {
    {2,   "out of memory",                                    "free memory of the GPU or of the host"},
    {3,   "not initialized",                                  "check that /dev/nvidia* exist and may be opened"},
    {34,  "a stub library instead of the driver",             "take the toolkit's stubs folder out of LD_LIBRARY_PATH"},
    {46,  "the device is unavailable",                        "another process may hold it in exclusive mode"},
    {100, "no device",                                        "check CUDA_VISIBLE_DEVICES, and in a container that the GPU is passed in"},
    {101, "invalid device",                                   "check CUDA_VISIBLE_DEVICES"},
    {800, "not permitted",                                    "check who may open /dev/nvidia*"},
    {802, "the system is not ready",                          "start the fabric manager (nvidia-fabricmanager)"},
    {803, "the library and the kernel module do not match",   "reboot, or reload the nvidia modules after the update"},
    {804, "compatibility mode is not supported on this GPU",  "take the cuda-compat folder out of LD_LIBRARY_PATH"},
    {999, "unknown error",                                    "look at dmesg for messages of NVRM"},
};
// clang-format on

constexpr int kMajor = 75, kMinor = 76;  // attributes: compute capability
constexpr int kMaxDevices = 1024;

void blame(Probe& probe, std::string_view call, int code) {
  const auto* const known = std::ranges::find(kDriverCodes, code, &DriverCode::code);
  const bool found = known != std::end(kDriverCodes);
  probe.state = ProbeState::broken;
  probe.reason = "libcuda.so.1 is there but " + std::string(call) + " returned " +
                 std::to_string(code) + (found ? " (" + std::string(known->meaning) + ")" : "");
  probe.remedy = found ? known->remedy : "look the number up as CUresult";
}

// One device; a code other than 0 says why there is none.
int add_device(Probe& probe, const CudaDriver& driver, int ordinal) {
  int handle = 0, major = 0, minor = 0;
  std::size_t bytes = 0;
  std::array<char, 256> title{};
  if (const int code = driver.device(&handle, ordinal); code != 0) return code;
  if (const int code = driver.attribute(&major, kMajor, handle); code != 0) return code;
  if (const int code = driver.attribute(&minor, kMinor, handle); code != 0) return code;
  if (driver.total_memory(&bytes, handle) != 0) bytes = 0;
  const auto size = static_cast<int>(title.size() - 1);
  if (driver.name(title.data(), size, handle) != 0) title[0] = '\0';
  title.back() = '\0';
  const std::string shown = printable(title.data());
  probe.devices.push_back({.name = shown.empty() ? "CUDA device" : shown,
                           .kind = PlatformKind::cuda,
                           .capability = Capability{.major = major, .minor = minor},
                           .memory_bytes = bytes});
  return 0;
}

template <class Return, class... Arguments>
bool find(void* library, const char* symbol, std::function<Return(Arguments...)>& into) {
  void* const address = find_symbol(library, symbol);
  if (address == nullptr) return false;
  into = reinterpret_cast<Return (*)(Arguments...)>(address);
  return true;
}

}  // namespace

Result<CudaDriver> load_cuda_driver(const std::string& library) {
  const auto [opened, why, remedy] = open_library(library);
  if (!opens_libraries())
    return error(ErrorCode::unavailable, "device.driver.missing", why).try_this(remedy);
  if (opened == nullptr)
    return error(ErrorCode::unavailable, "device.driver.missing", library + " cannot be opened")
        .expects("the driver's library", why)
        .try_this("install the NVIDIA driver; in a container, pass the GPU in");
  CudaDriver driver;
  const bool complete =
      find(opened, "cuInit", driver.init) && find(opened, "cuDriverGetVersion", driver.version) &&
      find(opened, "cuDeviceGetCount", driver.device_count) &&
      find(opened, "cuDeviceGet", driver.device) && find(opened, "cuDeviceGetName", driver.name) &&
      find(opened, "cuDeviceGetAttribute", driver.attribute) &&
      find(opened, "cuDeviceTotalMem_v2", driver.total_memory);
  if (!complete)
    return error(ErrorCode::unavailable, "device.driver.symbol",
                 library + " lacks a function of the CUDA driver")
        .expects(
            "cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, "
            "cuDeviceGetAttribute, cuDeviceTotalMem_v2",
            "a library without one of them")
        .try_this("check which libcuda.so.1 comes first in LD_LIBRARY_PATH");
  return driver;
}

Probe probe_cuda(const Result<CudaDriver>& driver) {
  Probe probe{.kind = PlatformKind::cuda};
  if (!driver) {
    const Error& why = driver.why();
    const bool missing = why.id == "device.driver.missing";
    probe.state = missing ? ProbeState::absent : ProbeState::broken;
    probe.reason = missing && !why.found.empty() ? why.found : why.message;  // names the library
    probe.remedy = why.remedy;
    return probe;
  }
  if (const int code = driver->init(0); code != 0) {
    blame(probe, "cuInit", code);
    return probe;
  }
  if (int version = 0; driver->version(&version) == 0 && version > 0)
    probe.driver =
        "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  int count = 0;
  if (const int code = driver->device_count(&count); code != 0) {
    blame(probe, "cuDeviceGetCount", code);
    return probe;
  }
  if (count <= 0) {
    blame(probe, "cuDeviceGetCount", 100);
    probe.reason = "the CUDA driver shows no device";
    return probe;
  }
  for (int ordinal = 0; ordinal < std::min(count, kMaxDevices); ++ordinal)
    if (const int code = add_device(probe, *driver, ordinal); code != 0)
      blame(probe, "asking for device " + std::to_string(ordinal), code);
  if (!probe.devices.empty()) probe.state = ProbeState::working;
  return probe;
}

}  // namespace fp4moe::platform
