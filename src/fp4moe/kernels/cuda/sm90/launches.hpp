// How the kernels around the products are launched: threads of a block, and how many blocks and
// how much shared memory are worth their while. All of them loop, so any number of blocks computes
// the same; but prepare has a thread for each slot, or a warp for each token that it routes.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kGatherThreads = 256;    // a warp a token, or a part of one
inline constexpr std::uint32_t kActivateThreads = 384;  // a warp 256 columns, or a block a row
inline constexpr std::uint32_t kCombineThreads = 256;   // a warp 256 columns of a token
inline constexpr std::uint32_t kPackThreads = 128;      // a block a record
inline constexpr std::uint32_t kPrepareThreads = 128;   // a warp a token, or 256 columns of one

inline constexpr std::uint32_t kSegment = 256;  // columns that a warp takes at once, 8 a lane

constexpr std::uint32_t at_least_one(std::uint64_t wanted, std::uint64_t most) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, most));
}
constexpr std::uint64_t whole_parts(std::uint64_t size, std::uint64_t part) {
  return (size + part - 1) / part;
}

// Blocks, on a device of so many multiprocessors: as many as run at once, so that the next kernel
// can get ready early.
// `rows`: at most so many.
constexpr std::uint32_t activate_blocks(std::uint64_t rows, std::uint32_t multiprocessors) {
  return at_least_one(rows, multiprocessors * 2ull);
}
// Combine: segments of a row that a warp takes at once, where slots leave it registers for them;
// and blocks for `rows` of the output. Several times as many as run at once: those that begin while
// others still multiply do more.
constexpr std::uint32_t combine_wide(bool is_rounded, std::uint32_t top_k) {
  return is_rounded && top_k <= 4 ? 2 : 1;
}
constexpr std::uint32_t combine_blocks(const Layer& layer, std::uint64_t rows, std::uint32_t wide,
                                       std::uint32_t multiprocessors) {
  const std::uint64_t parts = whole_parts(layer.hidden, std::uint64_t{wide} * kSegment);
  return at_least_one(whole_parts(rows * parts, kCombineThreads / 32), multiprocessors * 12ull);
}
constexpr std::uint32_t pack_blocks(std::uint64_t records, std::uint32_t multiprocessors) {
  return at_least_one(records, multiprocessors * 16ull);
}

// Prepare: blocks that rank slots, a warp a token where it routes, and blocks that round tokens;
// `scratch` is two floats a column for each warp that routes.
constexpr std::uint32_t prepare_rankers(const RouteParams& route, std::uint64_t slots) {
  const std::uint64_t threads = route.columns == 0 ? slots : std::uint64_t{route.tokens} * 32;
  return static_cast<std::uint32_t>(whole_parts(threads, kPrepareThreads));
}
constexpr std::uint32_t prepare_rounders(const Layer& layer, std::uint64_t tokens,
                                         std::uint32_t multiprocessors) {
  const std::uint64_t segments = whole_parts(std::uint64_t{layer.w13.units} * kUnit, kSegment);
  return at_least_one(whole_parts(tokens * segments, kPrepareThreads / 32),
                      multiprocessors * 12ull);
}
constexpr std::uint32_t prepare_shared(std::uint32_t columns) {
  return kPrepareThreads / 32 * 8 * columns;
}

// Gather: shared memory for tables of experts and sums of warps.
constexpr std::uint32_t gather_blocks(const Layer& layer, std::uint64_t tokens,
                                      std::uint32_t multiprocessors) {
  const std::uint64_t segments = whole_parts(std::uint64_t{layer.w13.units} * kUnit, kSegment);
  return at_least_one(whole_parts(tokens * segments, kGatherThreads / 32), multiprocessors * 4ull);
}
constexpr std::uint32_t gather_shared(std::uint32_t experts) {
  return 4 * (3 * experts + 2) + 8 * (kGatherThreads / 32);
}

// Activate: whole rows of h, where something reads them before they are rounded, and A x.
constexpr bool activate_keeps_rows(const Layer& layer, const DeviceLora& lora) {
  return lora.pairs != nullptr || layer.quantise == Quantise::fp8_token;
}
constexpr std::uint32_t activate_shared(const Layer& layer, const DeviceLora& lora) {
  if (!activate_keeps_rows(layer, lora)) return 0;
  return 4 * (layer.w2.units * kUnit + 2 * lora.most_rank);
}

}  // namespace fp4moe::kernels::cuda::sm90
