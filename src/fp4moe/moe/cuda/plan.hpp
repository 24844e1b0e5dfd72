// What a call does on a device and how much memory that takes: pure functions of the layer's
// shape, its numerics and the number of tokens. No device is asked, nothing depends on values.
//
//   path      when
//   nothing   no slots: the output becomes zeros
//   decode    at most kDecodeTokens tokens in standard rows, summed, without adapters, where an
//             expert's tokens and a ring of weights fit into shared memory; not for a rank whose
//             share of h is empty
//   rows      everything else
#pragma once
#include <cstdint>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/moe/cuda/sizes.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

namespace sm90 = kernels::cuda::sm90;

// The layer as kernels see it, but for its addresses. Groups and units of both matrices fit each
// other: rows of w13 fill whole units of w2's columns, at least one. Errors: those of
// check(problem), cuda.limits (more experts or larger sizes than kernels count), cuda.numerics
// (weights rounded to bf16, which the reference engine computes).
Result<sm90::Layer> describe(const ExpertsProblem& problem);

// The same layer with SiLU and SwiGLU of halves in the words of SwiGLU-OAI, which has both of them:
// where nothing between gate and product is rounded there is no difference.
sm90::Layer as_swiglu(sm90::Layer layer);

// Shared memory that adapters and scales of whole rows may take, which keep a row of h.
inline constexpr std::uint32_t kActivateMostShared = 224 * 1024;

enum class Path : std::uint8_t { nothing, decode, rows };

struct CallPlan {
  Path path = Path::nothing;
  sm90::DecodeShape decode{};
  bool fuses = false;   // the first product's epilogue computes the activation
  bool rounds = false;  // the second product leaves bf16 instead of float32
  bool sorts = false;   // products sort for themselves
  std::uint32_t tile_tokens = sm90::kTileTokens;
};
CallPlan plan_call(const sm90::Layer& layer, const CallSize& size);

// Tiles of the first two pieces of every block of a product, of at most `tile` tokens, on so many
// multiprocessors.
std::uint32_t first_tiles(const sm90::Layer& layer, std::uint32_t tile, std::uint32_t blocks);

// Tokens of a tile, at most: the more an expert has on average, the more.
std::uint32_t tile_tokens(const sm90::Layer& layer, std::uint64_t slots);
// Rows and tiles that so many slots, at most 2^28, become at most, however they are routed.
std::uint64_t most_tiles(std::uint64_t slots, std::uint64_t experts);
std::uint64_t most_rows(std::uint64_t slots, std::uint64_t experts);

WorkspaceKey workspace_key(const sm90::Layer& layer);
// `blocks`: multiprocessors of the device. Errors: cuda.limits (more slots than kernels count,
// ranks too large).
Result<WorkspacePlan> plan_workspace(const sm90::Layer& layer, const WorkspaceLimits& limits,
                                     std::uint32_t blocks);

}  // namespace fp4moe::moe::cuda
