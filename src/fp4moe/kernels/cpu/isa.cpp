#include "fp4moe/kernels/cpu/isa.hpp"

#include <string>

#include "fp4moe/base/text.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::kernels::cpu {
namespace {

#if defined(__aarch64__)
constexpr Architecture kBuilt = Architecture::aarch64;
constexpr std::string_view kBuiltName = "64-bit Arm";
#elif defined(__x86_64__)
constexpr Architecture kBuilt = Architecture::x86_64;
constexpr std::string_view kBuiltName = "x86-64";
#else
constexpr Architecture kBuilt = Architecture::any;
constexpr std::string_view kBuiltName = "another architecture";
#endif

using enum platform::CpuFeature;

// clang-format off
constexpr Isa kIsas[] = {
    {"portable",     Architecture::any,     {}},
    {"neon",         Architecture::aarch64, {neon}},
    {"neon_dotprod", Architecture::aarch64, {neon, neon_dotprod}},
    {"neon_i8mm",    Architecture::aarch64, {neon, neon_dotprod, neon_i8mm}},
    {"neon_bf16",    Architecture::aarch64, {neon, neon_dotprod, neon_i8mm, neon_bf16}},
    {"avx2",         Architecture::x86_64,  {avx2}},
    {"avx512",       Architecture::x86_64,  {avx2, avx512}},
    {"avx512_vnni",  Architecture::x86_64,  {avx2, avx512, avx512_vbmi, avx512_vnni}},
    {"avx512_bf16",  Architecture::x86_64,  {avx2, avx512, avx512_vbmi, avx512_vnni, avx512_bf16}},
    {"amx",          Architecture::x86_64,  {avx2, avx512, avx512_vbmi, avx512_vnni, avx512_bf16, amx_int8, amx_bf16}},
};
// clang-format on

std::string names_of_this_build() {
  std::string names;
  for (const Isa& isa : kIsas) {
    if (isa.architecture != Architecture::any && isa.architecture != kBuilt) continue;
    if (!names.empty()) names += ", ";
    names += isa.name;
  }
  return names;
}

}  // namespace

std::span<const Isa> isas() { return kIsas; }

Result<EnumSet<CpuFeature>> usable_features(EnumSet<CpuFeature> present,
                                            std::optional<std::string_view> forced) {
  if (!forced) return present;
  for (const Isa& isa : kIsas) {
    if (isa.name != *forced) continue;
    if (isa.architecture != Architecture::any && isa.architecture != kBuilt)
      return error(ErrorCode::unavailable, "kernels.isa.build",
                   "this build has no kernels for the instruction set " + std::string(isa.name))
          .expects("one of " + names_of_this_build(), "a build for " + std::string(kBuiltName));
    if (!present.contains_all(isa.features))
      return error(ErrorCode::unavailable, "kernels.isa.machine",
                   "this machine cannot run the instruction set " + std::string(isa.name))
          .expects(text(isa.features), text(present))
          .try_this("force an instruction set the machine has, or none");
    return isa.features;
  }
  return usage("kernels.isa.unknown", "there is no instruction set of this name")
      .expects("one of " + names_of_this_build(), printable(*forced));
}

EnumSet<CpuFeature> machine_features() {
  static const EnumSet<CpuFeature> kUsable = [] {
    const Result<platform::Settings> settings = platform::read_settings();
    const auto usable = usable_features(platform::detect_cpu_features(),
                                        settings ? settings->cpu_isa : std::nullopt);
    return usable ? *usable : EnumSet<CpuFeature>{};
  }();
  return kUsable;
}

}  // namespace fp4moe::kernels::cpu
