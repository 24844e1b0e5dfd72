// Logits become ids and weights: a warp a token.
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route.cuh"

namespace fp4moe::kernels::cuda::sm90 {

extern "C" __global__ void __launch_bounds__(kRouteThreads)
    fp4moe_sm90_route(const __grid_constant__ RouteParams p) {
  constexpr std::uint32_t kWarps = kRouteThreads / 32;
  __shared__ __align__(8) float scratch[kWarps][2 * kMostExperts];
  let_next_begin();
  wait_for_previous();
  const std::uint32_t warp = threadIdx.x / 32;
  for (std::uint64_t token = blockIdx.x * kWarps + warp; token < p.tokens;
       token += gridDim.x * kWarps)
    route_token(p, static_cast<std::uint32_t>(token), scratch[warp], p.ids + token * p.top_k,
                p.weights + token * p.top_k);
}

}  // namespace fp4moe::kernels::cuda::sm90
