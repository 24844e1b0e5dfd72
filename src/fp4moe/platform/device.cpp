#include "fp4moe/platform/device.hpp"

#include <algorithm>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {
namespace {

using enum CpuFeature;
using enum Library;
using Features = EnumSet<CpuFeature>;
using Libraries = EnumSet<Library>;

constexpr auto kCuda = PlatformKind::cuda;
constexpr auto kRocm = PlatformKind::rocm;
constexpr auto kXpu = PlatformKind::xpu;
constexpr auto kCpu = PlatformKind::cpu;
constexpr auto kX86 = CpuArchitecture::x86;
constexpr auto kArm = CpuArchitecture::arm;
constexpr auto kAny = CpuArchitecture::unknown;

// The libraries of a usual installation.
constexpr Libraries kNone{};
constexpr Libraries kTriton{triton_kernels};
constexpr Libraries kNvidia{flashinfer, triton_kernels};
constexpr Libraries kInstinct{triton_kernels, aiter};

// The least CPU features of such a device's host.
constexpr Features kNothing{};
constexpr Features kAvx2{avx2};
constexpr Features kAvx512{avx2, avx512, avx512_vbmi, avx512_vnni};
constexpr Features kAmx{avx2, avx512, avx512_vbmi, avx512_vnni, avx512_bf16, amx_int8, amx_bf16};
constexpr Features kNeon{neon, neon_dotprod, neon_i8mm, neon_bf16};

constexpr Capability kAbsent{};

constexpr DescribedDevice part(std::string_view name, std::string_view title, PlatformKind kind,
                               Capability capability, std::string_view gfx, Libraries libraries,
                               CpuArchitecture architecture, Features cpu, std::uint64_t memory_gib,
                               std::string_view aliases = {}) {
  return {.name = name,
          .title = title,
          .kind = kind,
          .capability = capability == kAbsent ? std::nullopt : std::optional(capability),
          .gfx = gfx,
          .libraries = libraries,
          .architecture = architecture,
          .cpu = cpu,
          .memory_gib = memory_gib,
          .aliases = aliases};
}

// Memory is that of one device as programs see it: a MI250 is two devices of 64 GiB.
// clang-format off
constexpr DescribedDevice kDevices[] = {
    part("t4",         "NVIDIA T4",                     kCuda, {7, 5},  "",        kNvidia,   kX86, kAvx2,    16),
    part("v100",       "NVIDIA V100",                   kCuda, {7, 0},  "",        kTriton,   kX86, kAvx2,    32),
    part("a100",       "NVIDIA A100",                   kCuda, {8, 0},  "",        kNvidia,   kX86, kAvx2,    80),
    part("a10",        "NVIDIA A10",                    kCuda, {8, 6},  "",        kNvidia,   kX86, kAvx2,    24, "a10g"),
    part("rtx3090",    "NVIDIA GeForce RTX 3090",       kCuda, {8, 6},  "",        kNvidia,   kX86, kAvx2,    24, "3090"),
    part("l4",         "NVIDIA L4",                     kCuda, {8, 9},  "",        kNvidia,   kX86, kAvx2,    24),
    part("l40s",       "NVIDIA L40S",                   kCuda, {8, 9},  "",        kNvidia,   kX86, kAvx2,    48, "l40"),
    part("rtx4090",    "NVIDIA GeForce RTX 4090",       kCuda, {8, 9},  "",        kNvidia,   kX86, kAvx2,    24, "4090"),
    part("rtx6000ada", "NVIDIA RTX 6000 Ada",           kCuda, {8, 9},  "",        kNvidia,   kX86, kAvx2,    48, "6000ada"),
    part("h20",        "NVIDIA H20",                    kCuda, {9, 0},  "",        kNvidia,   kX86, kAvx2,    96),
    part("h100",       "NVIDIA H100",                   kCuda, {9, 0},  "",        kNvidia,   kX86, kAvx2,    80),
    part("h200",       "NVIDIA H200",                   kCuda, {9, 0},  "",        kNvidia,   kX86, kAvx2,   140),
    part("gh200",      "NVIDIA GH200",                  kCuda, {9, 0},  "",        kNvidia,   kArm, kNeon,    96),
    part("b200",       "NVIDIA B200",                   kCuda, {10, 0}, "",        kNvidia,   kX86, kAvx2,   180),
    part("gb200",      "NVIDIA GB200",                  kCuda, {10, 0}, "",        kNvidia,   kArm, kNeon,   185),
    part("b300",       "NVIDIA B300",                   kCuda, {10, 3}, "",        kNvidia,   kX86, kAvx2,   268),
    part("gb300",      "NVIDIA GB300",                  kCuda, {10, 3}, "",        kNvidia,   kArm, kNeon,   278),
    part("thor",       "NVIDIA Jetson Thor",            kCuda, {11, 0}, "",        kNvidia,   kArm, kNeon,   128, "jetsonthor agxthor"),
    part("rtx5090",    "NVIDIA GeForce RTX 5090",       kCuda, {12, 0}, "",        kNvidia,   kX86, kAvx2,    32, "5090"),
    part("rtxpro6000", "NVIDIA RTX PRO 6000",           kCuda, {12, 0}, "",        kNvidia,   kX86, kAvx2,    96, "pro6000 rtxpro6000blackwell"),
    part("gb10",       "NVIDIA GB10 (DGX Spark)",       kCuda, {12, 1}, "",        kNvidia,   kArm, kNeon,   128, "dgxspark spark"),
    part("mi250",      "AMD Instinct MI250",            kRocm, {9, 0},  "gfx90a",  kInstinct, kX86, kAvx2,    64, "mi250x mi210"),
    part("mi300x",     "AMD Instinct MI300X",           kRocm, {9, 4},  "gfx942",  kInstinct, kX86, kAvx2,   192, "mi300"),
    part("mi325x",     "AMD Instinct MI325X",           kRocm, {9, 4},  "gfx942",  kInstinct, kX86, kAvx2,   256, "mi325"),
    part("mi350x",     "AMD Instinct MI350X",           kRocm, {9, 5},  "gfx950",  kInstinct, kX86, kAvx2,   288, "mi350"),
    part("mi355x",     "AMD Instinct MI355X",           kRocm, {9, 5},  "gfx950",  kInstinct, kX86, kAvx2,   288, "mi355"),
    part("mi455x",     "AMD Instinct MI455X",           kRocm, {12, 5}, "gfx1250", kInstinct, kX86, kAvx2,   432, "mi455"),
    part("rx7900xtx",  "AMD Radeon RX 7900 XTX",        kRocm, {11, 0}, "gfx1100", kTriton,   kX86, kAvx2,    24, "rx7900 7900xtx"),
    part("rx9070",     "AMD Radeon RX 9070",            kRocm, {12, 0}, "gfx1201", kTriton,   kX86, kAvx2,    16, "rx9070xt 9070 9070xt"),
    part("xpu",        "Intel Arc or Data Center GPU",  kXpu,  kAbsent, "",        kNone,     kX86, kAvx2,     0, "arc datacentergpu"),
    part("cpu",        "any CPU, portable code",  kCpu,  kAbsent, "",        kNone,     kAny, kNothing,  0),
    part("cpu-arm",    "Arm Neoverse-V1 or later",      kCpu,  kAbsent, "",        kNone,     kArm, kNeon,     0, "graviton3 neoversev1"),
    part("cpu-avx2",   "x86-64 with AVX2",              kCpu,  kAbsent, "",        kNone,     kX86, kAvx2,     0),
    part("cpu-avx512", "x86-64 with AVX-512 and VNNI",  kCpu,  kAbsent, "",        kNone,     kX86, kAvx512,   0),
    part("cpu-amx",    "x86-64 with AMX (Xeon 4th gen)", kCpu, kAbsent, "",        kNone,     kX86, kAmx,      0),
};
// clang-format on

// Names without the parts that users omit or add: case, punctuation, the maker and the brand.
std::string plain_name(std::string_view name) {
  std::string result;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  for (const std::string_view word :
       {"nvidia", "amd", "intel", "geforce", "tesla", "instinct", "radeon"})
    if (result.starts_with(word) && result.size() > word.size()) result.erase(0, word.size());
  return result;
}

bool is_called(const DescribedDevice& device, std::string_view plain) {
  if (plain_name(device.name) == plain) return true;
  return !device.aliases.empty() &&
         std::ranges::any_of(split(device.aliases, ' '),
                             [plain](std::string_view alias) { return alias == plain; });
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::size_t leading_digits(std::string_view text) {
  std::size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  return count;
}

}  // namespace

std::string text(Capability capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

std::optional<Capability> capability_from_text(std::string_view text) {
  for (const std::string_view prefix : {"sm_", "SM_", "sm", "SM", "compute_"})
    if (text.starts_with(prefix)) {
      text.remove_prefix(prefix.size());
      break;
    }
  // A last letter says for which chips code was compiled, not what a chip can do.
  if (text.ends_with('a') || text.ends_with('f')) text.remove_suffix(1);
  std::string digits(text);
  if (const std::size_t dot = text.find('.'); dot != std::string_view::npos) {
    if (dot + 2 != text.size()) return std::nullopt;
    digits.erase(dot, 1);
  }
  if (digits.size() < 2 || digits.size() > 3 || leading_digits(digits) != digits.size())
    return std::nullopt;
  if (digits.front() == '0') return std::nullopt;
  const int number = std::stoi(digits);
  return Capability{.major = number / 10, .minor = number % 10};
}

Result<Capability> capability_from_gfx(std::string_view gfx) {
  const auto refuse = [gfx](std::string_view why) {
    return usage("device.gfx", "this AMD architecture name has no known meaning")
        .expects("gfx and two to four digits, of generation 9 to 12 (gfx90a, gfx942, gfx1100)",
                 "'" + printable(gfx) + "', " + std::string(why))
        .try_this("rocminfo or rocm_agent_enumerator prints the name");
  };
  constexpr std::string_view kPrefix = "gfx";
  if (!gfx.starts_with(kPrefix)) return refuse("which does not begin with gfx");
  const std::string_view rest = gfx.substr(kPrefix.size());
  const std::size_t count = leading_digits(rest);
  if (count < 2 || count > 4) return refuse("which has " + std::to_string(count) + " digits");
  const auto digit = [rest](std::size_t i) { return rest[i] - '0'; };
  const Capability found = count == 4
                               ? Capability{.major = 10 * digit(0) + digit(1), .minor = digit(2)}
                               : Capability{.major = digit(0), .minor = digit(1)};
  if (found.major < 9 || found.major > 12)
    return refuse("which is generation " + std::to_string(found.major));
  return found;
}

namespace {

// CPUs are described by what they compute, not by their makers' names.
bool is_cpu_series(std::string_view plain) {
  constexpr std::string_view kSeries[] = {"xeon",         "epyc",     "ryzen",
                                          "threadripper", "graviton", "neoverse"};
  return std::ranges::any_of(
      kSeries, [&](std::string_view series) { return plain.find(series) != plain.npos; });
}

}  // namespace

std::span<const DescribedDevice> described_devices() { return kDevices; }

Result<Device> describe_device(std::string_view name) {
  const std::string plain = plain_name(name);
  const auto found = std::ranges::find_if(
      kDevices, [&plain](const DescribedDevice& device) { return is_called(device, plain); });
  if (found != std::end(kDevices))
    return Device{.name = std::string(found->name),
                  .kind = found->kind,
                  .capability = found->capability,
                  .gfx = std::string(found->gfx),
                  .libraries = found->libraries,
                  .architecture = found->architecture,
                  .cpu = found->cpu,
                  .memory_bytes = found->memory_gib << 30,
                  .usual = true};
  std::vector<std::string_view> names, titles;
  for (const DescribedDevice& device : kDevices) {
    names.push_back(device.name);
    titles.push_back(device.title);
  }
  std::string_view near = nearest(plain, names);
  // A name without a number is a maker's or a family's.
  if (near.empty() && std::ranges::any_of(name, [](char c) { return c >= '0' && c <= '9'; })) {
    const std::string_view title = meant(name, titles);
    if (!title.empty())
      near = names[static_cast<std::size_t>(std::ranges::find(titles, title) - titles.begin())];
  }
  const std::vector<std::string> known(names.begin(), names.end());
  return usage("device.unknown", "no device of this name is described")
      .expects("one of " + join(known, ", "), printable(name))
      .try_this(!near.empty()          ? "did you mean " + std::string(near) + "?"
                : is_cpu_series(plain) ? "a CPU is one of cpu-avx2, cpu-avx512, cpu-amx and cpu-arm"
                                       : "describe it by its platform and capability instead");
}

}  // namespace fp4moe::platform
