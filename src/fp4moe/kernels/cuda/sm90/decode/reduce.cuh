// The reductions of the decode kernel.
//
//   EpilogueWarps   add up the partial sums of the four math warpgroups, in a fixed order. GEMM1: the
//                   first block of an output tile also adds up the sums of the other blocks, applies
//                   the activation and stores h. GEMM2: sums are stored for CombineWarps.
//   CombineWarps    all warps but the loader, at the end: add up the experts of each token.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/stream_k.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/tagged.cuh"
#include "fp4moe/kernels/cuda/sm90/decode/tokens.cuh"
#include "fp4moe/kernels/cuda/sm90/pipeline.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// The sums that a block stores for an output tile which other blocks share: the tile that its share
// begins in, or the tile that its share ends in. `gemm`: 0 or 1.
__device__ inline std::uint64_t* partial_sums(const DecodeParams& p, std::uint32_t block,
                                              std::uint32_t gemm, bool begins) {
  return p.partial_sums +
         (std::uint64_t{block} * 4 + gemm * 2 + (begins ? 0 : 1)) * 64 * kDecodeTileTokens;
}

class EpilogueWarps {
 public:
  __device__ EpilogueWarps(const DecodeParams& p, const Block& block)
      : p_(p),
        block_(block),
        header_(block.header),
        epoch_(block.epoch),
        me_(threadIdx.x - kMathThreads - 32),
        warp_(me_ / 32),
        lane_(me_ % 32) {}

  __device__ void run(const StreamK& gemm1, std::uint32_t batches) {
    WorkRange range;
    const StreamK gemm2(p_.layer.w2, batches);
    for (WorkRanges all(gemm1); all.next(range);) finish_gemm1_tile(gemm1, range);
    std::uint32_t batch = ~0u;
    for (WorkRanges all(gemm2); all.next(range);) {
      if (range.batch != batch) fill_hidden(p_, block_, range.batch);
      batch = range.batch;
      finish_gemm2_tile(gemm2, range);
    }
    if (batch == ~0u) named_barrier_sync(kWorkersBarrier, kWorkers);
  }

  // Factors and weights of all assignments, once. Other warps read them after the next barrier of
  // all workers.
  __device__ void prepare_assignments() const {
    const LayerParams& layer = p_.layer;
    const bool is_weighted = p_.call.weight_on_input == 0;
    for (std::uint32_t assignment = me_; assignment < p_.call.tokens * p_.call.top_k;
         assignment += kEpilogueThreads) {
      if (header_.expert_of_assignment[assignment] < 0) continue;
      const auto expert = static_cast<std::uint32_t>(header_.expert_of_assignment[assignment]);
      const float global =
          has_folded_global(layer, is_weighted) ? down_global(layer, expert) : 1.0f;
      header_.factors[assignment] =
          unprescaled(__fmul_rn(__fdiv_rn(layer.w2.factor[expert], global),
                                sum_factor(layer, hidden_scale(layer, expert))));
      header_.weights[assignment] =
          is_weighted ? router_weight(layer, header_.weights[assignment], global) : 1.0f;
    }
  }

 private:
  static constexpr std::uint32_t kWarps = kEpilogueThreads / 32;

  __device__ float unprescaled(float factor) const {
    return block_.is_prescaled ? __fmul_rn(factor, kInversePrescale) : factor;
  }

  // The sum over the warpgroups of this block, of token `i` of the batch.
  __device__ float block_sum(std::uint32_t i, std::uint32_t row) const {
    const float* from =
        block_.partials +
        (buffer_.index * kMathWarpgroups * kDecodeTileTokens + i) * Storage::kPartialStride + row;
    float sum = from[0];
#pragma unroll
    for (std::uint32_t w = 1; w < kMathWarpgroups; ++w)
      sum = __fadd_rn(sum, from[w * kDecodeTileTokens * Storage::kPartialStride]);
    return sum;
  }
  __device__ void wait_for_partials() const {
    named_barrier_sync(kPartialsBarrier + buffer_.index, kWorkers);
  }
  __device__ void release_partials() {
    mbarrier_arrive(shared_address(&header_.partials_empty[buffer_.index]));
    buffer_.advance(2);
  }

  __device__ void store_partial_sums(const StreamK& work, const WorkRange& range,
                                     std::uint32_t gemm) const {
    const std::uint32_t begin = (range.batch * work.m_blocks + range.m_block) * work.k_blocks;
    std::uint64_t* to = partial_sums(p_, blockIdx.x, gemm, work.begin_of(blockIdx.x) >= begin);
    const std::uint32_t tokens = header_.tokens[range.batch];
    for (std::uint32_t i = warp_; i < tokens; i += kWarps) {
      store_tagged(to + i * 64 + lane_, block_sum(i, lane_), epoch_);
      store_tagged(to + i * 64 + lane_ + 32, block_sum(i, lane_ + 32), epoch_);
    }
  }

  // A lane's two rows of an M block: gate and up of one column of h, or two columns of h. Their
  // factors and biases are loaded before the sums are complete.
  struct LaneRows {
    std::uint32_t row, other;
    float factor, other_factor, bias, other_bias;
  };
  __device__ LaneRows lane_rows(const WorkRange& range) const {
    const LayerParams& layer = p_.layer;
    const auto expert = static_cast<std::uint32_t>(header_.expert[range.batch]);
    const bool gated = layer.is_gated != 0;
    const float input = p_.call.x_is_quantized != 0 ? p_.call.x_factor
                                                    : sum_factor(layer, input_scale(layer, expert));
    const float* factor = layer.w13.factor + expert * (gated ? 2 : 1);
    LaneRows result{};
    result.row = gated ? lane_ / 8 * 16 + lane_ % 8 : lane_;
    result.other = result.row + (gated ? 8 : 32);
    result.factor = unprescaled(__fmul_rn(factor[0], input));
    result.other_factor = unprescaled(__fmul_rn(factor[gated ? 1 : 0], input));
    if (layer.w13.bias != nullptr) {
      const float* bias =
          layer.w13.bias + (std::uint64_t{expert} * layer.w13.m_blocks + range.m_block) * 64;
      result.bias = bias[result.row];
      result.other_bias = bias[result.other];
    }
    return result;
  }

  // The block with the first K blocks of an output tile computes its h. The other blocks store their
  // sums for it. For them it is the first tile of their share, so it is complete early.
  __device__ void finish_gemm1_tile(const StreamK& work, const WorkRange& range) {
    if (range.first != 0) {
      wait_for_partials();
      store_partial_sums(work, range, 0);
      return release_partials();
    }
    const LaneRows rows = lane_rows(range);
    const std::uint32_t end = (range.batch * work.m_blocks + range.m_block + 1) * work.k_blocks;
    const std::uint32_t next = blockIdx.x + 1;
    const std::uint32_t last = range.count == work.k_blocks ? blockIdx.x : work.block_of(end - 1);
    const std::uint32_t count = header_.tokens[range.batch];
    // Sums of the next block are loaded before they are needed.
    const auto prefetch = [&](std::uint32_t i) -> ulonglong2 {
      if (last < next || i >= count) return {};
      const std::uint64_t* from = partial_sums(p_, next, 0, true) + i * 64;
      return ld_relaxed_both(from + rows.row, from + rows.other);
    };
    ulonglong2 prefetched = prefetch(warp_);
    wait_for_partials();
    const LayerParams& layer = p_.layer;
    const bool gated = layer.is_gated != 0;
    const std::uint32_t feature = range.m_block * (gated ? 32 : 64) + lane_;
    const std::uint64_t stride = std::uint64_t{layer.w2.k_blocks} * kBlockK;
    for (std::uint32_t i = warp_; i < count; i += kWarps) {
      float sum = block_sum(i, rows.row), other = block_sum(i, rows.other);
      ulonglong2 words = prefetched;
      prefetched = prefetch(i + kWarps);
      for (std::uint32_t block = next; block <= last; ++block) {
        if (work.is_empty(block)) continue;
        const std::uint64_t* from = partial_sums(p_, block, 0, true) + i * 64;
        const std::uint64_t *first = from + rows.row, *second = from + rows.other;
        if (block != next) words = ld_relaxed_both(first, second);
        const float2 part = spin_until(words, first, second, epoch_);
        sum = __fadd_rn(sum, part.x);
        other = __fadd_rn(other, part.y);
      }
      std::uint64_t* to = p_.hidden + header_.assignment(range.batch, i) * stride;
      sum = finish_gemm1(layer, __fmul_rn(sum, rows.factor), rows.bias);
      other = finish_gemm1(layer, __fmul_rn(other, rows.other_factor), rows.other_bias);
      if (feature < layer.intermediate)
        store_tagged(to + hidden_offset(feature), activated(layer, sum, other), epoch_);
      if (!gated && feature + 32 < layer.intermediate)
        store_tagged(to + hidden_offset(feature + 32), activated(layer, other, 0.0f), epoch_);
    }
    release_partials();
  }

  __device__ void finish_gemm2_tile(const StreamK& work, const WorkRange& range) {
    wait_for_partials();
    if (range.count == work.k_blocks) {
      const std::uint32_t tokens = header_.tokens[range.batch];
      for (std::uint32_t i = warp_; i < tokens; i += kWarps) {
        std::uint64_t* to = p_.gemm2_sums +
                            std::uint64_t{header_.assignment(range.batch, i)} * work.m_blocks * 64 +
                            range.m_block * 64;
        store_tagged(to + lane_, block_sum(i, lane_), epoch_);
        store_tagged(to + lane_ + 32, block_sum(i, lane_ + 32), epoch_);
      }
    } else {
      store_partial_sums(work, range, 1);
    }
    release_partials();
  }

  const DecodeParams& p_;
  const Block& block_;
  DecodeHeader& header_;
  std::uint32_t epoch_, me_, warp_, lane_;
  PipelineState buffer_{};
};

class CombineWarps {
 public:
  // `warp`: the index of this warp among the workers of its block.
  __device__ CombineWarps(const DecodeParams& p, const Block& block, std::uint32_t batches,
                          std::uint32_t warp)
      : p_(p),
        header_(block.header),
        work_(p.layer.w2, batches),
        epoch_(block.epoch),
        lane_(threadIdx.x % 32),
        item_(warp * gridDim.x + blockIdx.x),
        items_(p.call.tokens * work_.m_blocks * 2) {}

  // The location of the sums of an assignment's columns: in one place, or in several blocks.
  struct SumAddresses {
    const std::uint64_t* first = nullptr;   // null: the assignment is not on this rank
    const std::uint64_t* second = nullptr;  // null: there is no more
    std::uint32_t next = 0, more = 0;       // blocks behind the second
  };
  // Finds the sums of this warp's first item, long before they are complete.
  __device__ void locate() {
    if (item_ < items_) mine_ = sum_addresses(item_);
    is_located_ = true;
  }

  __device__ void run() {
    for (; item_ < items_; item_ += gridDim.x * (kWorkers / 32)) {
      if (!is_located_) locate();
      is_located_ = false;
      combine(item_, mine_);
    }
  }

 private:
  // An item: 32 columns of a token.
  struct Columns {
    std::uint32_t token, m_block, first;  // first: of the 64 columns of the M block

    __device__ Columns(std::uint32_t item, std::uint32_t m_blocks)
        : token(item / (2 * m_blocks)), m_block(0), first(item % 2 * 32) {
      m_block = item / 2 - token * m_blocks;
    }
  };
  // Lane j: of choice j.
  __device__ SumAddresses sum_addresses(std::uint32_t item) const {
    const Columns columns(item, work_.m_blocks);
    if (lane_ >= p_.call.top_k) return {};
    const std::uint32_t assignment = columns.token * p_.call.top_k + lane_;
    if (header_.expert_of_assignment[assignment] < 0) return {};
    const std::uint32_t begin =
        (header_.position_of_assignment[assignment] / kDecodeTileTokens * work_.m_blocks +
         columns.m_block) *
        work_.k_blocks;
    const std::uint32_t from = work_.block_of(begin),
                        to = work_.block_of(begin + work_.k_blocks - 1);
    if (from == to)
      return {p_.gemm2_sums + (std::uint64_t{assignment} * work_.m_blocks + columns.m_block) * 64 +
              columns.first};
    const std::uint32_t at = column_of(assignment) * 64 + columns.first;
    return {partial_sums(p_, from, 1, work_.begin_of(from) >= begin) + at,
            work_.is_empty(from + 1) ? nullptr : partial_sums(p_, from + 1, 1, true) + at, from + 2,
            to - from - 1};
  }
  // The column of an assignment in its decode tile.
  __device__ std::uint32_t column_of(std::uint32_t assignment) const {
    return header_.position_of_assignment[assignment] % kDecodeTileTokens;
  }

  // Adds up the experts of a token in the order of choices. A lane has a column; lane j knows the
  // addresses of choice j.
  __device__ void combine(std::uint32_t item, const SumAddresses& mine) const {
    constexpr std::uint32_t kInFlight = 4;
    const Columns columns(item, work_.m_blocks);
    const std::uint32_t choices = p_.call.top_k, first_assignment = columns.token * choices;
    float sum = 0.0f;
#pragma unroll 1
    for (std::uint32_t begin = 0; begin < choices; begin += kInFlight) {
      // The first two addresses of each assignment, usually all, are loaded before any wait.
      std::uint64_t words[kInFlight], more_words[kInFlight];
      const std::uint64_t *first[kInFlight], *second[kInFlight];
      float bias[kInFlight];
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        first[i] = broadcast_address(mine.first, begin + i);
        second[i] = broadcast_address(mine.second, begin + i);
        if (begin + i >= choices || first[i] == nullptr) continue;
        words[i] = ld_relaxed(first[i] + lane_);
        if (second[i] != nullptr) more_words[i] = ld_relaxed(second[i] + lane_);
        bias[i] = column_bias(columns, first_assignment + begin + i);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kInFlight; ++i) {
        if (begin + i >= choices || first[i] == nullptr) continue;
        const std::uint32_t assignment = first_assignment + begin + i;
        while (!has_epoch(words[i], epoch_)) words[i] = ld_relaxed(first[i] + lane_);
        float own = value_of(words[i]);
        if (second[i] != nullptr) {
          while (!has_epoch(more_words[i], epoch_)) more_words[i] = ld_relaxed(second[i] + lane_);
          own = __fadd_rn(own, value_of(more_words[i]));
        }
        const auto from = static_cast<int>(begin + i);
        const std::uint32_t more = __shfl_sync(kFullWarp, mine.more, from);
        const std::uint32_t next = __shfl_sync(kFullWarp, mine.next, from);
        if (more != 0) own = add_more_blocks(own, {next, more}, assignment, columns);
        sum = __fadd_rn(sum, expert_value(assignment, own, bias[i]));
      }
    }
    store(columns.token, columns.m_block * 64 + columns.first + lane_, sum);
  }
  __device__ static const std::uint64_t* broadcast_address(const std::uint64_t* mine,
                                                           std::uint32_t lane) {
    return reinterpret_cast<const std::uint64_t*>(__shfl_sync(
        kFullWarp, reinterpret_cast<unsigned long long>(mine), static_cast<int>(min(lane, 31u))));
  }
  // For an output tile that lies in more than two blocks, which only very small layers have.
  __device__ float add_more_blocks(float own, uint2 blocks, std::uint32_t assignment,
                                   const Columns& columns) const {
    for (std::uint32_t block = blocks.x; block < blocks.x + blocks.y; ++block) {
      if (work_.is_empty(block)) continue;
      const std::uint64_t* at =
          partial_sums(p_, block, 1, true) + column_of(assignment) * 64 + columns.first + lane_;
      std::uint64_t word = ld_relaxed(at);
      while (!has_epoch(word, epoch_)) word = ld_relaxed(at);
      own = __fadd_rn(own, value_of(word));
    }
    return own;
  }
  __device__ float column_bias(const Columns& columns, std::uint32_t assignment) const {
    if (p_.layer.w2.bias == nullptr) return 0.0f;
    const auto expert = static_cast<std::uint64_t>(header_.expert_of_assignment[assignment]);
    return p_.layer.w2
        .bias[(expert * work_.m_blocks + columns.m_block) * 64 + columns.first + lane_];
  }
  // The term that an expert adds to the output of a token.
  __device__ float expert_value(std::uint32_t assignment, float sum, float bias) const {
    return finish_gemm2(p_.layer, __fmul_rn(sum, header_.factors[assignment]), bias,
                        header_.weights[assignment]);
  }
  __device__ void store(std::uint32_t token, std::uint32_t column, float sum) const {
    if (column >= p_.layer.hidden) return;
    if (p_.layer.is_sum_rounded != 0) sum = round_to_bf16(sum);
    store_element(p_.call.out.data, p_.call.out.type, token * p_.call.out.stride + column, sum);
  }

  const DecodeParams& p_;
  const DecodeHeader& header_;
  StreamK work_;
  std::uint32_t epoch_, lane_, item_, items_;
  SumAddresses mine_{};  // lane j: of choice j
  bool is_located_ = false;
};

}  // namespace fp4moe::kernels::cuda::sm90::decode
