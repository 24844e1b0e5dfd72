#include <charconv>
#include <optional>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/detect.hpp"
#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {
namespace {

constexpr std::string_view kTopology = "/sys/class/kfd/kfd/topology/nodes";

// Frame buffers, visible to the host or not; the other heaps are system memory and caches.
std::uint64_t local_memory(const std::string& node) {
  std::uint64_t bytes = 0;
  const std::string banks = inside(node, "mem_banks");
  for (const std::string& bank : entry_names(banks)) {
    const std::string properties = read_start(inside(inside(banks, bank), "properties"));
    const auto heap = number_of(properties, "heap_type", ' ');
    if (heap == 1u || heap == 2u) bytes += number_of(properties, "size_in_bytes", ' ').value_or(0);
  }
  return bytes;
}

std::string product_name(const std::string& root, std::string_view properties) {
  const auto minor = number_of(properties, "drm_render_minor", ' ');
  if (!minor) return {};
  return printable(trimmed(read_start(root + "/sys/class/drm/renderD" + std::to_string(*minor) +
                                      "/device/product_name")));
}

void add_gpus(Probe& probe, const std::string& root) {
  const std::string topology = root + std::string(kTopology);
  for (const std::string& entry : entry_names(topology)) {
    const std::string node = inside(topology, entry);
    const std::string properties = read_start(inside(node, "properties"));
    const std::uint64_t version = number_of(properties, "gfx_target_version", ' ').value_or(0);
    if (version == 0) continue;  // a CPU
    const std::string gfx = gfx_from_target_version(version);
    const Result<Capability> capability = capability_from_gfx(gfx);
    if (!capability) {
      probe.reason = "left out architecture " + (gfx.empty() ? std::to_string(version) : gfx) +
                     ", which has no known meaning";
      continue;
    }
    const std::string product = product_name(root, properties);
    probe.devices.push_back({.name = product.empty() ? "AMD " + gfx : product,
                             .kind = PlatformKind::rocm,
                             .capability = *capability,
                             .gfx = gfx,
                             .memory_bytes = local_memory(node)});
  }
}

// The devices a list of numbers leaves, in its order. As the runtime does, reading stops at the
// first entry that is no number of a device; other forms of names leave all devices as they are.
std::vector<Device> visible(const std::vector<Device>& devices, std::string_view list) {
  std::vector<Device> left;
  for (const std::string_view entry : split(list, ',')) {
    const std::string_view digits = trimmed(entry);
    if (digits.starts_with("GPU-")) return devices;
    std::size_t index = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (code != std::errc{} || end != digits.data() + digits.size() || index >= devices.size())
      break;
    left.push_back(devices[index]);
  }
  return left;
}

}  // namespace

std::string gfx_from_target_version(std::uint64_t version) {
  const std::uint64_t major = version / 10000, minor = version / 100 % 100, step = version % 100;
  if (major == 0 || major > 99 || minor > 15 || step > 15) return {};
  constexpr std::string_view kHex = "0123456789abcdef";
  return "gfx" + std::to_string(major) + kHex[minor] + kHex[step];
}

Probe probe_rocm(const std::string& root, const Lookup& lookup) {
  Probe probe{.kind = PlatformKind::rocm};
  if (!is_folder(root + std::string(kTopology))) {
    probe.reason = "the kernel has no amdkfd driver (" + std::string(kTopology) + " is missing)";
    probe.remedy = "load the amdgpu module";
    return probe;
  }
  probe.driver = "amdkfd";
  add_gpus(probe, root);
  if (probe.devices.empty()) {
    if (probe.reason.empty()) probe.reason = "amdkfd lists no GPU";
    return probe;
  }
  const auto none_left = [&probe](const std::string& reason, const std::string& remedy) {
    probe.state = ProbeState::broken;
    probe.devices.clear();
    probe.reason = reason;
    probe.remedy = remedy;
    return probe;
  };
  if (!exists(root + "/dev/kfd"))
    return none_left("the kernel lists AMD GPUs but /dev/kfd is missing",
                     "pass --device=/dev/kfd --device=/dev/dri to the container");
  for (const std::string variable : {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    const std::optional<std::string> list = lookup(variable);
    if (list) probe.devices = visible(probe.devices, *list);
    if (probe.devices.empty())
      return none_left(variable + "=" + printable(*list) + " hides every AMD GPU",
                       "unset " + variable);
  }
  probe.state = ProbeState::working;
  return probe;
}

}  // namespace fp4moe::platform
