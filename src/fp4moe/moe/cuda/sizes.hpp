// The size of a call, and the memory that is reserved for calls. plan.hpp computes a plan from them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "fp4moe/moe/experts.hpp"

namespace fp4moe::moe::cuda {

// The path depends on these.
struct CallSize {
  std::uint64_t tokens = 0, top_k = 0;  // batches: experts * capacity, 1
  OutputForm form = OutputForm::summed;
  bool has_adapters = false;
  bool in_float32 = false;    // the output
  bool is_batched = false;    // the input
  bool is_quantized = false;  // x holds decoded values

  std::uint64_t assignments() const { return tokens * top_k; }
};

// Paths that a layer may take.
struct DeviceLayerOptions {
  bool allow_decode = true;  // false: few tokens also take the path `rows`
  bool allow_fp8 = true;     // false: FP8 activations are multiplied in bf16, too
};

// The largest calls that memory is reserved for.
struct WorkspaceLimits {
  std::uint64_t tokens = 0, top_k = 1;
  std::uint64_t capacity = 0;  // rows of each expert in batches; 0: no batches
  std::uint64_t max_rank = 0;  // of adapters; 0: no adapters

  std::uint64_t assignments(std::uint64_t experts) const;
};

// Regions of the workspace, each aligned to this.
inline constexpr std::uint64_t kMemoryAlignment = 256;
enum class Region : std::uint8_t {
  // clang-format off
  weights,     // of tokens that are routed on the device
  tiles, tile_count, tile_progress, combine_signals,  // tile_count: and the work counters
  rank_of_assignment, expert_counts,
  row_of_assignment, assignment_of_row, expert_of_row, tile_of_row_group,
  block_sort,  // tables of blocks that sort
  x,           // tokens in tiles, or converted
  h,           // the activation's output in tiles
  h_fp8, token_scales,  // h in E4M3, and the scales of x's and h's rows
  y,           // rows of GEMM2
  raw,         // rows of GEMM1, where its epilogue does not compute the activation
  low,         // A_down h of adapters
  partial_sums, hidden, gemm2_sums, counters,         // of decode
  // clang-format on
};
inline constexpr std::size_t kRegions = static_cast<std::size_t>(Region::counters) + 1;

struct WorkspacePlan {
  std::array<std::uint64_t, kRegions> at{}, bytes{};
  std::uint64_t total = 0;
};
// The properties of a layer that the regions depend on. No values of weights: layers of the same sizes
// share a workspace.
struct WorkspaceKey {
  std::uint32_t experts = 0, hidden = 0;
  std::uint32_t w13_m_blocks = 0, w13_k_blocks = 0;
  std::uint32_t w2_m_blocks = 0, w2_k_blocks = 0;
  bool has_fused_activation = false, needs_raw = false, has_fp8_kernels = false;

  friend bool operator==(const WorkspaceKey&, const WorkspaceKey&) = default;
};

}  // namespace fp4moe::moe::cuda
