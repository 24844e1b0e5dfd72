#include <algorithm>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {
namespace {

constexpr std::string_view kIntel = "8086:";
constexpr std::string_view kBuiltInSlot = "0000:00:02.0";

// card0, but not card0-HDMI-A-1.
bool is_card(std::string_view name) {
  return name.starts_with("card") && name.size() > 4 &&
         std::ranges::all_of(name.substr(4), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_display(std::string_view pci_class) {  // VGA, 3D, other: with and without outputs
  return pci_class == "30000" || pci_class == "30200" || pci_class == "38000";
}

std::uint64_t xpu_local_memory(const std::string& card) {
  return number_of("bytes " + read_start(card + "/lmem_total_bytes"), "bytes", ' ').value_or(0);
}

}  // namespace

Probe probe_xpu(const std::string& root) {
  Probe probe{.kind = PlatformKind::xpu};
  const std::string folder = root + "/sys/class/drm";
  bool built_in = false;
  for (const std::string& entry : entry_names(folder)) {
    if (!is_card(entry)) continue;
    const std::string card = inside(folder, entry);
    const std::string about = read_start(card + "/device/uevent");
    const std::string_view id = value_of(about, "PCI_ID", '=');
    const std::string_view driver = value_of(about, "DRIVER", '=');
    if (!id.starts_with(kIntel) || (driver != "xe" && driver != "i915")) continue;
    if (!is_display(value_of(about, "PCI_CLASS", '='))) continue;
    if (value_of(about, "PCI_SLOT_NAME", '=') == kBuiltInSlot) {
      built_in = true;
      continue;
    }
    probe.driver = driver;
    probe.devices.push_back({.name = "Intel GPU " + printable(id),
                             .kind = PlatformKind::xpu,
                             .memory_bytes = xpu_local_memory(card)});
  }
  if (!probe.devices.empty())
    probe.state = ProbeState::working;
  else
    probe.reason = built_in ? "the Intel graphics here are built into the CPU"
                            : "no discrete Intel GPU with the xe or i915 driver";
  return probe;
}

}  // namespace fp4moe::platform
