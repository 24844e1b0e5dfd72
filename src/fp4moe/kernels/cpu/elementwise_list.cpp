#include "fp4moe/kernels/cpu/elementwise_list.hpp"

namespace fp4moe::kernels::cpu {

// clang-format off
namespace portable { extern const ElementwiseFunctions kElementwise; }
#if defined(__x86_64__)
namespace avx2     { extern const ElementwiseFunctions kElementwise; }
namespace avx512   { extern const ElementwiseFunctions kElementwise; }
#endif
// clang-format on

namespace {

constexpr ElementwiseKernel kElementwiseKernels[] = {
#if defined(__x86_64__)
    {"avx512/elementwise", {CpuFeature::avx2, CpuFeature::avx512}, &avx512::kElementwise},
    {"avx2/elementwise", {CpuFeature::avx2}, &avx2::kElementwise},
#endif
    {"portable/elementwise", {}, &portable::kElementwise},
};

}  // namespace

std::span<const ElementwiseKernel> elementwise_kernels() { return kElementwiseKernels; }

}  // namespace fp4moe::kernels::cpu
