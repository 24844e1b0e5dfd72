// The device that a layer runs on, as a plain value: read from this machine, looked up by the name
// of a well-known part, or put together field by field. Decisions take a Device and ask nothing
// else.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::platform {

enum class PlatformKind : std::uint8_t { cuda, rocm, xpu, cpu };
inline constexpr std::array<std::string_view, 4> kPlatformNames{"cuda", "rocm", "xpu", "cpu"};
constexpr std::string_view name(PlatformKind kind) {
  return kPlatformNames[static_cast<std::size_t>(kind)];
}

struct Capability {  // 9.0 is SM90
  int major = 0, minor = 0;
  friend constexpr auto operator<=>(const Capability&, const Capability&) = default;
};
std::string text(Capability capability);                                // "9.0"
std::optional<Capability> capability_from_text(std::string_view text);  // "9.0", "90", "sm_90a"

// Packages that backends of other projects need. fp4moe itself needs none of them.
enum class Library : std::uint8_t {
  flashinfer,
  triton_kernels,
  aiter,
  b12x,
  quark,
  humming,
  deep_gemm,
};
inline constexpr std::array<std::string_view, 7> kLibraryNames{
    "flashinfer", "triton_kernels", "aiter", "b12x", "quark", "humming", "deep_gemm"};
constexpr std::string_view name(Library library) {
  return kLibraryNames[static_cast<std::size_t>(library)];
}

enum class CpuArchitecture : std::uint8_t { unknown, arm, x86 };

struct Device {
  std::string name{};  // a label: "h100", "NVIDIA H200", "cpu"
  PlatformKind kind = PlatformKind::cpu;
  std::optional<Capability> capability{};  // absent on XPU and CPU
  std::string gfx{};                       // ROCm only: "gfx942"
  EnumSet<Library> libraries{};
  CpuArchitecture architecture = CpuArchitecture::unknown;  // of the host
  EnumSet<CpuFeature> cpu{};                                // of the host
  std::uint64_t memory_bytes = 0;                           // of one device; 0: unknown
  bool usual = false;  // described, with the packages of a usual installation
};

// Reads a capability out of an AMD architecture name: gfx90a -> 9.0, gfx942 -> 9.4, gfx1100 ->
// 11.0. An error with id device.gfx when the name has no known meaning.
Result<Capability> capability_from_gfx(std::string_view gfx);

// A well-known part. `libraries` is what a usual installation for it has; --lib changes that.
struct DescribedDevice {
  std::string_view name;   // as the command line spells it: "h100"
  std::string_view title;  // "NVIDIA H100"
  PlatformKind kind;
  std::optional<Capability> capability;
  std::string_view gfx;
  EnumSet<Library> libraries;
  CpuArchitecture architecture;
  EnumSet<CpuFeature> cpu;
  std::uint64_t memory_gib;    // as the driver reports it, rounded; 0: depends
  std::string_view aliases{};  // other names, separated by spaces
};

std::span<const DescribedDevice> described_devices();
// The part of this name. Case, spaces, '-' and '_' and the maker's name do not count, so "NVIDIA
// H100" and "rtx-5090" are found. An error with id device.unknown (usage) names all parts and the
// nearest spelling.
Result<Device> describe_device(std::string_view name);

}  // namespace fp4moe::platform
