// Tokens into tiles: a warp reads a token, or a part of it where there are more warps than tokens,
// rounds it to what the backend computes with, and writes it into the row of each of its slots.
// Every block adds up experts' slots by itself, which gives rows and tiles; it leaves those of its
// slots in tables, and the first block all tiles.
//
//   x [tokens, hidden] ─► 8 columns a lane ─► [quantised, read back] ─► 16 bytes into k tiles
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"
#include "fp4moe/kernels/cuda/sm90/tiles.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kWarps = kGatherThreads / 32;

struct Tables {
  ExpertTables of;
  Extent* partial;  // [warps]

  __device__ Tables(std::uint32_t* shared, std::uint32_t experts)
      : of(ExpertTables::at(shared + 2 * kWarps, experts)),
        partial(reinterpret_cast<Extent*>(shared)) {}
};

__device__ std::uint32_t slots_of(const GatherParams& p, std::uint32_t expert) {
  if (expert >= p.layer.experts) return 0;
  if (p.call.counts == nullptr) return __ldcg(p.sorted.totals + expert * kApart);
  return static_cast<std::uint32_t>(
      min(max(p.call.counts[expert], 0), static_cast<std::int32_t>(p.call.capacity)));
}
__device__ void add_up(const GatherParams& p, const Tables& to) {
  for (std::uint32_t first = 0; first < p.layer.experts; first += kGatherThreads)
    add_up_experts(to.of, to.partial, p.layer.experts, p.tile_tokens,
                   slots_of(p, first + threadIdx.x), first);
}

__device__ void write_tiles(const GatherParams& p, const ExpertTables& of) {
  const std::uint32_t tiles = of.first_tile[p.layer.experts];
  for (std::uint32_t i = threadIdx.x; i < tiles; i += kGatherThreads)
    p.sorted.tiles[i] = tile_of(of, expert_at(of.first_tile, p.layer.experts, i), i);
  if (threadIdx.x == 0) p.sorted.tile_count[0] = tiles;
}

// A token's slots, one a lane.
struct GatherSlot {
  float global = 1.0f;
  TilePlace place{};
};

// Where a slot is computed: that many slots of its expert come before; expert -1: nowhere here.
struct SlotPlace {
  std::int32_t expert = -1;
  std::uint32_t position = 0;
};
__device__ SlotPlace place_of(const GatherParams& p, const Tables& tables, std::uint32_t slot) {
  if (p.call.counts != nullptr) {  // position i of an expert is its row i
    const std::uint32_t expert = slot / p.call.capacity, position = slot - expert * p.call.capacity;
    if (position >= tables.of.totals[expert]) return {};
    return {static_cast<std::int32_t>(expert), position};
  }
  const std::int32_t both = p.sorted.rank_of_slot[slot];
  if (both < 0) return {};
  return {static_cast<std::int32_t>(expert_of(both)), rank_of(both)};
}

// What others look up of a slot and its row; of a group of rows with its first one; and of padding
// with the last one of an expert.
__device__ void write_row(const Sorted& to, std::uint32_t slot, std::uint32_t row,
                          const SlotPlace& place, std::uint32_t total, std::uint32_t tile) {
  to.row_of_slot[slot] = static_cast<std::int32_t>(row);
  to.slot_of_row[row] = static_cast<std::int32_t>(slot);
  to.expert_of_row[row] = place.expert;
  if (row % kGroup == 0) to.tile_of_row[row / kGroup] = static_cast<std::int32_t>(tile);
  if (place.position + 1 != total) return;
  for (std::uint32_t r = row + 1; r % kGroup != 0; ++r)
    to.slot_of_row[r] = to.expert_of_row[r] = -1;
}

// `writes`: tables, too.
__device__ GatherSlot slot_of(const GatherParams& p, const Tables& tables, std::uint32_t token,
                              std::uint32_t choices, bool writes) {
  const std::uint32_t lane = threadIdx.x % 32, slot = token * choices + lane;
  GatherSlot made;
  if (lane >= choices) return made;
  const SlotPlace place = place_of(p, tables, slot);
  if (place.expert < 0) {
    if (writes) p.sorted.row_of_slot[slot] = -1;
    return made;
  }
  const auto expert = static_cast<std::uint32_t>(place.expert);
  const std::uint32_t row = tables.of.first_group[expert] * kGroup + place.position;
  const std::uint32_t number =
      tables.of.first_tile[expert] + Share(tables.of, expert).tile(place.position / kGroup);
  if (number < p.filled)
    made.place = tile_place(tile_of(tables.of, expert, number), row, p.layer.w13.units);
  if (p.layer.quantise != Quantise::none) made.global = input_scale(p.layer, expert);
  if (writes) write_row(p.sorted, slot, row, place, tables.of.totals[expert], number);
  return made;
}

// Of a whole row, by a warp.
__device__ float row_amax(const GatherParams& p, std::uint64_t row) {
  std::uint32_t largest = 0;
  for (std::uint32_t c = threadIdx.x % 32 * kPiece; c < p.layer.hidden; c += kSegment)
    largest = max(largest, largest_bits(load_piece(p.call.x.data, p.call.x.type, row + c)));
  return amax_of(__reduce_max_sync(kFullWarp, largest));
}

__device__ void store_rows(const GatherParams& p, const GatherSlot& slot, std::uint32_t choices,
                           std::uint32_t piece, const uint4& words) {
  for (std::uint32_t j = 0; j < choices; ++j) {
    const TilePlace place = place_from(slot.place, j);
    if (place.step == 0 || piece >= p.layer.w13.units * (kUnit / kPiece)) continue;
    st_global_no_allocate_16(p.tiles + place.of(piece), words);
  }
}

// Where experts have scales of their own.
__device__ void store_each(const GatherParams& p, const GatherSlot& slot, std::uint32_t choices,
                           std::uint32_t piece, const Piece& values, float amax) {
  for (std::uint32_t j = 0; j < choices; ++j) {
    const TilePlace place = place_from(slot.place, j);
    const float global = __shfl_sync(kFullWarp, slot.global, static_cast<int>(j));
    if (place.step == 0 || piece >= p.layer.w13.units * (kUnit / kPiece)) continue;
    st_global_no_allocate_16(
        p.tiles + place.of(piece),
        to_bf16(raised(placed_columns(p.layer, piece, values, amax, global), p.raise)));
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kGatherThreads, 4)
    fp4moe_sm90_gather(const __grid_constant__ GatherParams p) {
  extern __shared__ __align__(16) std::uint32_t shared[];
  prefetch_params(p);
  const Tables tables(shared, p.layer.experts);
  pdl_wait();
  add_up(p, tables);
  if (blockIdx.x == 0) {
    write_tiles(p, tables.of);
    __threadfence();
    __syncthreads();
  }
  pdl_launch_dependents();  // not before tiles are there: products look at them before they wait
  const bool is_batched = p.call.counts != nullptr;
  const std::uint32_t choices = is_batched ? 1 : p.call.top_k;
  const std::uint32_t tokens = is_batched ? p.layer.experts * p.call.capacity : p.call.tokens;
  const std::uint32_t warps = gridDim.x * kWarps;
  const std::uint32_t segments = (p.layer.w13.units * kUnit + kSegment - 1) / kSegment;
  const std::uint32_t parts = max(1u, min(segments, warps / max(tokens, 1u)));
  const std::uint32_t lane = threadIdx.x % 32;
  const Quantise kind = p.call.x_is_quantised != 0 ? Quantise::none : p.layer.quantise;
  const bool is_each = p.layer.input_scales_each != 0;

  for (std::uint32_t item = blockIdx.x * kWarps + threadIdx.x / 32; item < tokens * parts;
       item += warps) {
    const std::uint32_t token = item / parts;
    const std::uint64_t row = token * p.call.x.stride;
    std::uint32_t segment = item % parts;
    // While the tables are looked up; but rows of batches that nobody occupies are not read.
    Piece next = is_batched ? no_piece() : load_columns(p.call, p.layer, row, segment * 32 + lane);
    const GatherSlot slot = slot_of(p, tables, token, choices, segment == 0);
    const std::uint32_t here = __ballot_sync(kFullWarp, slot.place.step != 0);
    if (here == 0) continue;
    if (is_batched) next = load_columns(p.call, p.layer, row, segment * 32 + lane);
    const float whole = kind == Quantise::fp8_token ? row_amax(p, row) : 0.0f;
    const float global = __shfl_sync(kFullWarp, slot.global, __ffs(here) - 1);
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
