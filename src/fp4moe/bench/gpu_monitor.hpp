// A GPU at work, as NVIDIA's management library (NVML) sees it: clock, power, temperature and
// energy. The library comes with the driver and is opened when it is asked for.
#pragma once
#include <optional>
#include <string>

#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::bench {

// The functions of NVML that are called, with its own types: a code of 0 is success.
struct Nvml {
  using Handle = void*;
  static constexpr int kSuccess = 0, kSmClock = 1, kGpuTemperature = 0;

  int (*init)() = nullptr;
  int (*device)(const char* pci_bus_id, Handle* device) = nullptr;
  int (*clock)(Handle device, int type, unsigned* mhz) = nullptr;
  int (*power)(Handle device, unsigned* milliwatts) = nullptr;
  int (*temperature)(Handle device, int sensor, unsigned* celsius) = nullptr;
  int (*energy)(Handle device, unsigned long long* millijoules) = nullptr;

  bool is_complete() const;
  // Empty functions where the machine has no such library.
  static Nvml open();
};

struct GpuState {
  unsigned clock_mhz = 0, power_w = 0, temperature_c = 0;
};

class GpuMonitor {
 public:
  explicit GpuMonitor(const kernels::cuda::DeviceFacts& device, const Nvml& nvml = Nvml::open());

  // Empty if NVML is missing or has no such value.
  std::optional<GpuState> state() const;
  std::optional<double> joules() const;  // since the driver was loaded

 private:
  Nvml nvml_;
  Nvml::Handle device_ = nullptr;  // null: unknown
};

// As NVML names devices, e.g. 00000000:1B:00.0.
std::string pci_bus_id(const kernels::cuda::DeviceFacts& device);

}  // namespace fp4moe::bench
