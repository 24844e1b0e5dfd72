#include "fp4moe/kernels/cpu/ceiling_list.hpp"

// clang-format off
namespace fp4moe::kernels::cpu {

namespace portable {
std::uint32_t int8_multiply_adds(std::size_t rounds) noexcept;
std::uint32_t f32_multiply_adds(std::size_t rounds) noexcept;
std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept;
}  // namespace portable

#if defined(__aarch64__)
namespace neon_dotprod { std::uint32_t sdot_multiply_adds(std::size_t rounds) noexcept; }
namespace neon_i8mm    { std::uint32_t smmla_multiply_adds(std::size_t rounds) noexcept; }
namespace neon_bf16    { std::uint32_t bfmmla_multiply_adds(std::size_t rounds) noexcept; }
namespace neon         { std::uint32_t fmla_multiply_adds(std::size_t rounds) noexcept;
                         std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept; }
#elif defined(__x86_64__)
namespace amx          { std::uint32_t tdpbssd_multiply_adds(std::size_t rounds) noexcept;
                         std::uint32_t tdpbf16_multiply_adds(std::size_t rounds) noexcept; }
namespace avx512_vnni  { std::uint32_t dpbusd_multiply_adds(std::size_t rounds) noexcept; }
namespace avx512_bf16  { std::uint32_t dpbf16_multiply_adds(std::size_t rounds) noexcept; }
namespace avx512       { std::uint32_t fma_multiply_adds(std::size_t rounds) noexcept; }
namespace avx2         { std::uint32_t maddubs_multiply_adds(std::size_t rounds) noexcept;
                         std::uint32_t fma_multiply_adds(std::size_t rounds) noexcept;
                         std::uint64_t read_memory(const void* from, std::size_t bytes) noexcept; }
#endif

namespace {

using enum platform::CpuFeature;

#if defined(__x86_64__)
constexpr std::size_t kTileSums = std::size_t{4} * 16 * 16;  // four tiles, each of 16 by 16 sums
#endif

// Operations of one round: sums * (multiply-adds of one instruction) * 2.
constexpr CeilingKernel kKernels[] = {
#if defined(__aarch64__)
    {"neon_i8mm/smmla",       {neon, neon_i8mm},       Operands::int8, kCeilingSums * 32 * 2, neon_i8mm::smmla_multiply_adds},
    {"neon_dotprod/sdot",     {neon, neon_dotprod},    Operands::int8, kCeilingSums * 16 * 2, neon_dotprod::sdot_multiply_adds},
    {"neon_bf16/bfmmla",      {neon, neon_bf16},       Operands::bf16, kCeilingSums * 16 * 2, neon_bf16::bfmmla_multiply_adds},
    {"neon/fmla",             {neon},                  Operands::bf16, kCeilingSums * 4 * 2,  neon::fmla_multiply_adds},
#elif defined(__x86_64__)
    {"amx/tdpbssd",           {amx_int8},              Operands::int8, kTileSums * 64 * 2,    amx::tdpbssd_multiply_adds},
    {"avx512_vnni/vpdpbusd",  {avx512, avx512_vnni},   Operands::int8, kCeilingSums * 64 * 2, avx512_vnni::dpbusd_multiply_adds},
    {"avx2/vpmaddubsw",       {avx2},                  Operands::int8, kCeilingSums * 32 * 2, avx2::maddubs_multiply_adds},
    {"amx/tdpbf16ps",         {amx_bf16},              Operands::bf16, kTileSums * 32 * 2,    amx::tdpbf16_multiply_adds},
    {"avx512_bf16/vdpbf16ps", {avx512, avx512_bf16},   Operands::bf16, kCeilingSums * 32 * 2, avx512_bf16::dpbf16_multiply_adds},
    {"avx512/vfmadd",         {avx512},                Operands::bf16, kCeilingSums * 16 * 2, avx512::fma_multiply_adds},
    {"avx2/vfmadd",           {avx2},                  Operands::bf16, kCeilingSums * 8 * 2,  avx2::fma_multiply_adds},
#endif
    {"portable/int8",         {},                      Operands::int8, kCeilingSums * 2,      portable::int8_multiply_adds},
    {"portable/f32",          {},                      Operands::bf16, kCeilingSums * 2,      portable::f32_multiply_adds},
};

constexpr ReadKernel kReaders[] = {
#if defined(__aarch64__)
    {"neon/read",     {neon}, neon::read_memory},
#elif defined(__x86_64__)
    {"avx2/read",     {avx2}, avx2::read_memory},
#endif
    {"portable/read", {},     portable::read_memory},
};
// clang-format on

}  // namespace

std::span<const CeilingKernel> ceiling_kernels() { return kKernels; }
std::span<const ReadKernel> read_kernels() { return kReaders; }

}  // namespace fp4moe::kernels::cpu
