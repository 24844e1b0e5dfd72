// How the kernels around the products are launched: threads of a block, and how many blocks and
// how much shared memory are worth their while. All of them loop, so any number of blocks computes
// the same; but sort has a block for each chunk of slots.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kSortThreads = 1024;     // a warp a token, then a stretch of slots
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

// Sort: slots of a block, those of whole tokens: a warp each that need not share its scheduler, and
// more where blocks would be too many for others to add up what they counted: by stretches of some
// blocks, and what is left by blocks.
inline constexpr std::uint32_t kSortBlocks = 130, kSortTokens = 4, kStretch = 12;
static_assert(kSortBlocks <= kStretch * kStretch);
constexpr std::uint32_t sort_chunk(std::uint64_t tokens, std::uint32_t top_k) {
  const std::uint64_t each = std::max<std::uint64_t>(whole_parts(tokens, kSortBlocks), kSortTokens);
  return static_cast<std::uint32_t>(each * top_k);
}
// Of so many tokens or fewer.
constexpr std::uint32_t sort_most_blocks(std::uint64_t tokens) {
  return at_least_one(whole_parts(tokens, kSortTokens), kSortBlocks);
}
// Batches come sorted, as if by one.
constexpr std::uint32_t sort_blocks(const Call& call) {
  if (call.counts != nullptr) return 1;
  const std::uint64_t slots = std::uint64_t{call.tokens} * call.top_k;
  return at_least_one(whole_parts(slots, std::max(sort_chunk(call.tokens, call.top_k), 1u)),
                      kSortBlocks);
}
constexpr std::uint32_t stretches_of(std::uint32_t chunks) {
  return (chunks + kStretch - 1) / kStretch;
}
// Gather: as many blocks for each chunk, and shared memory for tables of experts, what is in front
// of the chunk, and sums of warps.
constexpr std::uint32_t gather_blocks(const Layer& layer, std::uint64_t tokens,
                                      std::uint32_t chunks, std::uint32_t multiprocessors) {
  const std::uint64_t segments = whole_parts(std::uint64_t{layer.w13.units} * kUnit, kSegment);
  const std::uint64_t warps = whole_parts(tokens, chunks) * segments;
  return chunks * at_least_one(whole_parts(warps, kGatherThreads / 32),
                               std::max(multiprocessors * 4ull / chunks, 1ull));
}
constexpr std::uint32_t gather_shared(std::uint32_t experts) {
  return 4 * (4 * experts + 2) + 8 * (kGatherThreads / 32);
}
// Ids, counts of every warp for each expert, and two floats a column for as many warps that route
// as there is room for.
inline constexpr std::uint32_t kSortNearIds = 2048;
constexpr std::uint32_t sort_words(std::uint32_t experts) {
  return kSortNearIds + kSortThreads / 32 * experts;
}
inline constexpr std::uint32_t kSortScratch = 64 * 1024;  // bytes
constexpr std::uint32_t sort_routers(std::uint32_t columns) {
  return columns == 0 ? 0 : std::min(kSortThreads / 32, kSortScratch / (8 * columns));
}
constexpr std::uint32_t sort_shared(std::uint32_t experts, std::uint32_t columns) {
  return 4 * sort_words(experts) + sort_routers(columns) * 8 * columns;
}
inline constexpr std::uint32_t kSortMostShared = 4 * sort_words(kMostExperts) + kSortScratch;

// Activate: whole rows of h, where something reads them before they are rounded, and A x.
constexpr bool activate_keeps_rows(const Layer& layer, const DeviceLora& lora) {
  return lora.pairs != nullptr || layer.quantise == Quantise::fp8_token;
}
constexpr std::uint32_t activate_shared(const Layer& layer, const DeviceLora& lora) {
  if (!activate_keeps_rows(layer, lora)) return 0;
  return 4 * (layer.w2.units * kUnit + 2 * lora.most_rank);
}

}  // namespace fp4moe::kernels::cuda::sm90
