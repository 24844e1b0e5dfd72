// Which kernels a call runs on a device and how much memory it takes: pure functions of the layer's
// shape, its numerics and the number of tokens. They ask no device and depend on no values.
//
//   path      when
//   nothing   no assignments: the output becomes zeros
//   decode    at most kMaxDecodeTokens tokens in standard rows, summed, without adapters, if
//             the tokens and a pipeline of weights fit into shared memory; not for a rank whose
//             share of h is empty
//   rows      everything else
#pragma once
#include <cstdint>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/sm90/decode/params.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"
#include "fp4moe/moe/cuda/sizes.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

namespace sm90 = kernels::cuda::sm90;

// The layer as kernels see it, without addresses. Rows of w13 fill whole K blocks of w2, at least
// one. Errors: those of check(problem), cuda.limits (too many experts, sizes too large),
// cuda.numerics (weights rounded to bf16, which the reference engine computes).
Result<sm90::LayerParams> describe(const ExpertsProblem& problem);

// The same layer with silu and swigluoai_uninterleave expressed as swigluoai. They are equal where
// the gate is not rounded before the product.
sm90::LayerParams as_swiglu(sm90::LayerParams layer);

// Max shared memory of activate, where it keeps a row of h (LoRA, one scale per row).
inline constexpr std::uint32_t kActivateMaxShared = 224 * 1024;

enum class Path : std::uint8_t { nothing, decode, rows };

struct CallPlan {
  Path path = Path::nothing;
  sm90::DecodeShape decode{};
  bool has_fused_activation = false;  // the epilogue of GEMM1 computes the activation
  bool has_bf16_rows = false;         // GEMM2 writes bf16 instead of float32
  bool is_block_sorted = false;       // every block of the GEMM sorts the assignments
  std::uint32_t tile_tokens = sm90::kMaxTileTokens;
};
CallPlan plan_call(const sm90::LayerParams& layer, const CallSize& size);

// Token tiles that the first two work tiles of every block read. Gather fills them, the deferred
// gather fills the others. `tile`: max tokens of a tile.
std::uint32_t initial_tiles(const sm90::LayerParams& layer, std::uint32_t tile,
                            std::uint32_t blocks);

// Max tokens of a tile. It grows with the mean number of tokens of an expert.
std::uint32_t tile_tokens(const sm90::LayerParams& layer, std::uint64_t assignments);
// Upper bounds for up to 2^28 assignments, however they are routed.
std::uint64_t max_tiles(std::uint64_t assignments, std::uint64_t experts);
std::uint64_t max_rows(std::uint64_t assignments, std::uint64_t experts);

WorkspaceKey workspace_key(const sm90::LayerParams& layer);
// `blocks`: SMs of the device. Errors: cuda.limits (too many assignments, rank too large).
Result<WorkspacePlan> plan_workspace(const sm90::LayerParams& layer, const WorkspaceLimits& limits,
                                     std::uint32_t blocks);

}  // namespace fp4moe::moe::cuda
