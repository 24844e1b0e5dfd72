#include "fp4moe/bench/gpu_monitor.hpp"

#include <gtest/gtest.h>

namespace fp4moe::bench::gpu_monitor_test {
namespace {

int some_device = 0;
std::string asked_bus;

Nvml fake_nvml() {
  return {.init = [] { return 0; },
          .device =
              [](const char* pci_bus_id, Nvml::Handle* device) {
                asked_bus = pci_bus_id;
                *device = &some_device;
                return 0;
              },
          .clock = [](Nvml::Handle, int type, unsigned* mhz) { return *mhz = 1755, type - 1; },
          .power = [](Nvml::Handle, unsigned* milliwatts) { return *milliwatts = 699'700, 0; },
          .temperature = [](Nvml::Handle, int sensor,
                            unsigned* celsius) { return *celsius = 61, sensor; },
          .energy = [](Nvml::Handle,
                       unsigned long long* millijoules) { return *millijoules = 2500, 0; }};
}

kernels::cuda::DeviceFacts facts() {
  kernels::cuda::DeviceFacts result;
  result.pci_domain = 1;
  result.pci_bus = 0x1B;
  result.pci_device = 2;
  return result;
}

TEST(GpuMonitor, AsksForTheDeviceByItsBus) {
  const GpuMonitor monitor(facts(), fake_nvml());
  EXPECT_EQ(asked_bus, "00000001:1B:02.0");
  const auto state = monitor.state();
  ASSERT_TRUE(state);
  EXPECT_EQ(state->clock_mhz, 1755u);
  EXPECT_EQ(state->power_w, 700u);
  EXPECT_EQ(state->temperature_c, 61u);
  EXPECT_EQ(monitor.joules(), 2.5);
}

TEST(GpuMonitor, IsSilentWhereNvmlFailsOrIsMissing) {
  Nvml missing = fake_nvml(), refusing = fake_nvml(), strange = fake_nvml();
  missing.energy = nullptr;
  refusing.device = [](const char*, Nvml::Handle*) { return 6; };
  strange.power = [](Nvml::Handle, unsigned*) { return 3; };
  for (const Nvml& nvml : {Nvml{}, missing, refusing, strange})
    EXPECT_FALSE(GpuMonitor(facts(), nvml).state());
  for (const Nvml& nvml : {Nvml{}, missing, refusing})
    EXPECT_FALSE(GpuMonitor(facts(), nvml).joules());
}

}  // namespace
}  // namespace fp4moe::bench::gpu_monitor_test
