#include "fp4moe/bench/gpu_monitor.hpp"

#include <fmt/format.h>

#include "fp4moe/platform/open_library.hpp"

namespace fp4moe::bench {

bool Nvml::is_complete() const {
  return init != nullptr && device != nullptr && clock != nullptr && power != nullptr &&
         temperature != nullptr && energy != nullptr;
}

Nvml Nvml::open() {
  const platform::OpenedLibrary library = platform::open_library("libnvidia-ml.so.1");
  if (library.handle == nullptr) return {};
  const auto find = [&]<class Function>(Function& into, const char* name) {
    into = reinterpret_cast<Function>(platform::find_symbol(library.handle, name));
  };
  Nvml result;
  find(result.init, "nvmlInit_v2");
  find(result.device, "nvmlDeviceGetHandleByPciBusId_v2");
  find(result.clock, "nvmlDeviceGetClockInfo");
  find(result.power, "nvmlDeviceGetPowerUsage");
  find(result.temperature, "nvmlDeviceGetTemperature");
  find(result.energy, "nvmlDeviceGetTotalEnergyConsumption");
  return result;
}

std::string pci_bus_id(const kernels::cuda::DeviceFacts& device) {
  return fmt::format("{:08X}:{:02X}:{:02X}.0", device.pci_domain, device.pci_bus,
                     device.pci_device);
}

GpuMonitor::GpuMonitor(const kernels::cuda::DeviceFacts& device, const Nvml& nvml) : nvml_(nvml) {
  if (!nvml_.is_complete() || nvml_.init() != Nvml::kSuccess) return;
  if (nvml_.device(pci_bus_id(device).c_str(), &device_) != Nvml::kSuccess) device_ = nullptr;
}

std::optional<GpuState> GpuMonitor::state() const {
  if (device_ == nullptr) return std::nullopt;
  GpuState state;
  unsigned milliwatts = 0;
  if (nvml_.clock(device_, Nvml::kSmClock, &state.clock_mhz) != Nvml::kSuccess ||
      nvml_.power(device_, &milliwatts) != Nvml::kSuccess ||
      nvml_.temperature(device_, Nvml::kGpuTemperature, &state.temperature_c) != Nvml::kSuccess)
    return std::nullopt;
  state.power_w = (milliwatts + 500) / 1000;
  return state;
}

std::optional<double> GpuMonitor::joules() const {
  unsigned long long millijoules = 0;
  if (device_ == nullptr || nvml_.energy(device_, &millijoules) != Nvml::kSuccess)
    return std::nullopt;
  return static_cast<double>(millijoules) / 1e3;
}

}  // namespace fp4moe::bench
