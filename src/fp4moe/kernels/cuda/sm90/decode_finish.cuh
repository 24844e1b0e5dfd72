// The finishers of a decode block: they add up what its four warpgroups summed, make h of the first
// product's groups, and add up the experts of tokens at the end.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/decode_tiles.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

// What a block leaves of a group that other blocks have units of, too: of the group its share
// begins in, or of the one it ends in. `number`: of the product.
__device__ inline std::uint64_t* partial(const DecodeParams& p, std::uint32_t block,
                                         std::uint32_t number, bool begins) {
  return p.partial +
         (std::uint64_t{block} * 4 + number * 2 + (begins ? 0 : 1)) * 64 * kDecodeColumns;
}

class Finisher {
 public:
  __device__ Finisher(const DecodeParams& p, const Memory& memory)
      : p_(p),
        memory_(memory),
        tables_(memory.tables),
        launch_(memory.launch),
        me_(threadIdx.x - kConsumerThreads - 32),
        warp_(me_ / 32),
        lane_(me_ % 32) {}

  __device__ void run(const Phase& first, std::uint32_t entries) {
    Stretch s;
    const Phase second(p_.layer.w2, entries);
    for (Stretches all(first); all.next(s);) finish_first_sums(first, s);
    std::uint32_t entry = ~0u;
    for (Stretches all(second); all.next(s);) {
      if (s.entry != entry) stage_hidden(p_, memory_, s.entry);
      entry = s.entry;
      finish_second_sums(second, s);
    }
    if (entry == ~0u) named_barrier_sync(kStagersMeet, kStagers);
  }

  // Factors and weights of all slots, once; consumers see them when all meet.
  __device__ void prepare_slots() const {
    const Layer& layer = p_.layer;
    const bool is_weighted = p_.call.weight_on_input == 0;
    for (std::uint32_t slot = me_; slot < p_.call.tokens * p_.call.top_k; slot += kFinishers) {
      if (tables_.expert_of_slot[slot] < 0) continue;
      const auto expert = static_cast<std::uint32_t>(tables_.expert_of_slot[slot]);
      const float global = folds_global(layer, is_weighted) ? down_global(layer, expert) : 1.0f;
      tables_.factors[slot] = lowered(__fmul_rn(__fdiv_rn(layer.w2.factor[expert], global),
                                                sum_factor(layer, hidden_scale(layer, expert))));
      tables_.weights[slot] =
          is_weighted ? router_weight(layer, tables_.weights[slot], global) : 1.0f;
    }
  }

 private:
  static constexpr std::uint32_t kWarps = kFinishers / 32;

  __device__ float lowered(float factor) const {
    return memory_.raises ? __fmul_rn(factor, kLower) : factor;
  }

  // The sum of the warpgroups, of slot `i` of the entry.
  __device__ float near_sum(std::uint32_t i, std::uint32_t row) const {
    const float* from =
        memory_.sums + (place_.index * kConsumers * kDecodeColumns + i) * kSumStride + row;
    float sum = from[0];
#pragma unroll
    for (std::uint32_t w = 1; w < kConsumers; ++w)
      sum = __fadd_rn(sum, from[w * kDecodeColumns * kSumStride]);
    return sum;
  }
  __device__ void wait_for_sums() const {
    named_barrier_sync(kSumsAreThere + place_.index, kStagers);
  }
  __device__ void free_sums() {
    mbarrier_arrive(shared_address(&tables_.sums_empty[place_.index]));
    place_.advance(2);
  }

  __device__ void leave_partial(const Phase& phase, const Stretch& s, std::uint32_t number) const {
    const std::uint32_t begin = (s.entry * phase.groups + s.group) * phase.units;
    std::uint64_t* to = partial(p_, blockIdx.x, number, phase.begin_of(blockIdx.x) >= begin);
    const std::uint32_t rows = tables_.rows[s.entry];
    for (std::uint32_t i = warp_; i < rows; i += kWarps) {
      leave(to + i * 64 + lane_, near_sum(i, lane_), launch_);
      leave(to + i * 64 + lane_ + 32, near_sum(i, lane_ + 32), launch_);
    }
  }

  // A lane's two rows of a group: gate and up of one feature, or two features. What belongs to them
  // is loaded before the sums are there.
  struct HiddenRows {
    std::uint32_t row, other;
    float factor, other_factor, bias, other_bias;
  };
  __device__ HiddenRows hidden_rows(const Stretch& s) const {
    const Layer& layer = p_.layer;
    const auto expert = static_cast<std::uint32_t>(tables_.expert[s.entry]);
    const bool gated = layer.is_gated != 0;
    const float input = p_.call.x_is_quantised != 0 ? p_.call.x_factor
                                                    : sum_factor(layer, input_scale(layer, expert));
    const float* factor = layer.w13.factor + expert * (gated ? 2 : 1);
    HiddenRows made{};
    made.row = gated ? lane_ / 8 * 16 + lane_ % 8 : lane_;
    made.other = made.row + (gated ? 8 : 32);
    made.factor = lowered(__fmul_rn(factor[0], input));
    made.other_factor = lowered(__fmul_rn(factor[gated ? 1 : 0], input));
    if (layer.w13.bias != nullptr) {
      const float* bias =
          layer.w13.bias + (std::uint64_t{expert} * layer.w13.groups + s.group) * 64;
      made.bias = bias[made.row];
      made.other_bias = bias[made.other];
    }
    return made;
  }

  // The block that has a group's first units makes its h; others leave their sums to it. They have
  // these units first of all, so that they are there when it comes to them.
  __device__ void finish_first_sums(const Phase& phase, const Stretch& s) {
    if (s.first != 0) {
      wait_for_sums();
      leave_partial(phase, s, 0);
      return free_sums();
    }
    const HiddenRows rows = hidden_rows(s);
    const std::uint32_t end = (s.entry * phase.groups + s.group + 1) * phase.units;
    const std::uint32_t next = blockIdx.x + 1;
    const std::uint32_t last = s.count == phase.units ? blockIdx.x : phase.block_of(end - 1);
    const std::uint32_t count = tables_.rows[s.entry];
    // What the next block left is asked for before it is wanted.
    const auto ask = [&](std::uint32_t i) -> ulonglong2 {
      if (last < next || i >= count) return {};
      const std::uint64_t* from = partial(p_, next, 0, true) + i * 64;
      return look(from + rows.row, from + rows.other);
    };
    ulonglong2 asked = ask(warp_);
    wait_for_sums();
    const Layer& layer = p_.layer;
    const bool gated = layer.is_gated != 0;
    const std::uint32_t feature = s.group * (gated ? 32 : 64) + lane_;
    const std::uint64_t stride = std::uint64_t{layer.w2.units} * kUnit;
    for (std::uint32_t i = warp_; i < count; i += kWarps) {
      float sum = near_sum(i, rows.row), other = near_sum(i, rows.other);
      ulonglong2 looked = asked;
      asked = ask(i + kWarps);
      for (std::uint32_t block = next; block <= last; ++block) {
        if (phase.is_empty(block)) continue;
        const std::uint64_t* from = partial(p_, block, 0, true) + i * 64;
        const std::uint64_t *first = from + rows.row, *second = from + rows.other;
        if (block != next) looked = look(first, second);
        const float2 part = await(looked, first, second, launch_);
        sum = __fadd_rn(sum, part.x);
        other = __fadd_rn(other, part.y);
      }
      std::uint64_t* to = p_.hidden + tables_.slot(s.entry, i) * stride;
      sum = finish_first(layer, __fmul_rn(sum, rows.factor), rows.bias);
      other = finish_first(layer, __fmul_rn(other, rows.other_factor), rows.other_bias);
      if (feature < layer.intermediate)
        leave(to + hidden_place(feature), activated(layer, sum, other), launch_);
      if (!gated && feature + 32 < layer.intermediate)
        leave(to + hidden_place(feature + 32), activated(layer, other, 0.0f), launch_);
    }
    free_sums();
  }

  __device__ void finish_second_sums(const Phase& phase, const Stretch& s) {
    wait_for_sums();
    if (s.count == phase.units) {
      const std::uint32_t rows = tables_.rows[s.entry];
      for (std::uint32_t i = warp_; i < rows; i += kWarps) {
        std::uint64_t* to =
            p_.sums + std::uint64_t{tables_.slot(s.entry, i)} * phase.groups * 64 + s.group * 64;
        leave(to + lane_, near_sum(i, lane_), launch_);
        leave(to + lane_ + 32, near_sum(i, lane_ + 32), launch_);
      }
    } else {
      leave_partial(phase, s, 1);
    }
    free_sums();
  }

  const DecodeParams& p_;
  const Memory& memory_;
  Tables& tables_;
  std::uint32_t launch_, me_, warp_, lane_;
  PipelineState place_{};
};

// The output: all warps but the producers add up the experts of some tokens and columns.
class Output {
 public:
  // `turn`: of this warp in its block.
  __device__ Output(const DecodeParams& p, const Memory& memory, std::uint32_t entries,
                    std::uint32_t turn)
      : p_(p),
        tables_(memory.tables),
        phase_(p.layer.w2, entries),
        launch_(memory.launch),
        lane_(threadIdx.x % 32),
        number_(turn * gridDim.x + blockIdx.x),
        all_(p.call.tokens * phase_.groups * 2) {}

  // Where the sums of a slot's columns lie: in one place, or in several blocks'.
  struct SlotSums {
    const std::uint64_t* first = nullptr;   // null: the slot is nobody's here
    const std::uint64_t* second = nullptr;  // null: there is no more
    std::uint32_t next = 0, more = 0;       // blocks behind the second
  };
  // Of the first columns of this warp, long before the sums come.
  __device__ void locate() {
    if (number_ < all_) mine_ = choice_sums(number_);
    is_located_ = true;
  }

  __device__ void add_all() {
    for (; number_ < all_; number_ += gridDim.x * (kStagers / 32)) {
      if (!is_located_) locate();
      is_located_ = false;
      add_experts(number_, mine_);
    }
  }

 private:
  // 32 columns of a token.
  struct Columns {
    std::uint32_t token, group, first;  // first: of the 64 of the group

    __device__ Columns(std::uint32_t number, std::uint32_t groups)
        : token(number / (2 * groups)), group(0), first(number % 2 * 32) {
      group = number / 2 - token * groups;
    }
  };
  // Lane j: of choice j.
  __device__ SlotSums choice_sums(std::uint32_t number) const {
    const Columns columns(number, phase_.groups);
    if (lane_ >= p_.call.top_k) return {};
    const std::uint32_t slot = columns.token * p_.call.top_k + lane_;
    if (tables_.expert_of_slot[slot] < 0) return {};
    const std::uint32_t begin =
        (tables_.place_of_slot[slot] / kDecodeColumns * phase_.groups + columns.group) *
        phase_.units;
    const std::uint32_t from = phase_.block_of(begin),
                        to = phase_.block_of(begin + phase_.units - 1);
    if (from == to)
      return {p_.sums + (std::uint64_t{slot} * phase_.groups + columns.group) * 64 + columns.first};
    const std::uint32_t at = row_of(slot) * 64 + columns.first;
    return {partial(p_, from, 1, phase_.begin_of(from) >= begin) + at,
            phase_.is_empty(from + 1) ? nullptr : partial(p_, from + 1, 1, true) + at, from + 2,
            to - from - 1};
  }
  __device__ std::uint32_t row_of(std::uint32_t slot) const {
    return tables_.place_of_slot[slot] % kDecodeColumns;
  }

  // What a token's experts made, added up in the order of choices. A lane has a column; lane j
  // knows where choice j lies.
  __device__ void add_experts(std::uint32_t number, const SlotSums& mine) const {
    constexpr std::uint32_t kTogether = 4;
    const Columns columns(number, phase_.groups);
    const std::uint32_t choices = p_.call.top_k, first_slot = columns.token * choices;
    float sum = 0.0f;
#pragma unroll 1
    for (std::uint32_t begin = 0; begin < choices; begin += kTogether) {
      // Of each slot the first two places, which are all there are as a rule, are looked at before
      // anything is waited for.
      std::uint64_t words[kTogether], more_words[kTogether];
      const std::uint64_t *first[kTogether], *second[kTogether];
      float bias[kTogether];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        first[i] = address_of(mine.first, begin + i);
        second[i] = address_of(mine.second, begin + i);
        if (begin + i >= choices || first[i] == nullptr) continue;
        words[i] = look(first[i] + lane_);
        if (second[i] != nullptr) more_words[i] = look(second[i] + lane_);
        bias[i] = slot_bias(columns, first_slot + begin + i);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        if (begin + i >= choices || first[i] == nullptr) continue;
        const std::uint32_t slot = first_slot + begin + i;
        while (!is_of(words[i], launch_)) words[i] = look(first[i] + lane_);
        float own = number_of(words[i]);
        if (second[i] != nullptr) {
          while (!is_of(more_words[i], launch_)) more_words[i] = look(second[i] + lane_);
          own = __fadd_rn(own, number_of(more_words[i]));
        }
        const auto from = static_cast<int>(begin + i);
        const std::uint32_t more = __shfl_sync(kFullWarp, mine.more, from);
        const std::uint32_t next = __shfl_sync(kFullWarp, mine.next, from);
        if (more != 0) own = add_more(own, {next, more}, slot, columns);
        sum = __fadd_rn(sum, row_value(slot, own, bias[i]));
      }
    }
    store(columns.token, columns.group * 64 + columns.first + lane_, sum);
  }
  __device__ static const std::uint64_t* address_of(const std::uint64_t* mine, std::uint32_t lane) {
    return reinterpret_cast<const std::uint64_t*>(__shfl_sync(
        kFullWarp, reinterpret_cast<unsigned long long>(mine), static_cast<int>(min(lane, 31u))));
  }
  // Of a group that lies in more than two blocks: the smallest layers.
  __device__ float add_more(float own, uint2 blocks, std::uint32_t slot,
                            const Columns& columns) const {
    for (std::uint32_t block = blocks.x; block < blocks.x + blocks.y; ++block) {
      if (phase_.is_empty(block)) continue;
      const std::uint64_t* at =
          partial(p_, block, 1, true) + row_of(slot) * 64 + columns.first + lane_;
      std::uint64_t word = look(at);
      while (!is_of(word, launch_)) word = look(at);
      own = __fadd_rn(own, number_of(word));
    }
    return own;
  }
  __device__ float slot_bias(const Columns& columns, std::uint32_t slot) const {
    if (p_.layer.w2.bias == nullptr) return 0.0f;
    const auto expert = static_cast<std::uint64_t>(tables_.expert_of_slot[slot]);
    return p_.layer.w2.bias[(expert * phase_.groups + columns.group) * 64 + columns.first + lane_];
  }
  // What an expert adds to a token's output.
  __device__ float row_value(std::uint32_t slot, float sum, float bias) const {
    return finish_second(p_.layer, __fmul_rn(sum, tables_.factors[slot]), bias,
                         tables_.weights[slot]);
  }
  __device__ void store(std::uint32_t token, std::uint32_t column, float sum) const {
    if (column >= p_.layer.hidden) return;
    if (p_.layer.rounds_sum != 0) sum = rounded_to_bf16(sum);
    store_number(p_.call.out.data, p_.call.out.type, token * p_.call.out.stride + column, sum);
  }

  const DecodeParams& p_;
  const Tables& tables_;
  Phase phase_;
  std::uint32_t launch_, lane_, number_, all_;
  SlotSums mine_{};  // lane j: of choice j
  bool is_located_ = false;
};

}  // namespace fp4moe::kernels::cuda::sm90::decode
