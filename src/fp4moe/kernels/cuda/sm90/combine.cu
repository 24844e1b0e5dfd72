// Rows of the second product become the output: a warp takes 256 columns of a token, 8 a lane, or
// twice as many, and adds up its slots in their order, in float32. Multiprocessors that have
// nothing to multiply any more do that for early columns while others still compute the late ones.
//
//   rows ─ * factor, + bias ─ rounded ─ * weight ─ [+ B_down (A_down h)] ─► sum over slots ─► out
//
// Output by slots or in batches is the same with one slot a token and no weight.
#include <type_traits>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/launches.hpp"
#include "fp4moe/kernels/cuda/sm90/low_rank.cuh"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// What a slot's columns share, in the lane of its number.
struct SlotRow {
  std::int32_t row = -1;
  std::uint32_t expert = 0;
  float factor = 1.0f;
  float weight = 1.0f;      // as the kernel holds it
  float low_weight = 1.0f;  // of low ranks
};

// The row and the router's weight, of the lane's slot among `choices` of an output row.
__device__ SlotRow slot_of(const CombineParams& p, std::uint32_t row, std::uint32_t choices,
                           bool is_weighted) {
  const std::uint32_t slot = row * choices + threadIdx.x % 32;
  SlotRow made;
  if (threadIdx.x % 32 >= choices) return made;
  made.row = p.sorted.row_of_slot[slot];
  if (is_weighted && p.call.weights != nullptr) made.weight = p.call.weights[slot];
  return made;
}

// All the rest. Rows that are finished have their expert's factor and bias in them.
template <bool is_rounded>
__device__ void describe(const CombineParams& p, bool is_weighted, SlotRow& slot) {
  if (slot.row < 0) return;
  const Layer& layer = p.layer;
  if constexpr (is_rounded) {
    if (is_weighted) slot.weight = router_weight(layer, slot.weight, 1.0f);
    return;
  }
  slot.expert = static_cast<std::uint32_t>(p.sorted.expert_of_row[slot.row]);
  const float global = folds_global(layer, is_weighted) ? down_global(layer, slot.expert) : 1.0f;
  slot.low_weight = weighs_later(layer) ? 1.0f : slot.weight;
  if (is_weighted) slot.weight = router_weight(layer, slot.weight, global);
  const float hidden = sum_factor(layer, hidden_scale(layer, slot.expert));
  slot.factor = __fmul_rn(__fdiv_rn(layer.w2.factor[slot.expert], global), hidden);
}

__device__ SlotRow slot_from(const SlotRow& slot, std::uint32_t lane) {
  const auto from = static_cast<int>(lane);
  return {__shfl_sync(kFullWarp, slot.row, from), __shfl_sync(kFullWarp, slot.expert, from),
          __shfl_sync(kFullWarp, slot.factor, from), __shfl_sync(kFullWarp, slot.weight, from),
          __shfl_sync(kFullWarp, slot.low_weight, from)};
}

// Columns [column, column + 8) of `choices` slots from `first` on.
struct Work {
  std::uint32_t first = 0, choices = 1, column = 0;
  bool is_weighted = false, is_described = false;
};

// Rows as the second product left them: float32 sums, or finished ones in bf16. `low`: there are
// adapters, which are rare: then slots are loaded one by one.
template <bool is_rounded, bool low, std::uint32_t wide = 1>
struct Rows8 {
  static constexpr bool kIsRounded = is_rounded;
  using Words = std::conditional_t<is_rounded, uint4, Piece>;
  static constexpr std::uint32_t kWide = wide;  // segments of a row that are loaded at once
  static constexpr std::uint32_t kTogether = low ? 1 : 4 / wide;  // slots, likewise
  struct Sum {
    Piece of[kWide];
  };

  __device__ static Words load(const CombineParams& p, std::int32_t row, std::uint32_t column) {
    const std::uint64_t at =
        static_cast<std::uint64_t>(row) * (std::uint64_t{p.layer.w2.groups} * kUnit) + column;
    if constexpr (is_rounded)
      return ld_global_no_allocate_16(static_cast<const std::uint16_t*>(p.rows) + at);
    else
      return load_floats(static_cast<const float*>(p.rows) + at);
  }

  // Sums with factor and bias.
  __device__ static Piece read(const CombineParams& p, const SlotRow& slot, std::uint32_t column,
                               const Piece& sums) {
    const Layer& layer = p.layer;
    Piece made, bias = no_piece();
    const std::uint64_t first = std::uint64_t{slot.expert} * layer.w2.groups * kUnit;
    if (layer.w2.bias != nullptr) bias = load_floats(layer.w2.bias + first + column);
#pragma unroll
    for (std::uint32_t i = 0; i < kPiece; ++i)
      made.v[i] = round_second(layer, sums.v[i] * slot.factor, bias.v[i], slot.weight);
    return made;
  }

  __device__ static void add_low(const CombineParams& p, const SlotRow& slot,
                                 const DeviceLoraExpert& adapter, std::uint32_t column,
                                 Piece& values) {
    if (adapter.down.rank == 0) return;
    const float* inputs = p.lora.low + static_cast<std::uint64_t>(slot.row) * p.lora.most_rank;
#pragma unroll
    for (std::uint32_t i = 0; i < kPiece; ++i) {
      values.v[i] += slot.low_weight * low_output(adapter.down, column + i, inputs);
      if (p.layer.second != Second::none) values.v[i] = rounded_to_bf16(values.v[i]);
    }
  }

  // All lanes of a warp: the sum over slots, in their order.
  __device__ static Sum sum(const CombineParams& p, Work work, SlotRow mine) {
    const auto [first, choices, column, is_weighted, is_described] = work;
    Sum sum;
#pragma unroll
    for (Piece& piece : sum.of) piece = no_piece();
    for (std::uint32_t begin = 0; begin < choices; begin += kTogether) {
      Words words[kTogether][kWide];
      std::int32_t rows[kTogether];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        const auto from = static_cast<int>(min(begin + i, choices - 1));
        rows[i] = __shfl_sync(kFullWarp, mine.row, from);
        if (begin + i >= choices) rows[i] = -1;
#pragma unroll
        for (std::uint32_t w = 0; w < kWide; ++w)
          if (rows[i] >= 0 && column + w * kSegment < p.layer.hidden)
            words[i][w] = load(p, rows[i], column + w * kSegment);
      }
      if (begin == 0 && !is_described)  // while rows are on their way
        describe<is_rounded>(p, is_weighted, mine);
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        if (rows[i] < 0) continue;
        const SlotRow slot = slot_from(mine, begin + i);
        const DeviceLoraExpert* adapter = nullptr;
        if constexpr (low) adapter = adapter_of(p.lora, p.call, first + begin + i, slot.expert);
#pragma unroll
        for (std::uint32_t w = 0; w < kWide; ++w)
          if (column + w * kSegment < p.layer.hidden)
            add(p, slot, adapter, column + w * kSegment, words[i][w], sum.of[w]);
      }
    }
    return sum;
  }
  __device__ static void add(const CombineParams& p, const SlotRow& slot,
                             const DeviceLoraExpert* adapter, std::uint32_t column,
                             const Words& words, Piece& sum) {
    if constexpr (is_rounded) {  // what is left is the weight, before or behind that rounding
      const Piece values = from_bf16(words);
#pragma unroll
      for (std::uint32_t c = 0; c < kPiece; ++c)
        sum.v[c] = fmaf(slot.weight, values.v[c], sum.v[c]);
    } else {
      Piece values = read(p, slot, column, words);
      if (low && adapter != nullptr) add_low(p, slot, *adapter, column, values);
      const float weight = weighs_later(p.layer) ? slot.weight : 1.0f;
#pragma unroll
      for (std::uint32_t c = 0; c < kPiece; ++c)
        sum.v[c] = __fadd_rn(sum.v[c], __fmul_rn(weight, values.v[c]));
    }
  }
};

// What a block waits for, all threads at once: the product may still compute late columns.
class Awaited {
 public:
  // Tables.
  __device__ explicit Awaited(const CombineParams& p) : finished_(p.sorted.finished) {
    static_assert(kEarly == 0 && kTold == 1);
    __shared__ uint2 both;  // of the same moment
    if (threadIdx.x == 0) {
      do both = ld_acquire_u32x2(finished_);
      while (both.y % (1u << kToldBits) != p.told);
      heard_ = atomicAdd(finished_ + kHeard, 1u);
    }
    __syncthreads();
    early_groups_ = both.y >> kToldBits;
    has_early_ = both.x == 0;
  }
  // That come early, of the columns of rows.
  __device__ std::uint32_t early_groups() const { return early_groups_; }
  __device__ void early() {
    if (has_early_) return;
    if (threadIdx.x == 0)
      while (ld_acquire(finished_ + kEarly) != 0) {
      }
    __syncthreads();
    has_early_ = true;
  }
  __device__ static void all() { pdl_wait(); }
  // For the next call, when all blocks have heard of tables.
  __device__ void clear() const {
    if (threadIdx.x != 0 || heard_ + 1 != gridDim.x) return;
    finished_[kTold] = 0;
    finished_[kHeard] = 0;
  }

 private:
  std::uint32_t* finished_;
  std::uint32_t early_groups_ = 0;
  std::uint32_t heard_ = 0xFFFFFFFE;  // blocks before this one
  bool has_early_ = false;
};

// What warps do, one after the other: early columns of all rows, then the others.
struct Order {
  std::uint32_t rows, parts, early;  // parts of a row, those of them that are early

  struct Item {
    std::uint32_t row, part;
  };
  __device__ std::uint32_t all() const { return rows * parts; }
  __device__ bool is_early(std::uint32_t item) const { return item < rows * early; }
  __device__ Item at(std::uint32_t item) const {
    const std::uint32_t before = is_early(item) ? 0 : early;
    const std::uint32_t each = is_early(item) ? early : parts - early;
    item -= rows * before;
    return {item / each, before + item % each};
  }
};

template <class Reader>
__device__ void combine(const CombineParams& p) {
  const Call& call = p.call;
  const bool sums = call.form == Form::summed, is_batched = call.form == Form::batches;
  const std::uint32_t choices = sums ? call.top_k : 1;
  const std::uint32_t rows = is_batched ? p.layer.experts * call.capacity
                             : sums     ? call.tokens
                                        : call.tokens * call.top_k;
  const bool is_weighted = sums && call.weight_on_input == 0;
  constexpr std::uint32_t kColumns = kSegment * Reader::kWide, kWarps = kCombineThreads / 32;
  Awaited awaited(p);
  const Order order{rows, (p.layer.hidden + kColumns - 1) / kColumns,
                    awaited.early_groups() * kUnit / kColumns};
  const std::uint32_t all = order.all();
  // Neighbours of a block, some for each warp.
  const std::uint32_t each = (all + gridDim.x * kWarps - 1) / (gridDim.x * kWarps);
  const std::uint32_t begin = blockIdx.x * each * kWarps, end = min(begin + each * kWarps, all);
  std::uint32_t item = begin + threadIdx.x / 32;
  Order::Item ahead = order.at(item);
  SlotRow next;
  if (item < end) next = slot_of(p, ahead.row, choices, is_weighted);
  describe<Reader::kIsRounded>(p, is_weighted, next);
  awaited.clear();
#pragma unroll 1
  for (std::uint32_t first = begin; first < end; first += kWarps, item += kWarps) {
    if (order.is_early(min(first + kWarps, end) - 1))
      awaited.early();
    else
      Awaited::all();
    if (item >= end) continue;
    const std::uint32_t row = ahead.row;
    const std::uint32_t column = ahead.part * kColumns + threadIdx.x % 32 * kPiece;
    const SlotRow mine = next;
    // Where the next one's rows lie, while this one's are read.
    if (item + kWarps < end) {
      ahead = order.at(item + kWarps);
      next = slot_of(p, ahead.row, choices, is_weighted);
    }
    if (is_batched && __shfl_sync(kFullWarp, mine.row, 0) < 0) continue;  // nobody reads it
    auto sum = Reader::sum(p, {row * choices, choices, column, is_weighted, first == begin}, mine);
#pragma unroll
    for (std::uint32_t w = 0; w < Reader::kWide; ++w) {
      if (column + w * kSegment >= p.layer.hidden) continue;
      Piece& piece = sum.of[w];
      if (sums && p.layer.rounds_sum != 0) {
#pragma unroll
        for (float& value : piece.v) value = rounded_to_bf16(value);
      }
      store_piece(call.out.data, call.out.type, row * call.out.stride + column + w * kSegment,
                  piece);
    }
  }
}

// For the next call, when nobody counts any more.
__device__ void clear_counters(const Sorted& sorted, std::uint32_t experts) {
  if (blockIdx.x != 0) return;
  pdl_wait();
  if (threadIdx.x < 3) sorted.work[threadIdx.x] = 0;
  const std::uint32_t tiles = sorted.tile_count[0];
  for (std::uint32_t i = threadIdx.x; i < tiles; i += kCombineThreads) sorted.done[i] = 0;
  for (std::uint32_t i = threadIdx.x; i < experts; i += kCombineThreads)
    sorted.totals[i * kApart] = 0;
}

}  // namespace

// Rows in bf16, which most calls have: little code, as it is fetched when all wait for it.
extern "C" __global__ void __launch_bounds__(kCombineThreads, 4)
    fp4moe_sm90_combine_rounded(const __grid_constant__ CombineParams p) {
  pdl_launch_dependents();
  prefetch_params(p);
  if (combine_wide(true, p.call.top_k) == 1)
    combine<Rows8<true, false, 1>>(p);
  else
    combine<Rows8<true, false, 2>>(p);
  clear_counters(p.sorted, p.layer.experts);
}
// Rows in float32, and adapters.
extern "C" __global__ void __launch_bounds__(kCombineThreads, 3)
    fp4moe_sm90_combine(const __grid_constant__ CombineParams p) {
  pdl_launch_dependents();
  prefetch_params(p);
  if (p.lora.pairs != nullptr)
    combine<Rows8<false, true>>(p);
  else
    combine<Rows8<false, false>>(p);
  clear_counters(p.sorted, p.layer.experts);
}

}  // namespace fp4moe::kernels::cuda::sm90
