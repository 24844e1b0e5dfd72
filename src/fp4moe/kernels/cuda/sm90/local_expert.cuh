// Which of a rank's experts an id is.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// The position of an expert on this rank, or -1.
__device__ inline std::int32_t local_expert(const Call& call, std::uint32_t experts,
                                            std::int32_t id) {
  std::int32_t found = id - call.first_expert;
  if (call.expert_map != nullptr)
    found = id >= 0 && static_cast<std::uint32_t>(id) < call.map_size ? call.expert_map[id] : -1;
  return id >= 0 && found >= 0 && static_cast<std::uint32_t>(found) < experts ? found : -1;
}

}  // namespace fp4moe::kernels::cuda::sm90
