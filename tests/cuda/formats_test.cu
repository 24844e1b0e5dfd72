// The number formats compiled for the device and compared, for every one of the 2^32 float32
// patterns, with the conversions CUDA itself offers. Exit 77: no device, the test is skipped.
#include <cstdint>
#include <cstdio>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e5m2.hpp"
#include "fp4moe/formats/e8m0.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::formats {
namespace {

constexpr int kChecks = 7;
constexpr const char* kNames[kChecks] = {"E2M1", "E4M3FN", "E5M2", "E8M0 up", "E8M0 toward zero",
                                         "BF16", "F16"};

struct Difference {
  unsigned long long count;
  std::uint32_t input;
};

__device__ void compare(Difference* differences, int check, std::uint32_t input, unsigned ours,
                        unsigned theirs) {
  if (ours == theirs) return;
  if (atomicAdd(&differences[check].count, 1ull) == 0) differences[check].input = input;
}

// Two NaN with other payloads are the same answer.
__device__ unsigned one_nan(std::uint16_t code, unsigned infinity) {
  return (code & 0x7FFFu) > infinity ? 0x7FFFu : code;
}

__global__ void check_all(Difference* differences) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i >> 32 == 0;
       i += step) {
    const auto bits = static_cast<std::uint32_t>(i);
    const float x = __uint_as_float(bits);
    compare(differences, 0, bits, E2m1::encode(x),
            __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest));
    compare(differences, 1, bits, E4m3fn::encode(x),
            __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
    compare(differences, 2, bits, E5m2::encode(x),
            __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2));
    compare(differences, 3, bits, E8m0::encode_up(x),
            __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf));
    compare(differences, 4, bits, E8m0::encode_down(x),
            __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero));
    compare(differences, 5, bits, one_nan(Bf16::encode(x), 0x7F80),
            one_nan(__bfloat16_as_ushort(__float2bfloat16_rn(x)), 0x7F80));
    compare(differences, 6, bits, one_nan(F16::encode(x), 0x7C00),
            one_nan(__half_as_ushort(__float2half_rn(x)), 0x7C00));
  }
}

bool works(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return true;
  std::printf("%s: %s\n", what, cudaGetErrorString(status));
  return false;
}

int run() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  Difference* on_device = nullptr;
  Difference found[kChecks] = {};
  if (!works(cudaMalloc(&on_device, sizeof found), "cudaMalloc")) return 1;
  if (!works(cudaMemset(on_device, 0, sizeof found), "cudaMemset")) return 1;
  check_all<<<2048, 256>>>(on_device);
  if (!works(cudaGetLastError(), "launch")) return 1;
  if (!works(cudaMemcpy(found, on_device, sizeof found, cudaMemcpyDeviceToHost), "cudaMemcpy"))
    return 1;
  int failed = 0;
  for (int i = 0; i < kChecks; ++i) {
    std::printf("%-18s %llu of 2^32 differ", kNames[i], found[i].count);
    if (found[i].count != 0) std::printf(", e.g. 0x%08x", found[i].input);
    std::puts("");
    failed += found[i].count != 0;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace fp4moe::formats

int main() { return fp4moe::formats::run(); }
