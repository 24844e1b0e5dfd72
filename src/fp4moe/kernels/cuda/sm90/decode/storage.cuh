// Roles, named barriers and shared memory of a block of the decode kernel. Byte offsets are those of
// DecodeSharedStorage in params.hpp.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/decode/params.hpp"
#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

using Storage = DecodeSharedStorage;

inline constexpr std::uint32_t kMathWarpgroups = kDecodeMathWarpgroups;
inline constexpr std::uint32_t kMathThreads = kMathWarpgroups * 128;
inline constexpr std::uint32_t kEpilogueThreads = 96;
inline constexpr std::uint32_t kWorkers = kMathThreads + kEpilogueThreads;  // all but the loader

// The role of a warp.
enum class Role : std::uint32_t {
  math,      // 16 warps
  loader,    // 1 warp
  epilogue,  // 3 warps
};
// Roles have neighboring warps, in their order.
consteval std::uint32_t first_warp(Role role) {
  switch (role) {
    case Role::math:
      return 0;
    case Role::loader:
      return kMathThreads / 32;
    case Role::epilogue:
      return kMathThreads / 32 + 1;
  }
  return 0;
}
// The index of this thread among the workers.
__device__ inline std::uint32_t worker() {
  return threadIdx.x < kMathThreads ? threadIdx.x : threadIdx.x - 32;
}

// Named barriers. 0 is __syncthreads.
enum NamedBarrier : std::uint32_t {
  kWorkersBarrier = 1,    // all workers
  kBatchesBarrier,        // the batches are listed: first router warp, loader
  kRoutersBarrier,        // all router warps have their ids
  kRouterWeightsBarrier,  // the router's weights are written
  kPartialsBarrier,       // math warps have filled buffer 0 of the partial sums; + 1: buffer 1
};

inline constexpr std::uint32_t kMaxAssignments = kMaxDecodeTokens * kMaxTopK;

// At the beginning of shared memory. A batch is an expert and at most kDecodeTileTokens of its
// assignments, each in a fixed position.
struct DecodeHeader {
  std::uint64_t full[Storage::kMaxStages], empty[Storage::kMaxStages];  // mbarriers of the stages
  std::uint64_t partials_empty[2];                                      // mbarriers of the buffers
  std::uint32_t batches;
  union {
    std::int32_t ids[kMaxAssignments];  // until the batches are listed
    float factors[kMaxAssignments];     // then: of the sums of GEMM2
  };
  float weights[kMaxAssignments];                         // the router's, then as they are applied
  std::int16_t expert_of_assignment[kMaxAssignments];     // local; -1: not on this rank
  std::uint16_t position_of_assignment[kMaxAssignments];  // batch * kDecodeTileTokens + column
  std::uint16_t assignments[kMaxAssignments * kDecodeTileTokens];  // by position
  std::int16_t expert[kMaxAssignments];                            // of each batch
  std::uint8_t tokens[kMaxAssignments];                            // of each batch

  __device__ std::uint32_t assignment(std::uint32_t batch, std::uint32_t i) const {
    return assignments[batch * kDecodeTileTokens + i];
  }
};
static_assert(sizeof(DecodeHeader) + Storage::kAlignment <= Storage::kHeaderBytes);

// MXFP4 weights are not scaled, tokens are prescaled: see dequantize.cuh.
template <class Format>
inline constexpr bool kIsPrescaled = !Format::kIsNvfp4;

// Values that all roles share.
struct Block {
  DecodeHeader& header;
  std::uint32_t tokens;  // address of the token tile: [k_block][tokens][128 bytes]
  std::uint32_t stages;  // address of the first stage
  float* partials;       // [2][warpgroups][kDecodeTileTokens][kPartialStride]
  std::uint32_t epoch;   // number of this launch, from 1 on
  bool is_prescaled;
};

}  // namespace fp4moe::kernels::cuda::sm90::decode
