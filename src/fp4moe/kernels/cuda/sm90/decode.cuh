// A whole layer for a few tokens in one launch: one block a multiprocessor, all of them resident.
//
//   every block   routes all tokens, lists who goes to which expert, takes its share of the units
//   of
//                 both products
//   producer      streams the share through a ring of stages, the first product's units, then
//                 without a stop the second's
//   consumers     four warpgroups: each takes every fourth unit of a stage, each warp 16 rows;
//   their
//                 sums of a group of rows go to shared memory
//   finishers     three warps: add the four up, in a fixed order; a group whose units lie in
//   several
//                 blocks is finished by the last of them, again in a fixed order. The first
//                 product's become h, the second's go into the tokens' sums, stripe by stripe.
//
// Blocks tell each other by counters: units of a group that are summed, groups of an expert's h
// that are there, entries of a stripe that are there. The last block of a launch clears them.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/activation.cuh"
#include "fp4moe/kernels/cuda/sm90/decode_tables.cuh"
#include "fp4moe/kernels/cuda/sm90/pieces.cuh"
#include "fp4moe/kernels/cuda/sm90/weights.cuh"

namespace fp4moe::kernels::cuda::sm90::decode {

inline constexpr std::uint32_t kConsumerThreads = kConsumers * 128;
inline constexpr std::uint32_t kFinishers = 96;
inline constexpr std::uint32_t kStagers = kConsumerThreads + kFinishers;  // all but the producer
enum Barriers : std::uint32_t { kStagersMeet = 1, kFinishersMeet = 2, kListIsThere = 3 };

struct Place {
  std::uint32_t at = 0, parity = 0;
  __device__ void advance(std::uint32_t size) {
    if (++at < size) return;
    at = 0;
    parity ^= 1;
  }
};

// Where a launch's counters lie.
struct Counters {
  std::uint32_t* done;    // blocks
  std::uint32_t* stripe;  // [w2.groups]: units
  std::uint32_t* ready;   // [entries]: groups of h
  std::uint32_t* first;   // [entries][w13.groups]: units
  std::uint32_t used;

  __device__ Counters(const DecodeParams& p, std::uint32_t entries) {
    done = p.counters;
    stripe = done + 1;
    ready = stripe + p.layer.w2.groups;
    first = ready + entries;
    used = 1 + p.layer.w2.groups + entries * (1 + p.layer.w13.groups);
  }
};

struct Memory {
  Tables& tables;
  std::uint32_t tokens;  // the tile that is multiplied: [unit][columns][128 bytes]
  std::uint32_t ring;
  float* sums;  // [2][consumers][columns][kSumStride]
};

template <class Format>
__device__ void produce(const DecodeParams& p, const Memory& memory) {
  Tables& tables = memory.tables;
  Place stage;
  const auto stream = [&](const Matrix& matrix) {
    const Phase phase(matrix, tables.entries);
    Stretches stretches(phase);
    for (Stretch s; stretches.next(s);) {
      const std::uint8_t* from =
          matrix.records + std::uint64_t(tables.expert[s.entry]) * matrix.expert_bytes +
          (std::uint64_t{s.group} * matrix.units + s.first) * Format::kRecord;
      for (std::uint32_t left = s.count; left > 0;) {
        const std::uint32_t units = min(kDecodeStageUnits, left);
        const std::uint32_t barrier = shared_address(&tables.full[stage.at]);
        barrier_wait(shared_address(&tables.empty[stage.at]), stage.parity ^ 1);
        barrier_expect(barrier, units * Format::kRecord);
        bulk_copy(memory.ring + stage.at * kDecodeStageUnits * Format::kRecord, from,
                  units * Format::kRecord, barrier);
        from += units * Format::kRecord;
        left -= units;
        stage.advance(p.stages);
      }
    }
  };
  stream(p.layer.w13);
  stream(p.layer.w2);
}

// --- Tiles of tokens, staged by consumers and finishers together.

__device__ inline void store_tokens(const Memory& memory, std::uint32_t columns, std::uint32_t row,
                                    std::uint32_t piece, const uint4& words) {
  const std::uint32_t to =
      memory.tokens + piece / 8 * columns * 128 + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ inline std::uint32_t stager() {
  return threadIdx.x < kConsumerThreads ? threadIdx.x : threadIdx.x - 32;
}

// `rows` rows of `width` columns; load(row, piece) gives eight. Zero beyond the width.
template <class Load>
__device__ inline void stage_rows(const DecodeParams& p, const Memory& memory, std::uint32_t rows,
                                  std::uint32_t width, Quantise kind, float global,
                                  const Load& load) {
  const std::uint32_t pieces = (width + kUnit - 1) / kUnit * (kUnit / kPiece);
  // Whole warps stay together: blocks of quantised values span lanes.
  const std::uint32_t padded = (pieces + 31) / 32 * 32;
  for (std::uint32_t i = stager(); i < rows * padded; i += kStagers) {
    const std::uint32_t row = i / padded, piece = i - row * padded;
    const bool is_real = piece * kPiece < width;
    Piece values = is_real ? load(row, piece) : no_piece();
    if (kind != Quantise::none) {
      const float amax = block_amax(kind, values);
      if (is_real) values = placed_piece(p.layer, values, amax, global);
    }
    if (piece < pieces) store_tokens(memory, p.columns, row, piece, to_bf16(values));
  }
}

__device__ inline void stage_inputs(const DecodeParams& p, const Memory& memory) {
  const Quantise kind = p.call.x_is_quantised != 0 ? Quantise::none : p.layer.quantise;
  stage_rows(p, memory, p.call.tokens, p.layer.hidden, kind, input_scale(p.layer, 0),
             [&](std::uint32_t row, std::uint32_t piece) {
               return load_piece(p.call.x.data, p.call.x.type,
                                 row * p.call.x.stride + piece * kPiece);
             });
}

// h of an entry, once every group of its rows is there.
__device__ inline void stage_hidden(const DecodeParams& p, const Memory& memory,
                                    const Counters& counters, std::uint32_t entry) {
  const Tables& tables = memory.tables;
  sync_some(kStagersMeet, kStagers);  // nobody multiplies the tile before
  if (threadIdx.x % 32 == 0)
    while (load_acquire(counters.ready + entry) < p.layer.w13.groups) {
    }
  __syncwarp();
  const std::uint32_t first = tables.first[entry], rows = tables.first[entry + 1] - first;
  const auto expert = static_cast<std::uint32_t>(tables.expert[entry]);
  const std::uint64_t stride = std::uint64_t{p.layer.w2.units} * kUnit;
  stage_rows(p, memory, rows, p.layer.intermediate, p.layer.quantise, hidden_scale(p.layer, expert),
             [&](std::uint32_t row, std::uint32_t piece) {
               const auto* at = reinterpret_cast<const float4*>(
                   p.hidden + tables.list[first + row] * stride + piece * kPiece);
               const float4 a = __ldcg(at), b = __ldcg(at + 1);
               return Piece{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
             });
  sync_some(kStagersMeet, kStagers);
}

// --- Consumers.

struct Consumer {
  std::uint32_t group, warp, lane, row;
  Place stage, sums;
};

template <class Format, int columns>
__device__ inline void multiply(const DecodeParams& p, const Memory& memory, Consumer& me,
                                const Stretch& s) {
  float sums[columns / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  Operands<Format, columns / 8> now;
  std::uint32_t tokens = memory.tokens + (s.first + me.group) * columns * 128;
  for (std::uint32_t left = s.count; left > 0;) {
    const std::uint32_t units = min(kDecodeStageUnits, left);
    barrier_wait(shared_address(&memory.tables.full[me.stage.at]), me.stage.parity);
    const std::uint32_t record =
        memory.ring + (me.stage.at * kDecodeStageUnits + me.group) * Format::kRecord;
#pragma unroll
    for (std::uint32_t u = 0; u < kDecodeStageUnits; u += kConsumers) {
      if (me.group + u >= units) break;
      now.load(record + u * Format::kRecord, me.warp, me.lane, tokens + u * columns * 128, me.row);
      now.multiply(sums);
    }
    __syncwarp();
    if (me.lane == 0) barrier_arrive(shared_address(&memory.tables.empty[me.stage.at]));
    me.stage.advance(p.stages);
    tokens += kDecodeStageUnits * columns * 128;
    left -= units;
  }
  barrier_wait(shared_address(&memory.tables.sums_empty[me.sums.at]), me.sums.parity ^ 1);
  float* to = memory.sums +
              ((me.sums.at * kConsumers + me.group) * columns + me.lane % 4 * 2) * kSumStride +
              me.warp * 16 + me.lane / 4;
#pragma unroll
  for (int e = 0; e < columns / 8; ++e) {
    to[e * 8 * kSumStride] = sums[4 * e];
    to[(e * 8 + 1) * kSumStride] = sums[4 * e + 1];
    to[e * 8 * kSumStride + 8] = sums[4 * e + 2];
    to[(e * 8 + 1) * kSumStride + 8] = sums[4 * e + 3];
  }
  __syncwarp();
  if (me.lane == 0) barrier_arrive(shared_address(&memory.tables.sums_full[me.sums.at]));
  me.sums.advance(2);
}

template <class Format, int columns>
__device__ void consume(const DecodeParams& p, const Memory& memory, const Counters& counters) {
  const std::uint32_t lane = threadIdx.x % 32;
  Consumer me{threadIdx.x / 128, threadIdx.x / 32 % 4, lane, matrix_row(lane), {}, {}};
  Stretch s;
  for (Stretches all(Phase(p.layer.w13, memory.tables.entries)); all.next(s);)
    multiply<Format, columns>(p, memory, me, s);
  std::uint32_t staged = ~0u;
  for (Stretches all(Phase(p.layer.w2, memory.tables.entries)); all.next(s);) {
    if (s.entry != staged) stage_hidden(p, memory, counters, s.entry);
    staged = s.entry;
    multiply<Format, columns>(p, memory, me, s);
  }
}

// --- Finishers.

class Finisher {
 public:
  __device__ Finisher(const DecodeParams& p, const Memory& memory, const Counters& counters)
      : p_(p),
        memory_(memory),
        tables_(memory.tables),
        counters_(counters),
        me_(threadIdx.x - kConsumerThreads - 32),
        warp_(me_ / 32),
        lane_(me_ % 32) {}

  __device__ void run() {
    prepare_slots();
    Stretch s;
    const Phase first(p_.layer.w13, tables_.entries), second(p_.layer.w2, tables_.entries);
    std::uint32_t entry = ~0u, made = 0;  // groups of h that nobody was told of yet
    for (Stretches all(first); all.next(s);) {
      if (s.entry != entry) tell(entry, made);
      entry = s.entry;
      if (finish_first_sums(first, s)) ++made;
    }
    tell(entry, made);
    entry = ~0u;
    for (Stretches all(second); all.next(s);) {
      if (s.entry != entry) stage_hidden(p_, memory_, counters_, s.entry);
      entry = s.entry;
      finish_second_sums(second, s);
    }
    if (!completes(counters_.done, 1, gridDim.x)) return;
    for (std::uint32_t i = me_; i < counters_.used; i += kFinishers) p_.counters[i] = 0;
  }

 private:
  static constexpr std::uint32_t kWarps = kFinishers / 32;

  __device__ std::uint32_t rows_of(std::uint32_t entry) const {
    return tables_.first[entry + 1] - tables_.first[entry];
  }
  __device__ std::uint32_t slot_of(std::uint32_t entry, std::uint32_t i) const {
    return tables_.list[tables_.first[entry] + i];
  }
  __device__ void meet() const { sync_some(kFinishersMeet, kFinishers); }

  // Whether this block brought a counter to `whole`. Who does sees all that finishers of other
  // blocks wrote before.
  __device__ bool completes(std::uint32_t* counter, std::uint32_t part, std::uint32_t whole) {
    turn_ ^= 1;
    meet();
    if (me_ == 0)
      tables_.is_last[turn_] = add_acquire_release(counter, part) + part == whole ? 1 : 0;
    meet();
    return tables_.is_last[turn_] != 0;
  }
  __device__ void tell(std::uint32_t entry, std::uint32_t& made) const {
    if (made == 0) return;
    meet();
    if (me_ == 0) add_release(counters_.ready + entry, made);
    made = 0;
  }

  // The sum of the warpgroups.
  __device__ float near_sum(std::uint32_t column, std::uint32_t row) const {
    const float* from = memory_.sums + (place_.at * kConsumers * p_.columns + column) * kSumStride;
    float sum = from[row];
#pragma unroll
    for (std::uint32_t w = 1; w < kConsumers; ++w)
      sum = __fadd_rn(sum, from[w * p_.columns * kSumStride + row]);
    return sum;
  }
  __device__ void free_sums() {
    meet();
    if (me_ == 0) barrier_arrive(shared_address(&tables_.sums_empty[place_.at]));
    place_.advance(2);
  }

  // What a block left of a group it has not all units of: of the group its share begins in, or of
  // the one it ends in.
  __device__ float* partial(std::uint32_t block, std::uint32_t number, bool begins) const {
    return p_.partial +
           (std::uint64_t{block} * 4 + number * 2 + (begins ? 0 : 1)) * 64 * p_.columns;
  }
  // Two elements of what all blocks left of a group, in their order. Loads of the first few go
  // together.
  __device__ float2 far_sums(const Phase& phase, std::uint32_t number, std::uint32_t begin,
                             std::uint32_t at, std::uint32_t other) const {
    const std::uint32_t from = phase.block_of(begin), to = phase.block_of(begin + phase.units - 1);
    constexpr std::uint32_t kTogether = 3;
    float2 sum{0.0f, 0.0f};
    for (std::uint32_t block = from; block <= to; block += kTogether) {
      float2 parts[kTogether];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        const float* left = partial(block + i, number, phase.begin_of(block + i) >= begin);
        if (block + i <= to) parts[i] = {__ldcg(left + at), __ldcg(left + other)};
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i)
        if (block + i <= to) sum = {__fadd_rn(sum.x, parts[i].x), __fadd_rn(sum.y, parts[i].y)};
    }
    return sum;
  }

  __device__ void keep_partial(const Phase& phase, const Stretch& s, std::uint32_t number) const {
    const std::uint32_t begin = (s.entry * phase.groups + s.group) * phase.units;
    float* to = partial(blockIdx.x, number, phase.begin_of(blockIdx.x) >= begin);
    const std::uint32_t rows = rows_of(s.entry);
    for (std::uint32_t i = warp_; i < rows; i += kWarps) {
      const std::uint32_t column = number == 0 ? slot_of(s.entry, i) / p_.call.top_k : i;
      to[i * 64 + lane_] = near_sum(column, lane_);
      to[i * 64 + lane_ + 32] = near_sum(column, lane_ + 32);
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
    made.factor = __fmul_rn(factor[0], input);
    made.other_factor = __fmul_rn(factor[gated ? 1 : 0], input);
    if (layer.w13.bias != nullptr) {
      const float* bias =
          layer.w13.bias + (std::uint64_t{expert} * layer.w13.groups + s.group) * 64;
      made.bias = bias[made.row];
      made.other_bias = bias[made.other];
    }
    return made;
  }

  // Whether this block made the group's h.
  __device__ bool finish_first_sums(const Phase& phase, const Stretch& s) {
    const HiddenRows rows = hidden_rows(s);
    barrier_wait(shared_address(&tables_.sums_full[place_.at]), place_.parity);
    if (s.count == phase.units) {
      make_hidden(s, rows, [&](std::uint32_t i) -> float2 {
        const std::uint32_t column = slot_of(s.entry, i) / p_.call.top_k;  // all tokens
        return {near_sum(column, rows.row), near_sum(column, rows.other)};
      });
      free_sums();
      return true;
    }
    keep_partial(phase, s, 0);
    free_sums();
    const std::uint32_t at = s.entry * phase.groups + s.group;
    if (!completes(counters_.first + at, s.count, phase.units)) return false;
    make_hidden(s, rows, [&](std::uint32_t i) {
      return far_sums(phase, 0, at * phase.units, i * 64 + rows.row, i * 64 + rows.other);
    });
    return true;
  }

  template <class Sums>
  __device__ void make_hidden(const Stretch& s, const HiddenRows& rows, const Sums& sums) const {
    const Layer& layer = p_.layer;
    const bool gated = layer.is_gated != 0;
    const std::uint32_t feature = s.group * (gated ? 32 : 64) + lane_;
    const std::uint64_t stride = std::uint64_t{layer.w2.units} * kUnit;
    const std::uint32_t count = rows_of(s.entry);
    for (std::uint32_t i = warp_; i < count; i += kWarps) {
      float* to = p_.hidden + slot_of(s.entry, i) * stride;
      const float2 sum = sums(i);
      const float first = finish_first(layer, __fmul_rn(sum.x, rows.factor), rows.bias);
      const float second =
          finish_first(layer, __fmul_rn(sum.y, rows.other_factor), rows.other_bias);
      if (feature < layer.intermediate) to[feature] = activated(layer, first, second);
      if (!gated && feature + 32 < layer.intermediate)
        to[feature + 32] = activated(layer, second, 0.0f);
    }
  }

  __device__ void finish_second_sums(const Phase& phase, const Stretch& s) {
    barrier_wait(shared_address(&tables_.sums_full[place_.at]), place_.parity);
    if (s.count == phase.units) {
      const std::uint32_t rows = rows_of(s.entry);
      for (std::uint32_t i = warp_; i < rows; i += kWarps) {
        float* to = p_.sums + std::uint64_t{slot_of(s.entry, i)} * phase.groups * 64 + s.group * 64;
        to[lane_] = near_sum(i, lane_);
        to[lane_ + 32] = near_sum(i, lane_ + 32);
      }
    } else {
      keep_partial(phase, s, 1);
    }
    free_sums();
    if (completes(counters_.stripe + s.group, s.count, tables_.entries * phase.units))
      add_stripe(phase, s.group);
  }

  // Factors and weights of all slots, once.
  __device__ void prepare_slots() const {
    const Layer& layer = p_.layer;
    const bool is_weighted = p_.call.weight_on_input == 0;
    for (std::uint32_t slot = me_; slot < p_.call.tokens * p_.call.top_k; slot += kFinishers) {
      if (tables_.expert_of_slot[slot] < 0) continue;
      const auto expert = static_cast<std::uint32_t>(tables_.expert_of_slot[slot]);
      const float global = folds_global(layer, is_weighted) ? down_global(layer, expert) : 1.0f;
      tables_.factors[slot] = __fmul_rn(__fdiv_rn(layer.w2.factor[expert], global),
                                        sum_factor(layer, hidden_scale(layer, expert)));
      tables_.weights[slot] =
          is_weighted ? router_weight(layer, tables_.weights[slot], global) : 1.0f;
    }
    meet();
  }

  // Where the sums of a slot's 64 columns lie: in one place, or in several blocks'.
  struct SlotSums {
    const float* first = nullptr;      // null: the slot is nobody's here
    std::uint32_t next = 0, more = 0;  // blocks behind the first
  };
  __device__ SlotSums slot_sums(const Phase& phase, std::uint32_t group, std::uint32_t slot) const {
    if (tables_.expert_of_slot[slot] < 0) return {};
    const std::uint32_t begin = (tables_.entry_of_slot[slot] * phase.groups + group) * phase.units;
    const std::uint32_t from = phase.block_of(begin), to = phase.block_of(begin + phase.units - 1);
    if (from == to) return {p_.sums + std::uint64_t{slot} * phase.groups * 64 + group * 64, 0, 0};
    return {partial(from, 1, phase.begin_of(from) >= begin) + row_of(slot) * 64, from + 1,
            to - from};
  }
  __device__ std::uint32_t row_of(std::uint32_t slot) const {
    return tables_.rank[slot] % p_.columns;
  }

  // 64 columns of all tokens: what their experts made, added up in the order of choices. A lane has
  // two columns; lane j knows where choice j lies.
  __device__ void add_stripe(const Phase& phase, std::uint32_t group) const {
    constexpr std::uint32_t kTogether = 4, kWhole = 0xFFFFFFFFu;
    const std::uint32_t column = 2 * lane_, choices = p_.call.top_k;
    for (std::uint32_t t = warp_; t < p_.call.tokens; t += kWarps) {
      SlotSums mine{};
      if (lane_ < choices) mine = slot_sums(phase, group, t * choices + lane_);
      float2 sum{0.0f, 0.0f};
      for (std::uint32_t begin = 0; begin < choices; begin += kTogether) {
        float2 values[kTogether], bias[kTogether], second[kTogether];
        SlotSums at[kTogether];
#pragma unroll
        for (std::uint32_t i = 0; i < kTogether; ++i) {
          const auto from = static_cast<int>(min(begin + i, 31u));
          at[i].first = reinterpret_cast<const float*>(
              __shfl_sync(kWhole, reinterpret_cast<unsigned long long>(mine.first), from));
          at[i].next = __shfl_sync(kWhole, mine.next, from);
          at[i].more = __shfl_sync(kWhole, mine.more, from);
          if (begin + i >= choices) at[i].first = nullptr;
          if (at[i].first == nullptr) continue;
          const std::uint32_t slot = t * choices + begin + i;
          values[i] = __ldcg(reinterpret_cast<const float2*>(at[i].first + column));
          bias[i] = slot_bias(phase, group, slot, column);
          if (at[i].more != 0)
            second[i] = __ldcg(reinterpret_cast<const float2*>(partial(at[i].next, 1, true) +
                                                               row_of(slot) * 64 + column));
        }
#pragma unroll
        for (std::uint32_t i = 0; i < kTogether; ++i) {
          if (at[i].first == nullptr) continue;
          const std::uint32_t slot = t * choices + begin + i;
          if (at[i].more != 0)
            values[i] = {__fadd_rn(values[i].x, second[i].x), __fadd_rn(values[i].y, second[i].y)};
          for (std::uint32_t b = 1; b < at[i].more; ++b) {
            const float2 part = __ldcg(reinterpret_cast<const float2*>(
                partial(at[i].next + b, 1, true) + row_of(slot) * 64 + column));
            values[i] = {__fadd_rn(values[i].x, part.x), __fadd_rn(values[i].y, part.y)};
          }
          sum.x = __fadd_rn(sum.x, row_value(slot, values[i].x, bias[i].x));
          sum.y = __fadd_rn(sum.y, row_value(slot, values[i].y, bias[i].y));
        }
      }
      store(t, group * 64 + column, sum.x);
      store(t, group * 64 + column + 1, sum.y);
    }
  }
  __device__ float2 slot_bias(const Phase& phase, std::uint32_t group, std::uint32_t slot,
                              std::uint32_t column) const {
    if (p_.layer.w2.bias == nullptr) return {0.0f, 0.0f};
    const auto expert = static_cast<std::uint64_t>(tables_.expert_of_slot[slot]);
    return *reinterpret_cast<const float2*>(p_.layer.w2.bias +
                                            (expert * phase.groups + group) * 64 + column);
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
  const Memory& memory_;
  Tables& tables_;
  const Counters& counters_;
  std::uint32_t me_, warp_, lane_, turn_ = 0;
  Place place_{};
};

// No expert of this rank was chosen.
__device__ inline void clear_output(const DecodeParams& p) {
  const std::uint32_t all = p.call.tokens * p.layer.hidden;
  for (std::uint32_t i = blockIdx.x * kStagers + stager(); i < all; i += gridDim.x * kStagers)
    store_number(p.call.out.data, p.call.out.type,
                 i / p.layer.hidden * p.call.out.stride + i % p.layer.hidden, 0.0f);
}

template <class Format>
__device__ void run(const DecodeParams& p) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Tables& tables = *reinterpret_cast<Tables*>(bytes);
  const std::uint32_t tile = p.columns * 128 * max(p.layer.w13.units, p.layer.w2.units);
  const std::uint32_t ring_bytes = p.stages * kDecodeStageUnits * Format::kRecord;
  // Swizzled tokens want multiples of 1024; the tables leave room for that.
  const std::uint32_t begin = shared_address(bytes);
  const std::uint32_t tokens = (begin + sizeof(Tables) + 1023) & ~1023u;
  std::uint8_t* ring = bytes + (tokens - begin) + tile;
  const Memory memory{tables, tokens, tokens + tile, reinterpret_cast<float*>(ring + ring_bytes)};

  let_next_begin();
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < p.stages; ++i) {
      barrier_init(shared_address(&tables.full[i]), 1);
      barrier_init(shared_address(&tables.empty[i]), kConsumers * 4);
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      barrier_init(shared_address(&tables.sums_full[i]), kConsumers * 4);
      barrier_init(shared_address(&tables.sums_empty[i]), 1);
    }
    barrier_init_done();
  }
  wait_for_previous();
  find_experts(p, tables, reinterpret_cast<float*>(ring), ring_bytes / 4);
  fence_for_tensor_cores();  // bulk copies will write where routing did
  __syncthreads();

  constexpr std::uint32_t kProducer = kConsumerThreads;  // the first thread of its warp
  const bool is_producer = threadIdx.x / 32 == kProducer / 32;
  if (threadIdx.x < 32) list_slots(p, tables);
  if (threadIdx.x < 32 || is_producer) sync_some(kListIsThere, 64);
  if (is_producer) {
    if (threadIdx.x == kProducer && tables.entries != 0) produce<Format>(p, memory);
    return;
  }
  stage_inputs(p, memory);
  sync_some(kStagersMeet, kStagers);
  if (tables.entries == 0) return clear_output(p);
  const Counters counters(p, tables.entries);
  if (threadIdx.x >= kConsumerThreads)
    Finisher(p, memory, counters).run();
  else if (p.columns == 8)
    consume<Format, 8>(p, memory, counters);
  else
    consume<Format, 16>(p, memory, counters);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
