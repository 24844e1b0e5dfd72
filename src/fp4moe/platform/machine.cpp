#include "fp4moe/platform/machine.hpp"

#include <charconv>

#include <sys/utsname.h>
#include <unistd.h>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/pseudo_file.hpp"

namespace fp4moe::platform {
namespace {

struct ArmPart {
  std::string_view implementer, part, name;
};

// "CPU implementer" and "CPU part" of /proc/cpuinfo, for the server cores one meets.
constexpr ArmPart kArmParts[] = {
    {"0x41", "0xd0c", "Neoverse-N1"}, {"0x41", "0xd40", "Neoverse-V1"},
    {"0x41", "0xd49", "Neoverse-N2"}, {"0x41", "0xd4f", "Neoverse-V2"},
    {"0x41", "0xd83", "Neoverse-V3"}, {"0x41", "0xd8e", "Neoverse-N3"},
    {"0x41", "0xd08", "Cortex-A72"},  {"0x41", "0xd0b", "Cortex-A76"},
    {"0xc0", "0xac3", "Ampere-1"},    {"0xc0", "0xac4", "Ampere-1a"},
};

void add_caches(Machine& machine) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder =
        "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    const std::string level(trimmed(read_start(folder + "level")));
    if (trimmed(read_start(folder + "type")) == "Instruction") continue;
    const std::uint64_t bytes = cache_bytes(trimmed(read_start(folder + "size")));
    if (level == "1") machine.l1d_bytes = bytes;
    if (level == "2") machine.l2_bytes = bytes;
    if (level == "3") machine.l3_bytes = bytes;
  }
}

std::uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return 0;
  return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
}

}  // namespace

std::string model_from_cpuinfo(std::string_view cpuinfo) {
  if (const std::string_view model = value_of(cpuinfo, "model name", ':'); !model.empty())
    return printable(model);
  const std::string_view implementer = value_of(cpuinfo, "CPU implementer", ':');
  const std::string_view part = value_of(cpuinfo, "CPU part", ':');
  for (const ArmPart& known : kArmParts)
    if (known.implementer == implementer && known.part == part) return std::string(known.name);
  if (part.empty()) return {};
  return "Arm implementer " + printable(implementer) + " part " + printable(part);
}

std::uint64_t cache_bytes(std::string_view size) {
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(size.data(), size.data() + size.size(), value);
  if (code != std::errc{} || value > (std::uint64_t{1} << 40)) return 0;
  const std::string_view unit = size.substr(static_cast<std::size_t>(end - size.data()));
  if (unit.empty()) return value;
  if (unit == "K") return value << 10;
  if (unit == "M") return value << 20;
  return 0;
}

Machine describe_machine() {
  Machine machine;
  machine.model = model_from_cpuinfo(read_start("/proc/cpuinfo"));
  utsname names{};
  if (uname(&names) == 0) machine.architecture = names.machine;
  machine.cores = available_threads();
  add_caches(machine);
  machine.memory_bytes = physical_memory();
  machine.features = detect_cpu_features();
  return machine;
}

}  // namespace fp4moe::platform
