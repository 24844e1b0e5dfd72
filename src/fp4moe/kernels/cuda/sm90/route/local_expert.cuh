// From the global id of an expert to its index on this rank.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// The index of an expert on this rank, or -1.
__device__ inline std::int32_t local_expert(const CallParams& call, std::uint32_t experts,
                                            std::int32_t id) {
  std::int32_t found = id - call.first_expert;
  if (call.expert_map != nullptr)
    found = id >= 0 && static_cast<std::uint32_t>(id) < call.map_size ? call.expert_map[id] : -1;
  return id >= 0 && found >= 0 && static_cast<std::uint32_t>(found) < experts ? found : -1;
}

}  // namespace fp4moe::kernels::cuda::sm90
