#include "fp4moe/platform/cpu.hpp"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

namespace fp4moe::platform {
namespace {

struct FeatureBit {
  CpuFeature feature;
  std::uint64_t mask;  // all of these bits
};

[[maybe_unused]] void insert_present(EnumSet<CpuFeature>& found, std::uint64_t word,
                                     std::initializer_list<FeatureBit> bits) {
  for (const FeatureBit& bit : bits)
    if ((word & bit.mask) == bit.mask) found.insert(bit.feature);
}

#if defined(__x86_64__)

struct Cpuid {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  Cpuid r;
  // Returns 0 and leaves zeros when the leaf is unknown to this CPU.
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Which register states the operating system saves (XCR0).
std::uint64_t saved_states() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

// Linux hands out tile registers only on request, for the whole process.
bool may_use_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

constexpr std::uint32_t bit(unsigned i) { return std::uint32_t{1} << i; }
constexpr bool has(std::uint64_t word, std::uint64_t mask) { return (word & mask) == mask; }

#endif

}  // namespace

#if defined(__aarch64__)

EnumSet<CpuFeature> detect_cpu_features() {
  EnumSet<CpuFeature> found;
  insert_present(found, getauxval(AT_HWCAP),
                 {{CpuFeature::neon, HWCAP_ASIMD},
                  {CpuFeature::neon_dotprod, HWCAP_ASIMDDP},
                  {CpuFeature::sve, HWCAP_SVE}});
  insert_present(found, getauxval(AT_HWCAP2),
                 {{CpuFeature::neon_i8mm, HWCAP2_I8MM}, {CpuFeature::neon_bf16, HWCAP2_BF16}});
  return found;
}

#elif defined(__x86_64__)

EnumSet<CpuFeature> detect_cpu_features() {
  EnumSet<CpuFeature> found;
  const Cpuid one = cpuid(1, 0);
  const std::uint32_t avx_osxsave_fma_f16c = bit(28) | bit(27) | bit(12) | bit(29);
  if (!has(one.ecx, avx_osxsave_fma_f16c)) return found;
  const std::uint64_t states = saved_states();
  if (!has(states, 0x6)) return found;  // xmm and ymm
  const Cpuid seven = cpuid(7, 0);
  if (!has(seven.ebx, bit(5))) return found;
  found.insert(CpuFeature::avx2);

  const std::uint32_t f_dq_bw_vl = bit(16) | bit(17) | bit(30) | bit(31);
  if (has(states, 0xE6) && has(seven.ebx, f_dq_bw_vl)) {  // mask and zmm registers as well
    found.insert(CpuFeature::avx512);
    insert_present(found, seven.ecx,
                   {{CpuFeature::avx512_vbmi, bit(1)}, {CpuFeature::avx512_vnni, bit(11)}});
    insert_present(found, cpuid(7, 1).eax, {{CpuFeature::avx512_bf16, bit(5)}});
  }
  const std::uint64_t tile_states = std::uint64_t{3} << 17;
  if (has(states, tile_states) && has(seven.edx, bit(24)) && may_use_tiles())
    insert_present(found, seven.edx,
                   {{CpuFeature::amx_int8, bit(25)}, {CpuFeature::amx_bf16, bit(22)}});
  return found;
}

#else

EnumSet<CpuFeature> detect_cpu_features() { return {}; }

#endif

}  // namespace fp4moe::platform
