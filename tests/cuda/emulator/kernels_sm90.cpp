// The kernels for Hopper.
#include "cuda/emulator/kernels.hpp"
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"
#include "fp4moe/kernels/cuda/sm90/combine/params.hpp"
#include "fp4moe/kernels/cuda/sm90/decode/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather/params.hpp"
#include "fp4moe/kernels/cuda/sm90/gather_fp8/params.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/params.hpp"
#include "fp4moe/kernels/cuda/sm90/pack/params.hpp"
#include "fp4moe/kernels/cuda/sm90/quantize_hidden/params.hpp"
#include "fp4moe/kernels/cuda/sm90/route/params.hpp"
#include "fp4moe/kernels/cuda/sm90/row_scales/params.hpp"

namespace fp4moe::kernels::cuda {

// Dynamic shared memory, by the names that the kernels give it.
using emulator::kSharedBytes;
namespace sm90::grouped_gemm {
alignas(1024) thread_local std::uint8_t memory[kSharedBytes];
}  // namespace sm90::grouped_gemm
namespace sm90::grouped_gemm_fp8 {
alignas(1024) thread_local std::uint8_t memory[kSharedBytes];
}  // namespace sm90::grouped_gemm_fp8
namespace sm90::decode {
alignas(1024) thread_local std::uint8_t bytes[kSharedBytes];
}  // namespace sm90::decode
extern "C" {
alignas(1024) thread_local std::uint32_t shared[kSharedBytes / 4];
alignas(1024) thread_local float scratch[kSharedBytes / 4];
alignas(1024) thread_local float row_of_h[kSharedBytes / 4];
}

// Names, parameters, shared memory.
// clang-format off
#define FP4MOE_KERNELS(row)                                                                 \
  row(prepare, sm90::PrepareParams, scratch)                                                \
  row(gather, sm90::GatherParams, shared)                                                   \
  row(activate, sm90::ActivateParams, row_of_h)                                             \
  row(combine_f32, sm90::CombineParams, none)                                               \
  row(combine_bf16, sm90::CombineParams, none)                                              \
  row(pack, sm90::PackParams, none)                                                         \
  row(gather_fp8, sm90::GatherFp8Params, shared)                                            \
  row(quantize_hidden, sm90::QuantizeHiddenParams, none)                                    \
  row(row_scales, sm90::RowScalesParams, none)                                              \
  row(grouped_gemm_fp8_token_n64, sm90::GroupedGemmParams, sm90::grouped_gemm_fp8::memory)  \
  row(grouped_gemm_fp8_token_n160, sm90::GroupedGemmParams, sm90::grouped_gemm_fp8::memory) \
  row(grouped_gemm_fp8_block_n160, sm90::GroupedGemmParams, sm90::grouped_gemm_fp8::memory) \
  row(grouped_gemm_n32_mxfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)          \
  row(grouped_gemm_n64_mxfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)          \
  row(grouped_gemm_n88_mxfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)          \
  row(grouped_gemm_n128_mxfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)         \
  row(grouped_gemm_n192_mxfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)         \
  row(decode_generic_mxfp4, sm90::DecodeParams, sm90::decode::bytes)                        \
  row(decode_bf16_mxfp4, sm90::DecodeParams, sm90::decode::bytes)                           \
  row(decode_quantized_mxfp4, sm90::DecodeParams, sm90::decode::bytes)                      \
  row(grouped_gemm_n32_nvfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)          \
  row(grouped_gemm_n64_nvfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)          \
  row(grouped_gemm_n88_nvfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)          \
  row(grouped_gemm_n128_nvfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)         \
  row(grouped_gemm_n192_nvfp4, sm90::GroupedGemmParams, sm90::grouped_gemm::memory)         \
  row(decode_generic_nvfp4, sm90::DecodeParams, sm90::decode::bytes)                        \
  row(decode_bf16_nvfp4, sm90::DecodeParams, sm90::decode::bytes)                           \
  row(decode_quantized_nvfp4, sm90::DecodeParams, sm90::decode::bytes)
// clang-format on

#define FP4MOE_DECLARE(name, params, memory) void fp4moe_sm90_##name(params);
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
  {#name, Call<cuda::fp4moe_sm90_##name>::call, [] { return static_cast<void*>(memory); }},
constexpr KernelRow kKernels[] = {FP4MOE_KERNELS(FP4MOE_ROW)};

}  // namespace

std::string_view prefix() { return "fp4moe_sm90_"; }
std::span<const KernelRow> kernels() { return kKernels; }
std::uintptr_t shared_origin() {
  return reinterpret_cast<std::uintptr_t>(cuda::sm90::grouped_gemm::memory);
}

}  // namespace fp4moe::emulator
