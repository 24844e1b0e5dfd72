// The kernels of the family sm80.
#include "cuda/emulator/kernels.hpp"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"
#include "fp4moe/kernels/cuda/sm90/combine/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/pack/params.hpp"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"

namespace fp4moe::kernels::cuda {

// Dynamic shared memory, by the names that the kernels give it.
using emulator::kSharedBytes;
namespace sm80::grouped_gemm {
alignas(1024) thread_local std::uint8_t stages_memory[kSharedBytes];
}  // namespace sm80::grouped_gemm
extern "C" {
alignas(1024) thread_local std::uint32_t shared[kSharedBytes / 4];
alignas(1024) thread_local float scratch[kSharedBytes / 4];
alignas(1024) thread_local float row_of_h[kSharedBytes / 4];
}

// Names, parameters, shared memory.
// clang-format off
#define FP4MOE_KERNELS(row)                                                                \
  row(prepare, sm90::PrepareParams, scratch)                                               \
  row(gather, sm90::GatherParams, shared)                                                  \
  row(activate, sm90::ActivateParams, row_of_h)                                            \
  row(combine_f32, sm90::CombineParams, none)                                              \
  row(combine_bf16, sm90::CombineParams, none)                                             \
  row(pack, sm90::PackParams, none)                                                        \
  row(route_gather, sm90::RouteGatherParams, shared)                                       \
  row(grouped_gemm_n32_mxfp4, sm80::GroupedGemmParams, sm80::grouped_gemm::stages_memory)  \
  row(grouped_gemm_n64_mxfp4, sm80::GroupedGemmParams, sm80::grouped_gemm::stages_memory)  \
  row(grouped_gemm_n128_mxfp4, sm80::GroupedGemmParams, sm80::grouped_gemm::stages_memory) \
  row(grouped_gemm_n32_nvfp4, sm80::GroupedGemmParams, sm80::grouped_gemm::stages_memory)  \
  row(grouped_gemm_n64_nvfp4, sm80::GroupedGemmParams, sm80::grouped_gemm::stages_memory)  \
  row(grouped_gemm_n128_nvfp4, sm80::GroupedGemmParams, sm80::grouped_gemm::stages_memory)
// clang-format on

#define FP4MOE_DECLARE(name, params, memory) void fp4moe_sm80_##name(params);
extern "C" {
FP4MOE_KERNELS(FP4MOE_DECLARE)
}

}  // namespace fp4moe::kernels::cuda

namespace fp4moe::emulator {
namespace {

namespace cuda = kernels::cuda;
using namespace kernels::cuda;  // NOLINT(google-build-using-namespace): names of the list

constexpr char* none = nullptr;
#define FP4MOE_ROW(name, params, memory) \
  {#name, Call<cuda::fp4moe_sm80_##name>::call, [] { return static_cast<void*>(memory); }},
constexpr KernelRow kKernels[] = {FP4MOE_KERNELS(FP4MOE_ROW)};

}  // namespace

std::string_view prefix() { return "fp4moe_sm80_"; }
std::span<const KernelRow> kernels() { return kKernels; }
std::uintptr_t shared_origin() {
  return reinterpret_cast<std::uintptr_t>(cuda::sm80::grouped_gemm::stages_memory);
}

}  // namespace fp4moe::emulator
