// Our own kernels for Hopper. They are compiled for exactly one architecture, sm_90a.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/own_kernels.hpp"

namespace fp4moe::backends::cuda_native {
namespace {

constexpr CapabilityRange kHopper[] = {exactly(9, 0)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kHopper}};

constexpr ExpertsClass kMonolithic = not_batch_invariant(
    own_monolithic("Sm90ExpertsMonolithic", kDevices,
                   {Routing::softmax_topk, Routing::renormalize, Routing::deepseek_v3,
                    Routing::llama4, Routing::renormalize_naive, Routing::topk,
                    Routing::sigmoid_renorm, Routing::minimax2, Routing::sigmoid}));
constexpr ExpertsClass kModular = not_batch_invariant(own_kernel("Sm90Experts", kDevices));
constexpr ExpertsClass kBatched =
    not_batch_invariant(own_kernel("BatchedSm90Experts", kDevices, TokenFormat::batched));
constexpr const ExpertsClass* kList[] = {&kMonolithic, &kModular, &kBatched};

constexpr Rounding kRounding[] = {{.intermediate = 64, .hidden = 64}};

constexpr Backend kBackends[] = {
    own_backend("NATIVE_SM90", "cuda_native", WeightFormat::mxfp4, kList, kRounding,
                "native_sm90.mxfp4"),
    own_backend("NATIVE_SM90", "cuda_native", WeightFormat::nvfp4, kList, kRounding,
                "native_sm90.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::cuda_native
