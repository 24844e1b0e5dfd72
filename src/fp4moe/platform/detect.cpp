#include "fp4moe/platform/detect.hpp"

#include "fp4moe/platform/libraries.hpp"
#include "fp4moe/platform/machine.hpp"

namespace fp4moe::platform {
namespace {

#if defined(__aarch64__)
constexpr CpuArchitecture kHere = CpuArchitecture::arm;
#elif defined(__x86_64__)
constexpr CpuArchitecture kHere = CpuArchitecture::x86;
#else
constexpr CpuArchitecture kHere = CpuArchitecture::unknown;
#endif

}  // namespace

std::vector<Probe> probe_platforms(const DetectFrom& from) {
  std::vector<Probe> probes;
  probes.push_back(probe_cuda(from.cuda()));
  probes.push_back(probe_rocm(from.root, from.lookup));
  probes.push_back(probe_xpu(from.root));
  return probes;
}

Device host_device() {
  const Machine machine = describe_machine();
  return {.name = machine.model.empty() ? "cpu" : machine.model,
          .kind = PlatformKind::cpu,
          .architecture = kHere,
          .cpu = machine.features,
          .memory_bytes = machine.memory_bytes};
}

std::vector<Device> detect_devices(const DetectFrom& from) {
  const EnumSet<Library> libraries =
      usable_libraries(find_libraries({.root = from.root, .lookup = from.lookup}));
  const Device host = host_device();
  std::vector<Device> devices;
  for (Probe& probe : probe_platforms(from))
    for (Device& device : probe.devices) devices.push_back(std::move(device));
  devices.push_back(host);
  for (Device& device : devices) {
    device.libraries = libraries;
    device.architecture = host.architecture;
    device.cpu = host.cpu;
  }
  return devices;
}

Device detect_device(const DetectFrom& from) { return detect_devices(from).front(); }

}  // namespace fp4moe::platform
