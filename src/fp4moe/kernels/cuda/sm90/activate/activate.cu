// Float32 sums of GEMM1 become h, the input of GEMM2. This kernel has all activations, roundings,
// quantizations and LoRA; the epilogue of the grouped GEMM has the frequent ones.
//
//   raw ─ * factor, + bias ─ [+ B (A x)] ─► activation ─► [quantize, dequantize] ─► token tile
//
// In a raw row eight gates alternate with their eight ups: 16 sums of a lane become one Vec8 of h.
// A warp takes 256 columns of a row. Where A_down h or one scale per token needs the whole row
// before it is quantized, a block takes the row and keeps it in shared memory.
//
//   role                                                                                    time ─►
//
//   columns
//     warp: 256 columns   pdl_wait ─► raw ─► activation ─► [quantize] ─► token tile ─► next
//   whole rows, a block
//     warp: a row of A    pdl_wait ─► [A x] ─┐                      ┌► [A_down h]
//     thread: a Vec8                         ▼ raw, activation ─► h ┤
//     all threads                                                   └► [amax] ┐
//     warp: 256 columns                                                       ▼ [quantize] ─► tile
//
// Arrows from line to line are __syncthreads. One more is before the next row, and one inside amax.
// Where a warp takes columns, no warp waits for another one.
#include "fp4moe/kernels/cuda/sm90/activate/params.hpp"
#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/lora.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kActivateWarps = kActivateThreads / 32;

// Values that all columns of a row of h share.
struct HiddenRow {
  std::uint32_t row = 0, expert = 0;
  float gate_factor = 1.0f, up_factor = 1.0f;  // not gated: gate_factor only
  float global = 1.0f;                         // scale of the quantization of h
  const DeviceLoraExpert* adapter = nullptr;
  TileRowAddress address{};
};

__device__ HiddenRow make_hidden_row(const ActivateParams& p, std::uint32_t row,
                                     std::uint32_t assignment) {
  const LayerParams& layer = p.layer;
  HiddenRow result;
  result.row = row;
  result.expert = static_cast<std::uint32_t>(p.tables.expert_of_row[row]);
  const float input = p.call.x_is_quantized != 0
                          ? p.call.x_factor
                          : sum_factor(layer, input_scale(layer, result.expert));
  const std::uint32_t projections = layer.is_gated != 0 ? 2 : 1;
  const float* factor = layer.w13.factor + result.expert * projections;
  result.gate_factor = __fmul_rn(factor[0], input);
  result.up_factor = __fmul_rn(factor[projections - 1], input);
  result.global = hidden_scale(layer, result.expert);
  result.adapter = find_adapter(p.lora, p.call, assignment, result.expert);
  result.address =
      tile_row_address(p.tables.tiles[p.tables.tile_of_row_group[row / 8]], row, layer.w2.k_blocks);
  return result;
}

// Eight sums of the raw row from column `at` on, with factor, bias and rounding, without LoRA.
__device__ Vec8 load_sums(const ActivateParams& p, const HiddenRow& row, std::uint32_t at,
                          float factor) {
  const std::uint64_t width = std::uint64_t{p.layer.w13.m_blocks} * kBlockM;
  Vec8 result = load_f32x8(p.raw + row.row * width + at);
  Vec8 bias = zero_vec8();
  if (p.layer.w13.bias != nullptr) bias = load_f32x8(p.layer.w13.bias + row.expert * width + at);
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns; ++i)
    result.v[i] = finish_gemm1(p.layer, result.v[i] * factor, bias.v[i]);
  return result;
}

// Adds B (A x) after the rounding, and rounds again.
__device__ void add_lora(const ActivateParams& p, const DeviceLowRank& pair, const float* low,
                         std::uint32_t column, Vec8& to) {
  if (pair.rank == 0) return;
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns; ++i) {
    to.v[i] += lora_up_project(pair, column + i, low);
    if (p.layer.first != FirstRounding::none) to.v[i] = round_to_bf16(to.v[i]);
  }
}

// Eight columns of h before the quantization. `low`: A_gate x, then A_up x.
__device__ Vec8 hidden_vec8(const ActivateParams& p, const HiddenRow& row, const float* low,
                            std::uint32_t vec) {
  const std::uint32_t column = vec * kVecColumns;
  const bool is_gated = p.layer.is_gated != 0;
  if (column >= p.layer.intermediate) return zero_vec8();
  Vec8 gates = load_sums(p, row, is_gated ? 2 * column : column, row.gate_factor);
  Vec8 ups = zero_vec8();
  if (is_gated) ups = load_sums(p, row, 2 * column + kVecColumns, row.up_factor);
  if (row.adapter != nullptr) {
    add_lora(p, row.adapter->gate, low, column, gates);
    const float* low_up = low + p.lora.max_rank;
    if (is_gated)
      add_lora(p, row.adapter->up, low_up, column, ups);
    else
      add_lora(p, row.adapter->up, low_up, column, gates);
  }
  Vec8 result;
#pragma unroll
  for (std::uint32_t i = 0; i < kVecColumns; ++i)
    result.v[i] = activated(p.layer, gates.v[i], ups.v[i]);
  return result;
}

// All lanes of a warp call. `amax`: of the row, where the quantization has one scale per row.
__device__ void store_hidden(const ActivateParams& p, const HiddenRow& row, std::uint32_t vec,
                             const Vec8& values, float amax) {
  const Quantization kind = p.layer.quantization;
  Vec8 result = values;
  if (kind != Quantization::none) {
    if (kind != Quantization::fp8_token) amax = block_amax(kind, values);
    if (vec * kVecColumns < p.layer.intermediate)
      result = quantize_dequantize(p.layer, values, amax, row.global);
  }
  if (vec < p.layer.w2.k_blocks * kBlockVecs)
    *reinterpret_cast<uint4*>(p.tiles + row.address.of(vec)) =
        to_bf16(prescaled(result, p.prescale));
}

// The largest magnitude of a row in shared memory. All threads of the block call.
__device__ float shared_row_amax(const float* h, std::uint32_t columns) {
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

// factor * A values; a warp takes a row of A.
template <class Values>
__device__ void project_down(const DeviceLowRank& pair, std::uint32_t columns, const Values& values,
                             float factor, float* to) {
  for (std::uint32_t r = threadIdx.x / 32; r < pair.rank; r += kActivateWarps) {
    const float result = lora_down_project(pair, r, columns, values) * factor;
    if (threadIdx.x % 32 == 0) to[r] = result;
  }
}

// A row of h into shared memory, and A_down h of it.
__device__ void compute_whole_row(const ActivateParams& p, const HiddenRow& row, float* h,
                                  float* low) {
  const std::uint32_t vecs = p.layer.w2.k_blocks * kBlockVecs;
  __syncthreads();  // the previous row has been read
  if (row.adapter != nullptr) {
    const std::uint64_t token = token_of(p.call, p.tables.assignment_of_row[row.row]);
    const float factor = p.call.x_is_quantized != 0 ? p.call.x_factor : 1.0f;
    const auto x = [&](std::uint32_t c) {
      return load_element(p.call.x.data, p.call.x.type, token * p.call.x.stride + c);
    };
    project_down(row.adapter->gate, p.layer.hidden, x, factor, low);
    project_down(row.adapter->up, p.layer.hidden, x, factor, low + p.lora.max_rank);
    __syncthreads();
  }
  for (std::uint32_t vec = threadIdx.x; vec < vecs; vec += kActivateThreads)
    store_f32x8(h + vec * kVecColumns, hidden_vec8(p, row, low, vec));
  __syncthreads();
  if (row.adapter == nullptr) return;
  const auto of_h = [&](std::uint32_t c) { return h[c]; };
  project_down(row.adapter->down, p.layer.intermediate, of_h, 1.0f,
               p.lora.low + std::uint64_t{row.row} * p.lora.max_rank);
}

// A block per row.
__device__ void activate_whole_rows(const ActivateParams& p, std::uint32_t rows, float* row_of_h) {
  const std::uint32_t vecs = p.layer.w2.k_blocks * kBlockVecs;
  float* low = row_of_h + ActivateSharedStorage::low(p.layer.w2.k_blocks);
  for (std::uint32_t row_index = blockIdx.x; row_index < rows; row_index += gridDim.x) {
    const std::int32_t assignment = p.tables.assignment_of_row[row_index];
    if (assignment < 0) continue;
    const HiddenRow row = make_hidden_row(p, row_index, static_cast<std::uint32_t>(assignment));
    compute_whole_row(p, row, row_of_h, low);
    float amax = 0.0f;
    if (p.layer.quantization == Quantization::fp8_token)
      amax = shared_row_amax(row_of_h, p.layer.intermediate);
    for (std::uint32_t first = threadIdx.x / 32 * 32; first < vecs; first += kActivateThreads) {
      const std::uint32_t vec = first + threadIdx.x % 32;
      const Vec8 values = vec < vecs ? load_f32x8(row_of_h + vec * kVecColumns) : zero_vec8();
      store_hidden(p, row, vec, values, amax);
    }
  }
}

// A warp per segment: no column depends on another one outside its quantization block.
__device__ void activate_columns(const ActivateParams& p, std::uint32_t rows) {
  const std::uint32_t vecs = p.layer.w2.k_blocks * kBlockVecs, segments = (vecs + 31) / 32;
  for (std::uint32_t item = blockIdx.x * kActivateWarps + threadIdx.x / 32; item < rows * segments;
       item += gridDim.x * kActivateWarps) {
    const std::uint32_t row_index = item / segments;
    const std::uint32_t vec = (item - row_index * segments) * 32 + threadIdx.x % 32;
    const std::int32_t assignment = p.tables.assignment_of_row[row_index];
    if (assignment < 0) continue;
    const HiddenRow row = make_hidden_row(p, row_index, static_cast<std::uint32_t>(assignment));
    store_hidden(p, row, vec, hidden_vec8(p, row, nullptr, vec), 0.0f);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kActivateThreads, 2)
    FP4MOE_KERNEL(activate)(const __grid_constant__ ActivateParams p) {
  extern __shared__ __align__(16) float row_of_h[];
  pdl_launch_dependents();
  prefetch_params(p);
  pdl_wait();
  const std::uint32_t tiles = p.tables.tile_count[0];
  if (tiles == 0) return;
  const TokenTile last = p.tables.tiles[tiles - 1];
  const std::uint32_t rows = last.first_row + last.rows;
  if (activate_needs_whole_rows(p.layer, p.lora))
    activate_whole_rows(p, rows, row_of_h);
  else
    activate_columns(p, rows);
}

}  // namespace fp4moe::kernels::cuda::sm90
