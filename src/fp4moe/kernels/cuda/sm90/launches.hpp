// How the kernels around the products are launched: threads of a block, and how many blocks and
// how much shared memory are worth their while. All of them loop, so any number of blocks computes
// the same; sort is one block.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kRouteThreads = 128;     // a warp a token
inline constexpr std::uint32_t kSortThreads = 1024;     // one block
inline constexpr std::uint32_t kGatherThreads = 256;    // a warp a token, or a part of one
inline constexpr std::uint32_t kActivateThreads = 384;  // a block a row
inline constexpr std::uint32_t kCombineThreads = 256;   // a warp 256 columns of a token
inline constexpr std::uint32_t kPackThreads = 128;      // a block a record

inline constexpr std::uint32_t kSegment = 256;  // columns that a warp takes at once, 8 a lane

constexpr std::uint32_t at_least_one(std::uint64_t wanted, std::uint64_t most) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(wanted, 1, most));
}
constexpr std::uint64_t whole_parts(std::uint64_t size, std::uint64_t part) {
  return (size + part - 1) / part;
}

// Blocks, on a device of so many multiprocessors: as many as run at once, so that the next kernel
// can get ready early.
constexpr std::uint32_t route_blocks(std::uint64_t tokens, std::uint32_t multiprocessors) {
  return at_least_one(whole_parts(tokens, kRouteThreads / 32), multiprocessors * 7ull);
}
constexpr std::uint32_t gather_blocks(const Layer& layer, std::uint64_t tokens,
                                      std::uint32_t multiprocessors) {
  const std::uint64_t segments = whole_parts(std::uint64_t{layer.w13.units} * kUnit, kSegment);
  return at_least_one(whole_parts(tokens * segments, kGatherThreads / 32), multiprocessors * 4ull);
}
// `rows`: at most so many.
constexpr std::uint32_t activate_blocks(std::uint64_t rows, std::uint32_t multiprocessors) {
  return at_least_one(rows, multiprocessors * 2ull);
}
// `rows`: of the output.
constexpr std::uint32_t combine_blocks(const Layer& layer, std::uint64_t rows,
                                       std::uint32_t multiprocessors) {
  const std::uint64_t segments = whole_parts(layer.hidden, kSegment);
  return at_least_one(whole_parts(rows * segments, kCombineThreads / 32), multiprocessors * 3ull);
}
constexpr std::uint32_t pack_blocks(std::uint64_t records, std::uint32_t multiprocessors) {
  return at_least_one(records, multiprocessors * 16ull);
}

// Sort: counts of `ranges` warps for each expert, tables of experts, and rows on their way to
// memory, as many as fit.
constexpr std::uint32_t sort_ranges(std::uint32_t experts) {
  return experts <= 256 ? 32 : experts <= 512 ? 16 : 8;
}
inline constexpr std::uint32_t kSortTables = 128;  // words in front
constexpr std::uint32_t sort_fixed_words(std::uint32_t experts) {
  return kSortTables + sort_ranges(experts) * experts + 4 * (experts + 1);
}
inline constexpr std::uint32_t kSortMostShared = 224 * 1024;
constexpr std::uint32_t sort_held_rows(std::uint32_t experts, std::uint64_t slots) {
  const std::uint64_t room = kSortMostShared / 4 - sort_fixed_words(experts);
  const std::uint64_t rows = slots + 7 * std::min<std::uint64_t>(slots, experts);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>((rows + 7) / 8 * 8, room / 8 * 8));
}
constexpr std::uint32_t sort_shared(std::uint32_t experts, std::uint64_t slots) {
  return 4 * (sort_fixed_words(experts) + sort_held_rows(experts, slots));
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
