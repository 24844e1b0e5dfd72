// Every one of the 2^32 float32 patterns, encoded by us and by CUDA.
#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "formats.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::formats {
namespace {

__device__ void compare(Difference& difference, std::uint32_t input, unsigned ours,
                        unsigned theirs) {
  if (ours == theirs) return;
  if (atomicAdd(&difference.count, 1ull) == 0) difference.input = input;
}

// Two NaN with other payloads are the same answer.
__device__ unsigned one_nan(std::uint16_t code, unsigned infinity) {
  return (code & 0x7FFFu) > infinity ? 0x7FFFu : code;
}

}  // namespace

extern "C" __global__ void fp4moe_test_formats(__grid_constant__ const CheckParams params) {
  Difference* const to = params.differences;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i >> 32 == 0;
       i += step) {
    const auto bits = static_cast<std::uint32_t>(i);
    const float x = __uint_as_float(bits);
    compare(to[0], bits, E2m1::encode(x), __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest));
    compare(to[1], bits, E4m3fn::encode(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
    compare(to[2], bits, E5m2::encode(x), __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2));
    compare(to[3], bits, E8m0::encode_up(x),
            __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf));
    compare(to[4], bits, E8m0::encode_down(x),
            __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero));
    compare(to[5], bits, one_nan(Bf16::encode(x), 0x7F80),
            one_nan(__bfloat16_as_ushort(__float2bfloat16_rn(x)), 0x7F80));
    compare(to[6], bits, one_nan(F16::encode(x), 0x7C00),
            one_nan(__half_as_ushort(__float2half_rn(x)), 0x7C00));
  }
}

}  // namespace fp4moe::formats
