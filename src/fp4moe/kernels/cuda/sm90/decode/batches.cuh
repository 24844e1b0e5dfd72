// Every block routes all tokens for itself and lists the batches: experts and their assignments.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route/router.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// Warps that route: one per token where the scratch memory suffices, one where ids are given.
__device__ inline std::uint32_t router_warps(const DecodeParams& p, std::uint32_t scratch_floats) {
  if (p.route.columns == 0) return 1;
  return min(p.call.tokens, min(kMathWarpgroups * 4, scratch_floats / (2 * p.route.columns)));
}

// `index`: of this warp; from `count` on: it does not route.
struct RouterWarps {
  std::uint32_t count, index;
};

// A token whose weights are computed later.
struct PendingWeights {
  RegisterRow row;
  float* weights = nullptr;  // null: none are pending

  __device__ void finish(const RouteParams& p) const {
    if (weights != nullptr) write_weights(p, row_weight(p, row), weights);
  }
};

// Writes ids and weights of all tokens, given or routed. The weights of a token that its warp has
// alone may be pending. `scratch`: shared memory; `generic`: the parameters without specialization;
// `next`: see list_batches.
__device__ inline PendingWeights find_experts(const DecodeParams& p, const RouteParams& generic,
                                              DecodeHeader& header, float* scratch,
                                              std::uint16_t* next, RouterWarps routers) {
  const std::uint32_t assignments = p.call.tokens * p.call.top_k, threads = routers.count * 32;
  const std::uint32_t thread = routers.index * 32 + threadIdx.x % 32;
  PendingWeights pending;
  for (std::uint32_t e = thread; e < p.layer.experts; e += threads) next[e] = 0;
  if (p.route.columns == 0) {
    for (std::uint32_t s = thread; s < assignments; s += threads) {
      header.ids[s] = p.call.ids[s];
      header.weights[s] = p.call.weights == nullptr ? 1.0f : p.call.weights[s];
    }
    return pending;
  }
  const std::uint32_t t = routers.index;
  if (routers.count == p.call.tokens && fits_registers(p.route) &&
      choose_row_experts(p.route, t, pending.row)) {
    write_ids(p.route, static_cast<std::int32_t>(pending.row.mine.column),
              header.ids + t * p.call.top_k);
    pending.weights = header.weights + t * p.call.top_k;
    return pending;
  }
  for (std::uint32_t token = t; token < p.call.tokens; token += routers.count)
    route_generic(generic, token, scratch + t * 2 * p.route.columns,
                  header.ids + token * p.call.top_k, header.weights + token * p.call.top_k);
  return pending;
}

// Lists the batches: experts, and the assignments of each, in the order of assignments. One warp
// calls; a lane has an assignment. next[expert] is the next free position of its last batch. It is 0
// before the first batch, a multiple of kDecodeTileTokens as after a full batch.
__device__ inline void list_batches(const DecodeParams& p, DecodeHeader& header,
                                    std::uint16_t* next) {
  const std::uint32_t lane = threadIdx.x % 32, assignments = p.call.tokens * p.call.top_k;
  std::uint32_t batches = 0;
  for (std::uint32_t assignment = lane; assignment - lane < assignments; assignment += 32) {
    const std::int32_t expert = assignment < assignments
                                    ? local_expert(p.call, p.layer.experts, header.ids[assignment])
                                    : -1;
    const std::uint32_t same = __match_any_sync(kFullWarp, expert);
    const std::uint32_t before = __popc(same & ((1u << lane) - 1));
    const std::uint32_t known = assignment < 32 || expert < 0 ? 0 : next[expert];
    const std::uint32_t used = known % kDecodeTileTokens, at = used + before;
    const std::uint32_t column = at % kDecodeTileTokens;
    if (assignment >= 32) __syncwarp();  // next[expert] is read before a lane writes it
    const std::uint32_t begins = __ballot_sync(kFullWarp, expert >= 0 && column == 0);
    if (assignment < assignments)
      header.expert_of_assignment[assignment] = static_cast<std::int16_t>(expert);
    if (expert >= 0) {
      // The last batch continues, or a lane of the expert begins a new one: usually the first lane.
      std::uint32_t batch = known / kDecodeTileTokens;
      if (used == 0 || at != column) {
        const std::uint32_t passed = at - column - used;
        const std::uint32_t who = passed == 0 ? __ffs(same) - 1 : __fns(same, 0, passed + 1);
        batch = batches + __popc(begins & ((1u << who) - 1));
      }
      const std::uint32_t position = batch * kDecodeTileTokens + column;
      header.position_of_assignment[assignment] = static_cast<std::uint16_t>(position);
      header.assignments[position] = static_cast<std::uint16_t>(assignment);
      if (column == 0) header.expert[batch] = static_cast<std::int16_t>(expert);
      const bool is_last = same >> lane == 1;
      if (is_last || column + 1 == kDecodeTileTokens)
        header.tokens[batch] = static_cast<std::uint8_t>(column + 1);
      if (is_last) next[expert] = static_cast<std::uint16_t>(position + 1);
    }
    batches += __popc(begins);
    __syncwarp();
  }
  if (lane == 0) header.batches = batches;
  __syncwarp();
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
