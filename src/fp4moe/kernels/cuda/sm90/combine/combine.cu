// Rows of GEMM2 become the output. A warp takes 256 or 512 columns of a token and adds up its
// assignments in the order of choices, in float32. SMs that have finished their part of the GEMM
// combine the early columns while other SMs still compute the late ones.
//
//   rows ─ * factor, + bias ─ round ─ * weight ─ [+ B_down (A_down h)] ─► sum over choices ─► out
//
//   role                                                                                    time ─►
//
//   grouped GEMM        tables ───────────► early M blocks ───────────► late M blocks, end
//                          │ kTablesReady        │ kEarlyBlocksLeft          │
//   block: thread 0        ▼ spin ─┐             ▼ spin ─┐                   │ pdl_wait
//                    __syncthreads │       __syncthreads │                   │
//     all warps                    ▼ row indices         ▼ early columns     ▼ late columns ─┐
//     block 0                                                                clear counters ◄┘
//
// Without PDL (sm80) the GEMM is complete when combine starts: there is nothing to wait for.
// Output by assignment or in batches is the same with one assignment per row and no weight.
#include <type_traits>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/combine/params.hpp"
#include "fp4moe/kernels/cuda/sm90/lora.cuh"
#include "fp4moe/kernels/cuda/sm90/vec8.cuh"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

// Values that all columns of an assignment share. Lane j holds those of choice j.
struct AssignmentRow {
  std::int32_t row = -1;
  std::uint32_t expert = 0;
  float factor = 1.0f;
  float weight = 1.0f;       // rounded as the numerics say
  float lora_weight = 1.0f;  // of the LoRA addition
};

// The row and the router's weight of the lane's choice of output row `row`.
__device__ AssignmentRow assignment_row(const CombineParams& p, std::uint32_t row,
                                        std::uint32_t choices, bool is_weighted) {
  const std::uint32_t assignment = row * choices + threadIdx.x % 32;
  AssignmentRow result;
  if (threadIdx.x % 32 >= choices) return result;
  result.row = p.tables.row_of_assignment[assignment];
  if (is_weighted && p.call.weights != nullptr) result.weight = p.call.weights[assignment];
  return result;
}

// Fills in all other members. Rows in bf16 already contain the factor and the bias of their expert.
template <bool is_bf16>
__device__ void complete(const CombineParams& p, bool is_weighted, AssignmentRow& assignment) {
  if (assignment.row < 0) return;
  const LayerParams& layer = p.layer;
  if constexpr (is_bf16) {
    if (is_weighted) assignment.weight = router_weight(layer, assignment.weight, 1.0f);
    return;
  }
  assignment.expert = static_cast<std::uint32_t>(p.tables.expert_of_row[assignment.row]);
  const float global =
      has_folded_global(layer, is_weighted) ? down_global(layer, assignment.expert) : 1.0f;
  assignment.lora_weight = is_weight_after_rounding(layer) ? 1.0f : assignment.weight;
  if (is_weighted) assignment.weight = router_weight(layer, assignment.weight, global);
  const float hidden = sum_factor(layer, hidden_scale(layer, assignment.expert));
  assignment.factor = __fmul_rn(__fdiv_rn(layer.w2.factor[assignment.expert], global), hidden);
}

__device__ AssignmentRow broadcast_row(const AssignmentRow& assignment, std::uint32_t lane) {
  const auto from = static_cast<int>(lane);
  return {__shfl_sync(kFullWarp, assignment.row, from),
          __shfl_sync(kFullWarp, assignment.expert, from),
          __shfl_sync(kFullWarp, assignment.factor, from),
          __shfl_sync(kFullWarp, assignment.weight, from),
          __shfl_sync(kFullWarp, assignment.lora_weight, from)};
}

// Columns [column, column + 8) of `choices` assignments from `first` on.
struct CombineWork {
  std::uint32_t first = 0, choices = 1, column = 0;
  bool is_weighted = false, is_complete = false;
};

// Reads rows of GEMM2: float32 sums, or scaled ones in bf16. With LoRA, which is rare, assignments
// are loaded one at a time.
template <bool is_bf16, bool has_lora, std::uint32_t segments = 1>
struct RowReader {
  static constexpr bool kIsBf16 = is_bf16;
  using Words = std::conditional_t<is_bf16, uint4, Vec8>;
  static constexpr std::uint32_t kSegments = segments;  // of a row that are loaded at once
  static constexpr std::uint32_t kBatch =
      has_lora ? 1 : 4 / segments;  // assignments that are loaded at once
  struct Sum {
    Vec8 of[kSegments];
  };

  __device__ static Words load(const CombineParams& p, std::int32_t row, std::uint32_t column) {
    const std::uint64_t at =
        static_cast<std::uint64_t>(row) * (std::uint64_t{p.layer.w2.m_blocks} * kBlockM) + column;
    if constexpr (is_bf16)
      return ld_global_no_allocate_16(static_cast<const std::uint16_t*>(p.rows) + at);
    else
      return load_f32x8(static_cast<const float*>(p.rows) + at);
  }

  // Applies factor, bias, rounding and weight.
  __device__ static Vec8 finish(const CombineParams& p, const AssignmentRow& assignment,
                                std::uint32_t column, const Vec8& sums) {
    const LayerParams& layer = p.layer;
    Vec8 result, bias = zero_vec8();
    const std::uint64_t first = std::uint64_t{assignment.expert} * layer.w2.m_blocks * kBlockM;
    if (layer.w2.bias != nullptr) bias = load_f32x8(layer.w2.bias + first + column);
#pragma unroll
    for (std::uint32_t i = 0; i < kVecColumns; ++i)
      result.v[i] = round_gemm2(layer, sums.v[i] * assignment.factor, bias.v[i], assignment.weight);
    return result;
  }

  __device__ static void add_lora(const CombineParams& p, const AssignmentRow& assignment,
                                  const DeviceLoraExpert& adapter, std::uint32_t column,
                                  Vec8& values) {
    if (adapter.down.rank == 0) return;
    const float* inputs = p.lora.low + static_cast<std::uint64_t>(assignment.row) * p.lora.max_rank;
#pragma unroll
    for (std::uint32_t i = 0; i < kVecColumns; ++i) {
      values.v[i] += assignment.lora_weight * lora_up_project(adapter.down, column + i, inputs);
      if (p.layer.second != SecondRounding::none) values.v[i] = round_to_bf16(values.v[i]);
    }
  }

  // The sum over the assignments, in the order of choices. All lanes of a warp call.
  __device__ static Sum sum(const CombineParams& p, CombineWork work, AssignmentRow mine) {
    const auto [first, choices, column, is_weighted, is_complete] = work;
    Sum sum;
#pragma unroll
    for (Vec8& vec : sum.of) vec = zero_vec8();
    for (std::uint32_t begin = 0; begin < choices; begin += kBatch) {
      Words words[kBatch][kSegments];
      std::int32_t rows[kBatch];
#pragma unroll
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        const auto from = static_cast<int>(min(begin + i, choices - 1));
        rows[i] = __shfl_sync(kFullWarp, mine.row, from);
        if (begin + i >= choices) rows[i] = -1;
#pragma unroll
        for (std::uint32_t w = 0; w < kSegments; ++w)
          if (rows[i] >= 0 && column + w * kSegmentColumns < p.layer.hidden)
            words[i][w] = load(p, rows[i], column + w * kSegmentColumns);
      }
      if (begin == 0 && !is_complete)  // while the rows are being loaded
        complete<is_bf16>(p, is_weighted, mine);
#pragma unroll
      for (std::uint32_t i = 0; i < kBatch; ++i) {
        if (rows[i] < 0) continue;
        const AssignmentRow assignment = broadcast_row(mine, begin + i);
        const DeviceLoraExpert* adapter = nullptr;
        if constexpr (has_lora)
          adapter = find_adapter(p.lora, p.call, first + begin + i, assignment.expert);
#pragma unroll
        for (std::uint32_t w = 0; w < kSegments; ++w)
          if (column + w * kSegmentColumns < p.layer.hidden)
            add(p, assignment, adapter, column + w * kSegmentColumns, words[i][w], sum.of[w]);
      }
    }
    return sum;
  }
  __device__ static void add(const CombineParams& p, const AssignmentRow& assignment,
                             const DeviceLoraExpert* adapter, std::uint32_t column,
                             const Words& words, Vec8& sum) {
    if constexpr (is_bf16) {  // only the weight is missing
      const Vec8 values = from_bf16(words);
#pragma unroll
      for (std::uint32_t c = 0; c < kVecColumns; ++c)
        sum.v[c] = fmaf(assignment.weight, values.v[c], sum.v[c]);
    } else {
      Vec8 values = finish(p, assignment, column, words);
      if (has_lora && adapter != nullptr) add_lora(p, assignment, *adapter, column, values);
      const float weight = is_weight_after_rounding(p.layer) ? assignment.weight : 1.0f;
#pragma unroll
      for (std::uint32_t c = 0; c < kVecColumns; ++c)
        sum.v[c] = __fadd_rn(sum.v[c], __fmul_rn(weight, values.v[c]));
    }
  }
};

// How far the grouped GEMM is. All threads of a block wait together. Without PDL it is complete.
class GemmProgress {
 public:
  // Waits for the tables.
  __device__ explicit GemmProgress(const CombineParams& p) : signals_(p.tables.combine_signals) {
    if constexpr (!kHasPdl) return;
    static_assert(kEarlyBlocksLeft == 0 && kTablesReady == 1);
    __shared__ uint2 both;  // read at the same moment
    if (threadIdx.x == 0) {
      do both = ld_acquire_u32x2(signals_);
      while (both.y % (1u << kTablesReadyBits) != p.table_writers);
      started_before_ = atomicAdd(signals_ + kCombineBlocksStarted, 1u);
    }
    __syncthreads();
    early_m_blocks_ = both.y >> kTablesReadyBits;
    has_early_ = both.x == 0;
  }
  // Early M blocks of a row: the GEMM computes them before the others.
  __device__ std::uint32_t early_m_blocks() const { return early_m_blocks_; }
  __device__ void wait_for_early() {
    if (has_early_) return;
    if (threadIdx.x == 0)
      while (ld_acquire(signals_ + kEarlyBlocksLeft) != 0) {
      }
    __syncthreads();
    has_early_ = true;
  }
  __device__ static void wait_for_all() { pdl_wait(); }
  // The last block to start clears the signals for the next call.
  __device__ void clear() const {
    if (!kHasPdl || threadIdx.x != 0 || started_before_ + 1 != gridDim.x) return;
    signals_[kTablesReady] = 0;
    signals_[kCombineBlocksStarted] = 0;
  }

 private:
  std::uint32_t* signals_;
  std::uint32_t early_m_blocks_ = 0;
  std::uint32_t started_before_ = 0xFFFFFFFE;  // combine blocks that started before this one
  bool has_early_ = false;
};

// The order of work items: early columns of all rows, then the late ones.
struct ItemOrder {
  std::uint32_t rows, parts, early;  // parts of a row; early ones of them

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
  const CallParams& call = p.call;
  const bool sums = call.form == OutputForm::summed, is_batched = call.form == OutputForm::batches;
  const std::uint32_t choices = sums ? call.top_k : 1;
  const std::uint32_t rows = is_batched ? p.layer.experts * call.capacity
                             : sums     ? call.tokens
                                        : call.tokens * call.top_k;
  const bool is_weighted = sums && call.weight_on_input == 0;
  constexpr std::uint32_t kColumns = kSegmentColumns * Reader::kSegments,
                          kWarps = kCombineThreads / 32;
  GemmProgress progress(p);
  const ItemOrder order{rows, (p.layer.hidden + kColumns - 1) / kColumns,
                        progress.early_m_blocks() * kBlockM / kColumns};
  const std::uint32_t all = order.all();
  // A block takes neighboring items, its warps alternate.
  const std::uint32_t each = (all + gridDim.x * kWarps - 1) / (gridDim.x * kWarps);
  const std::uint32_t begin = blockIdx.x * each * kWarps, end = min(begin + each * kWarps, all);
  std::uint32_t item = begin + threadIdx.x / 32;
  ItemOrder::Item ahead = order.at(item);
  AssignmentRow next;
  if (item < end) next = assignment_row(p, ahead.row, choices, is_weighted);
  complete<Reader::kIsBf16>(p, is_weighted, next);
  progress.clear();
#pragma unroll 1
  for (std::uint32_t first = begin; first < end; first += kWarps, item += kWarps) {
    if (order.is_early(min(first + kWarps, end) - 1))
      progress.wait_for_early();
    else
      GemmProgress::wait_for_all();
    if (item >= end) continue;
    const std::uint32_t row = ahead.row;
    const std::uint32_t column = ahead.part * kColumns + threadIdx.x % 32 * kVecColumns;
    const AssignmentRow mine = next;
    // Loads the next row indices while the rows of this item are read.
    if (item + kWarps < end) {
      ahead = order.at(item + kWarps);
      next = assignment_row(p, ahead.row, choices, is_weighted);
    }
    if (is_batched && __shfl_sync(kFullWarp, mine.row, 0) < 0) continue;  // an unoccupied row
    auto sum = Reader::sum(p, {row * choices, choices, column, is_weighted, first == begin}, mine);
#pragma unroll
    for (std::uint32_t w = 0; w < Reader::kSegments; ++w) {
      if (column + w * kSegmentColumns >= p.layer.hidden) continue;
      Vec8& vec = sum.of[w];
      if (sums && p.layer.is_sum_rounded != 0) {
#pragma unroll
        for (float& value : vec.v) value = round_to_bf16(value);
      }
      store_vec8(call.out.data, call.out.type, row * call.out.stride + column + w * kSegmentColumns,
                 vec);
    }
  }
}

// Clears the counters for the next call, when the GEMM is complete.
__device__ void clear_counters(const RoutingTables& tables, std::uint32_t experts) {
  if (blockIdx.x != 0) return;
  pdl_wait();
  if (threadIdx.x < 3) tables.work_counters[threadIdx.x] = 0;
  const std::uint32_t tiles = tables.tile_count[0];
  for (std::uint32_t i = threadIdx.x; i < tiles; i += kCombineThreads) tables.tile_progress[i] = 0;
  for (std::uint32_t i = threadIdx.x; i < experts; i += kCombineThreads)
    tables.expert_counts[i * kCounterStride] = 0;
}

}  // namespace

// Rows in bf16, which most calls have. Little code: it is loaded when all blocks wait for it.
extern "C" __global__ void __launch_bounds__(kCombineThreads, 4)
    FP4MOE_KERNEL(combine_bf16)(const __grid_constant__ CombineParams p) {
  pdl_launch_dependents();
  prefetch_params(p);
  if (combine_segments(true, p.call.top_k) == 1)
    combine<RowReader<true, false, 1>>(p);
  else
    combine<RowReader<true, false, 2>>(p);
  clear_counters(p.tables, p.layer.experts);
}
// Rows in float32, with or without LoRA.
extern "C" __global__ void __launch_bounds__(kCombineThreads, 3)
    FP4MOE_KERNEL(combine_f32)(const __grid_constant__ CombineParams p) {
  pdl_launch_dependents();
  prefetch_params(p);
  if (p.lora.pairs != nullptr)
    combine<RowReader<false, true>>(p);
  else
    combine<RowReader<false, false>>(p);
  clear_counters(p.tables, p.layer.experts);
}

}  // namespace fp4moe::kernels::cuda::sm90
