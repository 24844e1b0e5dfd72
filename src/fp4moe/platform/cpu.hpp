// The features of a CPU that kernels care about. One name may stand for several bits of cpuid
// that always come together in practice; cpu.cpp says which.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fp4moe/base/enum_set.hpp"

namespace fp4moe::platform {

enum class CpuFeature : std::uint8_t {
  neon,  // every 64-bit Arm
  neon_dotprod,
  neon_i8mm,
  neon_bf16,
  sve,
  avx2,    // with fma and f16c
  avx512,  // f, bw, vl, dq
  avx512_vbmi,
  avx512_vnni,
  avx512_bf16,
  amx_int8,  // tiles included, and the operating system lets us use them
  amx_bf16,
};

inline constexpr std::array<std::string_view, 12> kCpuFeatureNames{
    "neon",   "neon_dotprod", "neon_i8mm",   "neon_bf16",   "sve",      "avx2",
    "avx512", "avx512_vbmi",  "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
};

constexpr std::string_view name(CpuFeature feature) {
  return kCpuFeatureNames[static_cast<std::size_t>(feature)];
}
static_assert(name(CpuFeature::amx_bf16) == "amx_bf16");

// "neon neon_dotprod", in the order of the table; "none" when empty.
inline std::string text(EnumSet<CpuFeature> features) {
  std::string names;
  for (std::size_t i = 0; i < kCpuFeatureNames.size(); ++i) {
    if (!features.contains(static_cast<CpuFeature>(i))) continue;
    if (!names.empty()) names += ' ';
    names += kCpuFeatureNames[i];
  }
  return names.empty() ? "none" : names;
}

// Asks the machine. On x86 a feature counts only when the operating system saves its registers;
// for AMX that includes asking the kernel for permission to use tiles, which costs nothing until
// a tile is touched.
EnumSet<CpuFeature> detect_cpu_features();

}  // namespace fp4moe::platform
