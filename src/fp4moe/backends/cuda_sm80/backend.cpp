// Our own kernels for every NVIDIA GPU since Ampere: mma.sync with BF16 operands, which 8.0 brought.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/own_kernels.hpp"

namespace fp4moe::backends::cuda_sm80 {
namespace {

constexpr CapabilityRange kSinceAmpere[] = {at_least(8, 0)};
constexpr DeviceNeed kDevices[] = {{.kinds = kCuda, .capabilities = kSinceAmpere}};

constexpr ExpertsClass kMonolithic = not_batch_invariant(
    own_monolithic("Sm80ExpertsMonolithic", kDevices,
                   {Routing::softmax_topk, Routing::renormalize, Routing::deepseek_v3,
                    Routing::llama4, Routing::renormalize_naive, Routing::topk,
                    Routing::sigmoid_renorm, Routing::minimax2, Routing::sigmoid}));
constexpr ExpertsClass kModular = not_batch_invariant(own_kernel("Sm80Experts", kDevices));
constexpr ExpertsClass kBatched =
    not_batch_invariant(own_kernel("BatchedSm80Experts", kDevices, TokenFormat::batched));
constexpr const ExpertsClass* kList[] = {&kMonolithic, &kModular, &kBatched};

constexpr Rounding kRounding[] = {{.intermediate = 64, .hidden = 64}};

constexpr Backend kBackends[] = {
    own_backend("NATIVE_SM80", "cuda_sm80", WeightFormat::mxfp4, kList, kRounding,
                "native_sm80.mxfp4"),
    own_backend("NATIVE_SM80", "cuda_sm80", WeightFormat::nvfp4, kList, kRounding,
                "native_sm80.nvfp4"),
};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

}  // namespace fp4moe::backends::cuda_sm80
