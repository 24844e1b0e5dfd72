#include "cuda/emulator/kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "fp4moe/kernels/cuda/sm80/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"
#include "fp4moe/kernels/cuda/sm90/combine/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/pack/params.hpp"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"

namespace fp4moe::kernels::cuda {

// Dynamic shared memory, by the names that the kernels give it.
inline constexpr std::size_t kSharedBytes = 227 * 1024;
namespace sm80::grouped_gemm {
alignas(128) thread_local std::uint8_t stages_memory[kSharedBytes];
}  // namespace sm80::grouped_gemm
extern "C" {
alignas(128) thread_local std::uint32_t shared[kSharedBytes / 4];
alignas(128) thread_local float scratch[kSharedBytes / 4];
alignas(128) thread_local float row_of_h[kSharedBytes / 4];

void fp4moe_sm80_prepare(sm90::PrepareParams);
void fp4moe_sm80_gather(sm90::GatherParams);
void fp4moe_sm80_route_gather(sm90::RouteGatherParams);
void fp4moe_sm80_activate(sm90::ActivateParams);
void fp4moe_sm80_combine_f32(sm90::CombineParams);
void fp4moe_sm80_combine_bf16(sm90::CombineParams);
void fp4moe_sm80_pack(sm90::PackParams);
void fp4moe_sm80_grouped_gemm_n32_mxfp4(sm80::GroupedGemmParams);
void fp4moe_sm80_grouped_gemm_n64_mxfp4(sm80::GroupedGemmParams);
void fp4moe_sm80_grouped_gemm_n128_mxfp4(sm80::GroupedGemmParams);
void fp4moe_sm80_grouped_gemm_n32_nvfp4(sm80::GroupedGemmParams);
void fp4moe_sm80_grouped_gemm_n64_nvfp4(sm80::GroupedGemmParams);
void fp4moe_sm80_grouped_gemm_n128_nvfp4(sm80::GroupedGemmParams);
}

}  // namespace fp4moe::kernels::cuda

namespace fp4moe::emulator {
namespace {

namespace cuda = kernels::cuda;

struct KernelRow {
  std::string_view name;
  void (*call)(const void* params);
  std::byte* (*memory)();  // its dynamic shared memory in this thread of the system
};

template <auto kernel>
struct Call;
template <class Params, void (*kernel)(Params)>
struct Call<kernel> {
  static void call(const void* params) { kernel(*static_cast<const Params*>(params)); }
};

std::byte* none() { return nullptr; }
std::byte* of_gemm() {
  return reinterpret_cast<std::byte*>(cuda::sm80::grouped_gemm::stages_memory);
}

// clang-format off
constexpr KernelRow kKernels[] = {
    {"prepare",      Call<cuda::fp4moe_sm80_prepare>::call,      [] { return reinterpret_cast<std::byte*>(cuda::scratch); }},
    {"gather",       Call<cuda::fp4moe_sm80_gather>::call,       [] { return reinterpret_cast<std::byte*>(cuda::shared); }},
    {"route_gather", Call<cuda::fp4moe_sm80_route_gather>::call, [] { return reinterpret_cast<std::byte*>(cuda::shared); }},
    {"activate",     Call<cuda::fp4moe_sm80_activate>::call,     [] { return reinterpret_cast<std::byte*>(cuda::row_of_h); }},
    {"combine_f32",  Call<cuda::fp4moe_sm80_combine_f32>::call,  none},
    {"combine_bf16", Call<cuda::fp4moe_sm80_combine_bf16>::call, none},
    {"pack",         Call<cuda::fp4moe_sm80_pack>::call,         none},
    {"grouped_gemm_n32_mxfp4",  Call<cuda::fp4moe_sm80_grouped_gemm_n32_mxfp4>::call,  of_gemm},
    {"grouped_gemm_n64_mxfp4",  Call<cuda::fp4moe_sm80_grouped_gemm_n64_mxfp4>::call,  of_gemm},
    {"grouped_gemm_n128_mxfp4", Call<cuda::fp4moe_sm80_grouped_gemm_n128_mxfp4>::call, of_gemm},
    {"grouped_gemm_n32_nvfp4",  Call<cuda::fp4moe_sm80_grouped_gemm_n32_nvfp4>::call,  of_gemm},
    {"grouped_gemm_n64_nvfp4",  Call<cuda::fp4moe_sm80_grouped_gemm_n64_nvfp4>::call,  of_gemm},
    {"grouped_gemm_n128_nvfp4", Call<cuda::fp4moe_sm80_grouped_gemm_n128_nvfp4>::call, of_gemm},
};
// clang-format on

// Whatever came out is wrong.
[[noreturn]] void fail(std::string_view kernel, std::string_view what) {
  fmt::print(stderr, "emulated kernel {}: {}\n", kernel, what);
  std::abort();
}

constexpr auto kPoison = std::byte{0xFF};  // NaN, and a large number

}  // namespace

Options& options() {
  static Options only;
  return only;
}

std::uintptr_t shared_origin() { return reinterpret_cast<std::uintptr_t>(of_gemm()); }

void run(const cuda::FakeLaunch& launch, const void* params) {
  constexpr std::string_view kPrefix = "fp4moe_sm80_";
  const std::string_view name = std::string_view(launch.kernel).substr(kPrefix.size());
  const auto* found = std::ranges::find(kKernels, name, &KernelRow::name);
  if (found == std::end(kKernels)) fail(name, "is not here");
  const auto memory = [&] {
    std::byte* const at = found->memory();
    return std::span(at, at == nullptr ? 0 : cuda::kSharedBytes);
  };
  emulator::launch(
      {.blocks = launch.blocks,
       .threads = launch.threads,
       .copies = options().copies,
       .seed = options().seed},
      [&] { found->call(params); }, [&] { std::ranges::fill(memory(), kPoison); },
      [&] {
        const auto all = memory();
        const auto behind = all.subspan(std::min<std::size_t>(launch.shared_bytes, all.size()));
        if (std::ranges::any_of(behind, [](std::byte one) { return one != kPoison; }))
          fail(name, "wrote beyond its shared memory");
      });
}

}  // namespace fp4moe::emulator
