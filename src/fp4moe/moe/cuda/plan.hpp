// Which kernels a call runs on a device and how much memory it takes: pure functions of the layer's
// shape, its numerics, the number of tokens and the kernels' family. They ask no device. One fact
// about values counts: FP8 kernels are chosen if every row of the weights fits into E4M3, which is
// found when the layer is loaded.
//
//   path      when
//   nothing   no assignments: the output becomes zeros
//   decode    sm90: at most kMaxDecodeTokens tokens in standard rows, summed, without adapters, if
//             the tokens and a pipeline of weights fit into shared memory; not for a rank whose
//             share of h is empty
//   rows      everything else
#pragma once
#include <cstdint>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/kernels/cuda/sm80/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/decode/params.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"
#include "fp4moe/moe/cuda/sizes.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

namespace sm90 = kernels::cuda::sm90;
namespace sm80 = kernels::cuda::sm80;
using kernels::cuda::Family;

// Max dynamic shared memory of activate, where it keeps a row of h (LoRA, one scale per row). It
// also has static shared memory.
inline constexpr std::uint32_t kActivateMaxShared = 224 * 1024;
constexpr std::uint64_t activate_max_shared(std::uint64_t device_shared_bytes) {
  constexpr std::uint64_t kStatic = 3 * 1024;
  const std::uint64_t left = device_shared_bytes < kStatic ? 0 : device_shared_bytes - kStatic;
  return left < kActivateMaxShared ? left : kActivateMaxShared;
}

// The layer as kernels see it, without addresses. Rows of w13 fill whole K blocks of w2, at least
// one. `activate_shared`: activate_max_shared of the device. Errors: those of check(problem),
// cuda.limits (too many experts, sizes too large), cuda.numerics (weights rounded to bf16, which the
// reference engine computes).
Result<sm90::LayerParams> describe(const ExpertsProblem& problem,
                                   std::uint64_t activate_shared = kActivateMaxShared);

// The same layer with silu and swigluoai_uninterleave expressed as swigluoai. They are equal where
// the gate is not rounded before GEMM2.
sm90::LayerParams as_swiglu(sm90::LayerParams layer);

enum class Path : std::uint8_t { nothing, decode, rows };

struct CallPlan {
  Path path = Path::nothing;
  sm90::DecodeShape decode{};
  bool is_fp8 = false;                // GEMMs on FP8 tensor cores, see computes_in_fp8
  bool has_fused_activation = false;  // the epilogue of GEMM1 computes the activation
  bool has_bf16_rows = false;         // GEMM2 writes bf16 instead of float32
  bool is_block_sorted = false;       // every block of the GEMM sorts the assignments
  std::uint32_t tile_tokens = sm90::kMaxTileTokens;
  float prescale = 1;  // of tokens, see activation_prescale
};
CallPlan plan_call(const sm90::LayerParams& layer, const CallSize& size,
                   Family family = Family::sm90, DeviceLayerOptions options = {});

// True if there are kernels on FP8 tensor cores for such a layer, whatever its weights: MXFP4, activations
// in E4M3 with a scale for each token or for every 128 columns, and an activation function that the
// epilogue of GEMM1 has. h is rounded to bf16 before it is quantized. With one scale for all tokens the
// kernels for bf16 are as fast: their epilogue quantizes h.
bool has_fp8_kernels(const sm90::LayerParams& layer, Family family = Family::sm90);
// True if calls of many tokens use them: every row of the weights fits into E4M3.
bool computes_in_fp8(const sm90::LayerParams& layer, Family family = Family::sm90);

// Token tiles that the first two work tiles of every block read. Gather fills them, the deferred
// gather fills the others. `tile`: max tokens of a tile.
std::uint32_t initial_tiles(const sm90::LayerParams& layer, std::uint32_t tile,
                            std::uint32_t blocks);

// Max tokens of a tile. It grows with the mean number of tokens of an expert.
std::uint32_t tile_tokens(const sm90::LayerParams& layer, std::uint64_t assignments,
                          Family family = Family::sm90);
// Upper bounds for up to 2^28 assignments, however they are routed.
std::uint64_t max_tiles(std::uint64_t assignments, std::uint64_t experts);
std::uint64_t max_rows(std::uint64_t assignments, std::uint64_t experts);

WorkspaceKey workspace_key(const sm90::LayerParams& layer, Family family = Family::sm90);

// The properties of a device that a workspace depends on.
struct DeviceLimits {
  std::uint32_t blocks = 0;  // SMs
  Family family = Family::sm90;
  std::uint64_t activate_shared = kActivateMaxShared;
};
DeviceLimits limits_of(const kernels::cuda::Device& device);
// Errors: cuda.limits (too many assignments, rank too large).
Result<WorkspacePlan> plan_workspace(const sm90::LayerParams& layer, const WorkspaceLimits& limits,
                                     const DeviceLimits& device);

}  // namespace fp4moe::moe::cuda
