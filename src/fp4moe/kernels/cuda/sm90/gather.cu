// Tokens into tiles: a warp reads a token, or a part of it where there are more warps than tokens,
// rounds it to what the backend computes with, and writes it into the row of each of its slots.
// Which row that is it leaves in tables for the kernels behind.
//
//   x [tokens, hidden] ─► 8 columns a lane ─► [quantised, read back] ─► 16 bytes into k tiles
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// Where a slot is computed; -1: nowhere here.
struct SlotRow {
  std::int32_t expert = -1, row = -1;
};

__device__ SlotRow row_of(const GatherParams& p, std::uint32_t slot) {
  const Call& call = p.call;
  std::uint32_t expert = 0, rank = 0, chunk = 0;
  if (call.counts != nullptr) {  // position i of an expert is its row i
    expert = slot / call.capacity;
    rank = slot - expert * call.capacity;
    if (static_cast<std::int32_t>(rank) >= call.counts[expert]) return {};
  } else {
    const std::int32_t both = p.sorted.rank_of_slot[slot];
    if (both < 0) return {};
    expert = expert_of(both);
    rank = rank_of(both);
    chunk = slot / sort_chunk(call.tokens, call.top_k);
  }
  const std::uint32_t row = p.sorted.first_rows[chunk * p.layer.experts + expert] + rank;
  return {static_cast<std::int32_t>(expert), static_cast<std::int32_t>(row)};
}

// A token's slots, one a lane.
struct GatherSlot {
  std::int32_t row = -1;
  float global = 1.0f;
  TilePlace place{};
};

// `writes`: tables, too.
__device__ GatherSlot slot_of(const GatherParams& p, std::uint32_t token, std::uint32_t choices,
                              bool writes) {
  const std::uint32_t lane = threadIdx.x % 32, slot = token * choices + lane;
  GatherSlot made;
  if (lane >= choices) return made;
  const SlotRow found = row_of(p, slot);
  made.row = found.row;
  if (writes) p.sorted.row_of_slot[slot] = found.row;
  if (found.row < 0) return made;
  made.place = tile_place(p.sorted, static_cast<std::uint32_t>(found.row), p.layer.w13.units);
  if (p.layer.quantise != Quantise::none)
    made.global = input_scale(p.layer, static_cast<std::uint32_t>(found.expert));
  if (writes) {
    p.sorted.slot_of_row[found.row] = static_cast<std::int32_t>(slot);
    p.sorted.expert_of_row[found.row] = found.expert;
  }
  return made;
}

// Of a whole row, by a warp.
__device__ float row_amax(const GatherParams& p, std::uint64_t row) {
  std::uint32_t largest = 0;
  for (std::uint32_t c = threadIdx.x % 32 * kPiece; c < p.layer.hidden; c += kSegment)
    largest = max(largest, largest_bits(load_piece(p.call.x.data, p.call.x.type, row + c)));
  return amax_of(__reduce_max_sync(0xFFFFFFFFu, largest));
}

__device__ void store_rows(const GatherParams& p, const GatherSlot& slot, std::uint32_t choices,
                           std::uint32_t piece, const uint4& words) {
  for (std::uint32_t j = 0; j < choices; ++j) {
    const TilePlace place = place_from(slot.place, j);
    if (place.step == 0 || piece >= p.layer.w13.units * (kUnit / kPiece)) continue;
    *reinterpret_cast<uint4*>(p.tiles + place.of(piece)) = words;
  }
}

// Where experts have scales of their own.
__device__ void store_each(const GatherParams& p, const GatherSlot& slot, std::uint32_t choices,
                           std::uint32_t piece, const Piece& values, float amax) {
  for (std::uint32_t j = 0; j < choices; ++j) {
    const TilePlace place = place_from(slot.place, j);
    const float global = __shfl_sync(0xFFFFFFFFu, slot.global, static_cast<int>(j));
    if (place.step == 0 || piece >= p.layer.w13.units * (kUnit / kPiece)) continue;
    *reinterpret_cast<uint4*>(p.tiles + place.of(piece)) =
        to_bf16(raised(placed_columns(p.layer, piece, values, amax, global), p.raise));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGatherThreads, 4)
    fp4moe_sm90_gather(const __grid_constant__ GatherParams p) {
  wait_for_previous();
  let_next_begin();  // not before sort is done: products look at its tiles before they wait
  const bool is_batched = p.call.counts != nullptr;
  const std::uint32_t choices = is_batched ? 1 : p.call.top_k;
  const std::uint32_t tokens = is_batched ? p.layer.experts * p.call.capacity : p.call.tokens;
  const std::uint32_t segments = (p.layer.w13.units * kUnit + kSegment - 1) / kSegment;
  const std::uint32_t warps = gridDim.x * (kGatherThreads / 32);
  const std::uint32_t parts = max(1u, min(segments, warps / max(tokens, 1u)));
  const std::uint32_t lane = threadIdx.x % 32;
  const Quantise kind = p.call.x_is_quantised != 0 ? Quantise::none : p.layer.quantise;
  const bool is_each = p.layer.input_scales_each != 0;

  for (std::uint32_t item = blockIdx.x * (kGatherThreads / 32) + threadIdx.x / 32;
       item < tokens * parts; item += warps) {
    const std::uint32_t token = item / parts;
    const std::uint64_t row = token * p.call.x.stride;
    std::uint32_t segment = item - token * parts;
    // While the tables are looked up; but rows of batches that nobody occupies are not read.
    Piece next = is_batched ? no_piece() : load_columns(p.call, p.layer, row, segment * 32 + lane);
    const GatherSlot slot = slot_of(p, token, choices, segment == 0);
    const std::uint32_t here = __ballot_sync(0xFFFFFFFFu, slot.row >= 0);
    if (here == 0) continue;
    if (is_batched) next = load_columns(p.call, p.layer, row, segment * 32 + lane);
    const float whole = kind == Quantise::fp8_token ? row_amax(p, row) : 0.0f;
    const float global = __shfl_sync(0xFFFFFFFFu, slot.global, __ffs(here) - 1);
    for (; segment < segments; segment += parts) {
      const std::uint32_t piece = segment * 32 + lane;
      const Piece values = next;
      next = load_columns(p.call, p.layer, row, piece + parts * 32);
      if (kind == Quantise::none) {
        store_rows(p, slot, choices, piece, to_bf16(raised(values, p.raise)));
        continue;
      }
      const float amax = kind == Quantise::fp8_token ? whole : block_amax(kind, values);
      if (is_each)
        store_each(p, slot, choices, piece, values, amax);
      else
        store_rows(p, slot, choices, piece,
                   to_bf16(raised(placed_columns(p.layer, piece, values, amax, global), p.raise)));
    }
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
