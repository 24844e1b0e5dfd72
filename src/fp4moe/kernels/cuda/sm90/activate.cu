// Raw sums of the first product become h, the input of the second: a warp 256 columns of a row.
//
//   raw ─ * factor, + bias ─ [+ B (A x)] ─► activation ─► [quantised, read back] ─► 16 bytes of a
//   tile
//
// In a raw row eight gates alternate with their eight ups, so a lane's 16 sums become one piece of
// h. Where something must see a whole row of h before it is rounded (A_down h, one scale a token),
// a block takes the row and keeps it in shared memory in between.
#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/low_rank.cuh"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kActivateWarps = kActivateThreads / 32;

// What all columns of a row share.
struct MiddleRow {
  std::uint32_t row = 0, expert = 0;
  float gate_factor = 1.0f, up_factor = 1.0f;  // without gates: the first
  float global = 1.0f;                         // of h's quantiser
  const DeviceLoraExpert* adapter = nullptr;
  TilePlace place{};
};

__device__ MiddleRow describe(const ActivateParams& p, std::uint32_t row, std::uint32_t slot) {
  const Layer& layer = p.layer;
  MiddleRow made;
  made.row = row;
  made.expert = static_cast<std::uint32_t>(p.sorted.expert_of_row[row]);
  const float input = p.call.x_is_quantised != 0
                          ? p.call.x_factor
                          : sum_factor(layer, input_scale(layer, made.expert));
  const std::uint32_t turns = layer.is_gated != 0 ? 2 : 1;
  const float* factor = layer.w13.factor + made.expert * turns;
  made.gate_factor = __fmul_rn(factor[0], input);
  made.up_factor = __fmul_rn(factor[turns - 1], input);
  made.global = hidden_scale(layer, made.expert);
  made.adapter = adapter_of(p.lora, p.call, slot, made.expert);
  made.place = tile_place(p.sorted.tiles[p.sorted.tile_of_row[row / 8]], row, layer.w2.units);
  return made;
}

// Sums from `at` on of the raw row, finished but for low ranks.
__device__ Piece finished(const ActivateParams& p, const MiddleRow& row, std::uint32_t at,
                          float factor) {
  const std::uint64_t width = std::uint64_t{p.layer.w13.groups} * kUnit;
  Piece made = load_floats(p.raw + row.row * width + at);
  Piece bias = no_piece();
  if (p.layer.w13.bias != nullptr) bias = load_floats(p.layer.w13.bias + row.expert * width + at);
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece; ++i)
    made.v[i] = finish_first(p.layer, made.v[i] * factor, bias.v[i]);
  return made;
}

// B (A x), behind the rounding and rounded again.
__device__ void add_low(const ActivateParams& p, const DeviceLowRank& pair, const float* low,
                        std::uint32_t column, Piece& to) {
  if (pair.rank == 0) return;
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece; ++i) {
    to.v[i] += low_output(pair, column + i, low);
    if (p.layer.first != First::none) to.v[i] = rounded_to_bf16(to.v[i]);
  }
}

// Eight columns of h before it is quantised. `low`: A_gate x, then A_up x.
__device__ Piece middle_piece(const ActivateParams& p, const MiddleRow& row, const float* low,
                              std::uint32_t piece) {
  const std::uint32_t column = piece * kPiece;
  const bool is_gated = p.layer.is_gated != 0;
  if (column >= p.layer.intermediate) return no_piece();
  Piece gates = finished(p, row, is_gated ? 2 * column : column, row.gate_factor);
  Piece ups = no_piece();
  if (is_gated) ups = finished(p, row, 2 * column + kPiece, row.up_factor);
  if (row.adapter != nullptr) {
    add_low(p, row.adapter->gate, low, column, gates);
    const float* low_up = low + p.lora.most_rank;
    if (is_gated)
      add_low(p, row.adapter->up, low_up, column, ups);
    else
      add_low(p, row.adapter->up, low_up, column, gates);
  }
  Piece made;
#pragma unroll
  for (std::uint32_t i = 0; i < kPiece; ++i) made.v[i] = activated(p.layer, gates.v[i], ups.v[i]);
  return made;
}

// All lanes of a warp. `amax` of the row where the kind has one scale a row.
__device__ void place_middle(const ActivateParams& p, const MiddleRow& row, std::uint32_t piece,
                             const Piece& values, float amax) {
  const Quantise kind = p.layer.quantise;
  Piece made = values;
  if (kind != Quantise::none) {
    if (kind != Quantise::fp8_token) amax = block_amax(kind, values);
    if (piece * kPiece < p.layer.intermediate)
      made = placed_piece(p.layer, values, amax, row.global);
  }
  if (piece < p.layer.w2.units * (kUnit / kPiece))
    *reinterpret_cast<uint4*>(p.tiles + row.place.of(piece)) = to_bf16(raised(made, p.raise));
}

// The largest magnitude of a row in shared memory.
__device__ float kept_amax(const float* h, std::uint32_t columns) {
  __shared__ std::uint32_t largest;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  std::uint32_t own = 0;
  for (std::uint32_t c = threadIdx.x; c < columns; c += kActivateThreads)
    own = max(own, magnitude_bits(h[c]));
  own = __reduce_max_sync(kFullWarp, own);
  if (threadIdx.x % 32 == 0) atomicMax(&largest, own);
  __syncthreads();
  return amax_of(largest);
}

// factor * A values, a row of A a warp.
template <class Values>
__device__ void multiply_low(const DeviceLowRank& pair, std::uint32_t columns, const Values& values,
                             float factor, float* to) {
  for (std::uint32_t r = threadIdx.x / 32; r < pair.rank; r += kActivateWarps) {
    const float made = low_input(pair, r, columns, values) * factor;
    if (threadIdx.x % 32 == 0) to[r] = made;
  }
}

__device__ void keep_row(const ActivateParams& p, const MiddleRow& row, float* h, float* low) {
  const std::uint32_t pieces = p.layer.w2.units * (kUnit / kPiece);
  __syncthreads();  // the row before has been read
  if (row.adapter != nullptr) {
    const std::uint64_t token = token_of(p.call, p.sorted.slot_of_row[row.row]);
    const float factor = p.call.x_is_quantised != 0 ? p.call.x_factor : 1.0f;
    const auto x = [&](std::uint32_t c) {
      return load_number(p.call.x.data, p.call.x.type, token * p.call.x.stride + c);
    };
    multiply_low(row.adapter->gate, p.layer.hidden, x, factor, low);
    multiply_low(row.adapter->up, p.layer.hidden, x, factor, low + p.lora.most_rank);
    __syncthreads();
  }
  for (std::uint32_t piece = threadIdx.x; piece < pieces; piece += kActivateThreads)
    store_floats(h + piece * kPiece, middle_piece(p, row, low, piece));
  __syncthreads();
  if (row.adapter == nullptr) return;
  const auto of_h = [&](std::uint32_t c) { return h[c]; };
  multiply_low(row.adapter->down, p.layer.intermediate, of_h, 1.0f,
               p.lora.low + std::uint64_t{row.row} * p.lora.most_rank);
}

// Rows that blocks keep.
__device__ void activate_kept(const ActivateParams& p, std::uint32_t rows, float* kept) {
  const std::uint32_t pieces = p.layer.w2.units * (kUnit / kPiece);
  float* low = kept + p.layer.w2.units * kUnit;
  for (std::uint32_t number = blockIdx.x; number < rows; number += gridDim.x) {
    const std::int32_t slot = p.sorted.slot_of_row[number];
    if (slot < 0) continue;
    const MiddleRow row = describe(p, number, static_cast<std::uint32_t>(slot));
    keep_row(p, row, kept, low);
    float amax = 0.0f;
    if (p.layer.quantise == Quantise::fp8_token) amax = kept_amax(kept, p.layer.intermediate);
    for (std::uint32_t first = threadIdx.x / 32 * 32; first < pieces; first += kActivateThreads) {
      const std::uint32_t piece = first + threadIdx.x % 32;
      const Piece values = piece < pieces ? load_floats(kept + piece * kPiece) : no_piece();
      place_middle(p, row, piece, values, amax);
    }
  }
}

// Columns that depend on no others of their row.
__device__ void activate_columns(const ActivateParams& p, std::uint32_t rows) {
  const std::uint32_t pieces = p.layer.w2.units * (kUnit / kPiece), segments = (pieces + 31) / 32;
  for (std::uint32_t item = blockIdx.x * kActivateWarps + threadIdx.x / 32; item < rows * segments;
       item += gridDim.x * kActivateWarps) {
    const std::uint32_t number = item / segments;
    const std::uint32_t piece = (item - number * segments) * 32 + threadIdx.x % 32;
    const std::int32_t slot = p.sorted.slot_of_row[number];
    if (slot < 0) continue;
    const MiddleRow row = describe(p, number, static_cast<std::uint32_t>(slot));
    place_middle(p, row, piece, middle_piece(p, row, nullptr, piece), 0.0f);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kActivateThreads, 2)
    fp4moe_sm90_activate(const __grid_constant__ ActivateParams p) {
  extern __shared__ __align__(16) float kept[];
  pdl_launch_dependents();
  prefetch_params(p);
  pdl_wait();
  const std::uint32_t tiles = p.sorted.tile_count[0];
  if (tiles == 0) return;
  const Tile last = p.sorted.tiles[tiles - 1];
  const std::uint32_t rows = last.first_row + last.rows;
  if (activate_keeps_rows(p.layer, p.lora))
    activate_kept(p, rows, kept);
  else
    activate_columns(p, rows);
}

}  // namespace fp4moe::kernels::cuda::sm90
