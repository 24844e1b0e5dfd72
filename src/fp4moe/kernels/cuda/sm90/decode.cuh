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
//   finishers     three warps: add the four up, in a fixed order. Groups of the first product
//   become
//                 h; of one that lies in several blocks the first block adds up what the others
//                 left. At the end they add up the experts of some tokens and columns of the
//                 output.
//
// Blocks wait for each other's numbers by looking at them: half of a word of 8 bytes is the number,
// half the launch it is of. No fence and no counter stands in between, and nothing depends on who
// comes first.
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
enum Barriers : std::uint32_t { kStagersMeet = 1, kFinishersMeet, kListIsThere, kRoutersMeet };

struct Place {
  std::uint32_t at = 0, parity = 0;
  __device__ void advance(std::uint32_t size) {
    if (++at < size) return;
    at = 0;
    parity ^= 1;
  }
};

// Numbers for other blocks, and from them.
__device__ inline void leave(std::uint64_t* at, float value, std::uint32_t launch) {
  const std::uint64_t word = std::uint64_t{launch} << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}
__device__ inline std::uint64_t look(const std::uint64_t* at) {
  std::uint64_t word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
  return word;
}
__device__ inline bool is_of(std::uint64_t word, std::uint32_t launch) {
  return static_cast<std::uint32_t>(word >> 32) == launch;
}
__device__ inline float number_of(std::uint64_t word) {
  return __uint_as_float(static_cast<std::uint32_t>(word));
}
// Two of them: looked at together.
__device__ inline float2 await(const std::uint64_t* first, const std::uint64_t* second,
                               std::uint32_t launch) {
  std::uint64_t a = look(first), b = look(second);
  while (!is_of(a, launch)) a = look(first);
  while (!is_of(b, launch)) b = look(second);
  return {number_of(a), number_of(b)};
}

// MXFP4 weights go unscaled, tokens raised.
template <class Format>
inline constexpr bool kRaises = !Format::kIsNvfp4;

struct Memory {
  Tables& tables;
  std::uint32_t tokens;  // the tile that is multiplied: [unit][rows][128 bytes]
  std::uint32_t ring;
  float* sums;  // [2][consumers][kDecodeColumns][kSumStride]
  std::uint32_t launch;
  bool raises;
};

template <class Format>
__device__ void produce(const DecodeParams& p, const Memory& memory) {
  Tables& tables = memory.tables;
  const std::uint64_t policy = read_once();
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
                  units * Format::kRecord, barrier, policy);
        from += units * Format::kRecord;
        left -= units;
        stage.advance(p.stages);
      }
    }
  };
  stream(p.layer.w13);
  stream(p.layer.w2);
}

// --- Tiles of tokens, staged by consumers and finishers.

__device__ inline std::uint32_t stager() {
  return threadIdx.x < kConsumerThreads ? threadIdx.x : threadIdx.x - 32;
}

__device__ inline void store_tokens(const Memory& memory, std::uint32_t rows, std::uint32_t row,
                                    std::uint32_t piece, uint4 words) {
  constexpr std::uint32_t kRaisePair = 0x5F805F80u, kOnePair = 0x3F803F80u;  // 2^64, 1 as BF16
  const std::uint32_t by = memory.raises ? kRaisePair : kOnePair;
  words = {multiply_bf16(words.x, by), multiply_bf16(words.y, by), multiply_bf16(words.z, by),
           multiply_bf16(words.w, by)};
  const std::uint32_t to =
      memory.tokens + (piece / 8 * rows + row) * 128 + ((piece % 8) ^ (row % 8)) * 16;
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

// Tokens as they are: several loads go together.
__device__ inline void stage_words(const DecodeParams& p, const Memory& memory) {
  constexpr std::uint32_t kTogether = 4;
  const std::uint32_t pieces = p.layer.w13.units * (kUnit / kPiece);
  const std::uint32_t real = p.layer.hidden / kPiece, all = p.call.tokens * pieces;
  const auto* x = static_cast<const std::uint8_t*>(p.call.x.data);
  for (std::uint32_t begin = stager(); begin < all; begin += kTogether * kStagers) {
    uint4 words[kTogether];
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i) {
      const std::uint32_t at = begin + i * kStagers, row = at / pieces, piece = at - row * pieces;
      words[i] = {0, 0, 0, 0};
      if (at < all && piece < real)
        words[i] =
            *reinterpret_cast<const uint4*>(x + (row * p.call.x.stride + piece * kPiece) * 2);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kTogether; ++i) {
      const std::uint32_t at = begin + i * kStagers, row = at / pieces, piece = at - row * pieces;
      if (at < all) store_tokens(memory, p.tile_rows, row, piece, words[i]);
    }
  }
}

struct Rounding {
  Quantise kind;
  float global;
};
// `count` rows of `width` columns into a tile of `rows`; load(row, piece) gives eight. Zero beyond
// the width.
template <class Load>
__device__ inline void stage_rows(const DecodeParams& p, const Memory& memory, uint2 count_of_rows,
                                  std::uint32_t width, const Rounding& how, const Load& load) {
  const std::uint32_t count = count_of_rows.x, rows = count_of_rows.y;
  const std::uint32_t pieces = (width + kUnit - 1) / kUnit * (kUnit / kPiece);
  // Whole warps stay together: blocks of quantised values span lanes.
  const std::uint32_t padded = (pieces + 31) / 32 * 32;
  for (std::uint32_t i = stager(); i < count * padded; i += kStagers) {
    const std::uint32_t row = i / padded, piece = i - row * padded;
    const bool is_real = piece * kPiece < width;
    Piece values = is_real ? load(row, piece) : no_piece();
    if (how.kind != Quantise::none) {
      const float amax = block_amax(how.kind, values);
      if (is_real) values = placed_piece(p.layer, values, amax, how.global);
    }
    if (piece < pieces) store_tokens(memory, rows, row, piece, to_bf16(values));
  }
}

__device__ inline void stage_inputs(const DecodeParams& p, const Memory& memory) {
  const Quantise kind = p.call.x_is_quantised != 0 ? Quantise::none : p.layer.quantise;
  const bool is_plain = kind == Quantise::none && p.call.x.type == Type::bf16 &&
                        is_aligned16(p.call.x.data) && p.call.x.stride % kPiece == 0;
  if (is_plain) return stage_words(p, memory);
  stage_rows(p, memory, {p.call.tokens, p.tile_rows}, p.layer.hidden,
             {kind, input_scale(p.layer, 0)}, [&](std::uint32_t row, std::uint32_t piece) {
               return load_piece(p.call.x.data, p.call.x.type,
                                 row * p.call.x.stride + piece * kPiece);
             });
}

// h of an entry, as it comes.
__device__ inline void stage_hidden(const DecodeParams& p, const Memory& memory,
                                    std::uint32_t entry) {
  const Tables& tables = memory.tables;
  sync_some(kStagersMeet, kStagers);  // nobody multiplies the tile before
  const std::uint32_t first = tables.first[entry], rows = tables.first[entry + 1] - first;
  const auto expert = static_cast<std::uint32_t>(tables.expert[entry]);
  const std::uint64_t stride = std::uint64_t{p.layer.w2.units} * kUnit;
  stage_rows(p, memory, {rows, kDecodeColumns}, p.layer.intermediate,
             {p.layer.quantise, hidden_scale(p.layer, expert)},
             [&](std::uint32_t row, std::uint32_t piece) {
               const std::uint64_t* at =
                   p.hidden + tables.list[first + row] * stride + piece * kPiece;
               std::uint64_t words[kPiece];
               bool is_there = false;
               while (!is_there) {
                 is_there = true;
#pragma unroll
                 for (std::uint32_t i = 0; i < kPiece; ++i) words[i] = look(at + i);
#pragma unroll
                 for (std::uint32_t i = 0; i < kPiece; ++i)
                   is_there = is_there && is_of(words[i], memory.launch);
               }
               Piece made;
#pragma unroll
               for (std::uint32_t i = 0; i < kPiece; ++i) made.v[i] = number_of(words[i]);
               return made;
             });
  sync_some(kStagersMeet, kStagers);
}

// --- Consumers.

struct Consumer {
  std::uint32_t group, warp, lane;
  Place stage, sums;
};

// Rows of the tile that a lane reads for the tensor cores: row `token` of a unit.
__device__ inline std::uint32_t token_row(std::uint32_t lane, std::uint32_t token) {
  return token * 128 + (lane / 8 ^ token % 8) * 16;
}

// `rows` of the tile, of which this lane reads the one at `row`.
template <class Format>
__device__ inline void multiply(const DecodeParams& p, const Memory& memory, Consumer& me,
                                const Stretch& s, uint2 rows_and_row) {
  const std::uint32_t unit_bytes = rows_and_row.x * 128, row = rows_and_row.y;
  float sums[kDecodeColumns / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  Operands<Format, 1> now, next;
  static_assert(kDecodeStageUnits == 2 * kConsumers);
  std::uint32_t tokens = memory.tokens + (s.first + me.group) * unit_bytes;
  for (std::uint32_t left = s.count; left > 0;) {
    const std::uint32_t units = min(kDecodeStageUnits, left);
    barrier_wait(shared_address(&memory.tables.full[me.stage.at]), me.stage.parity);
    const std::uint32_t record =
        memory.ring + (me.stage.at * kDecodeStageUnits + me.group) * Format::kRecord;
    if (me.group < units) now.load(record, me.warp, me.lane, tokens, row);
    const bool both = me.group + kConsumers < units;
    if (both)
      next.load(record + kConsumers * Format::kRecord, me.warp, me.lane,
                tokens + kConsumers * unit_bytes, row);
    if constexpr (kRaises<Format>) {
      if (me.group < units) now.multiply_raised(sums);
      if (both) next.multiply_raised(sums);
    } else {
      if (me.group < units) now.multiply(sums);
      if (both) next.multiply(sums);
    }
    __syncwarp();
    if (me.lane == 0) barrier_arrive(shared_address(&memory.tables.empty[me.stage.at]));
    me.stage.advance(p.stages);
    tokens += kDecodeStageUnits * unit_bytes;
    left -= units;
  }
  barrier_wait(shared_address(&memory.tables.sums_empty[me.sums.at]), me.sums.parity ^ 1);
  float* to =
      memory.sums +
      ((me.sums.at * kConsumers + me.group) * kDecodeColumns + me.lane % 4 * 2) * kSumStride +
      me.warp * 16 + me.lane / 4;
  to[0] = sums[0];
  to[kSumStride] = sums[1];
  to[8] = sums[2];
  to[kSumStride + 8] = sums[3];
  __syncwarp();
  if (me.lane == 0) barrier_arrive(shared_address(&memory.tables.sums_full[me.sums.at]));
  me.sums.advance(2);
}

template <class Format>
__device__ void consume(const DecodeParams& p, const Memory& memory) {
  const Tables& tables = memory.tables;
  const std::uint32_t lane = threadIdx.x % 32;
  Consumer me{threadIdx.x / 128, threadIdx.x / 32 % 4, lane, {}, {}};
  Stretch s;
  for (Stretches all(Phase(p.layer.w13, tables.entries)); all.next(s);) {
    // The entry's tokens, wherever they lie among all; columns beyond repeat the first.
    const std::uint32_t first = tables.first[s.entry], count = tables.first[s.entry + 1] - first;
    const std::uint32_t i = lane % 8 < count ? lane % 8 : 0;
    const std::uint32_t token = tables.list[first + i] / p.call.top_k;
    multiply<Format>(p, memory, me, s, {p.tile_rows, token_row(lane, token)});
  }
  std::uint32_t staged = ~0u;
  for (Stretches all(Phase(p.layer.w2, tables.entries)); all.next(s);) {
    if (s.entry != staged) stage_hidden(p, memory, s.entry);
    staged = s.entry;
    multiply<Format>(p, memory, me, s, {kDecodeColumns, token_row(lane, lane % 8)});
  }
}

// --- Finishers.

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

  __device__ void run() {
    prepare_slots();
    Stretch s;
    const Phase first(p_.layer.w13, tables_.entries), second(p_.layer.w2, tables_.entries);
    for (Stretches all(first); all.next(s);) finish_first_sums(first, s);
    std::uint32_t entry = ~0u;
    for (Stretches all(second); all.next(s);) {
      if (s.entry != entry) stage_hidden(p_, memory_, s.entry);
      entry = s.entry;
      finish_second_sums(second, s);
    }
    // Tokens by 64 columns, dealt out to all blocks' warps.
    const std::uint32_t warps = gridDim.x * kWarps;
    for (std::uint32_t i = warp_ * gridDim.x + blockIdx.x; i < p_.call.tokens * second.groups;
         i += warps)
      add_experts(second, i / second.groups, i % second.groups);
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

  __device__ float lowered(float factor) const {
    return memory_.raises ? __fmul_rn(factor, kLower) : factor;
  }

  // Factors and weights of all slots, once.
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
    meet();
  }

  // The sum of the warpgroups, of slot `i` of the entry.
  __device__ float near_sum(std::uint32_t i, std::uint32_t row) const {
    const float* from =
        memory_.sums + (place_.at * kConsumers * kDecodeColumns + i) * kSumStride + row;
    float sum = from[0];
#pragma unroll
    for (std::uint32_t w = 1; w < kConsumers; ++w)
      sum = __fadd_rn(sum, from[w * kDecodeColumns * kSumStride]);
    return sum;
  }
  __device__ void wait_for_sums() const {
    barrier_wait(shared_address(&tables_.sums_full[place_.at]), place_.parity);
  }
  __device__ void free_sums() {
    meet();
    if (me_ == 0) barrier_arrive(shared_address(&tables_.sums_empty[place_.at]));
    place_.advance(2);
  }

  // What a block leaves of a group that other blocks have units of, too: of the group its share
  // begins in, or of the one it ends in.
  __device__ std::uint64_t* partial(std::uint32_t block, std::uint32_t number, bool begins) const {
    return p_.partial +
           (std::uint64_t{block} * 4 + number * 2 + (begins ? 0 : 1)) * 64 * kDecodeColumns;
  }
  __device__ void leave_partial(const Phase& phase, const Stretch& s, std::uint32_t number) const {
    const std::uint32_t begin = (s.entry * phase.groups + s.group) * phase.units;
    std::uint64_t* to = partial(blockIdx.x, number, phase.begin_of(blockIdx.x) >= begin);
    const std::uint32_t rows = rows_of(s.entry);
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
    const std::uint32_t last = s.count == phase.units ? blockIdx.x : phase.block_of(end - 1);
    wait_for_sums();
    const Layer& layer = p_.layer;
    const bool gated = layer.is_gated != 0;
    const std::uint32_t feature = s.group * (gated ? 32 : 64) + lane_, count = rows_of(s.entry);
    const std::uint64_t stride = std::uint64_t{layer.w2.units} * kUnit;
    for (std::uint32_t i = warp_; i < count; i += kWarps) {
      float sum = near_sum(i, rows.row), other = near_sum(i, rows.other);
      for (std::uint32_t block = blockIdx.x + 1; block <= last; ++block) {
        if (phase.is_empty(block)) continue;
        const std::uint64_t* from = partial(block, 0, true) + i * 64;
        const float2 part = await(from + rows.row, from + rows.other, launch_);
        sum = __fadd_rn(sum, part.x);
        other = __fadd_rn(other, part.y);
      }
      std::uint64_t* to = p_.hidden + slot_of(s.entry, i) * stride;
      sum = finish_first(layer, __fmul_rn(sum, rows.factor), rows.bias);
      other = finish_first(layer, __fmul_rn(other, rows.other_factor), rows.other_bias);
      if (feature < layer.intermediate) leave(to + feature, activated(layer, sum, other), launch_);
      if (!gated && feature + 32 < layer.intermediate)
        leave(to + feature + 32, activated(layer, other, 0.0f), launch_);
    }
    free_sums();
  }

  __device__ void finish_second_sums(const Phase& phase, const Stretch& s) {
    wait_for_sums();
    if (s.count == phase.units) {
      const std::uint32_t rows = rows_of(s.entry);
      for (std::uint32_t i = warp_; i < rows; i += kWarps) {
        std::uint64_t* to =
            p_.sums + std::uint64_t{slot_of(s.entry, i)} * phase.groups * 64 + s.group * 64;
        leave(to + lane_, near_sum(i, lane_), launch_);
        leave(to + lane_ + 32, near_sum(i, lane_ + 32), launch_);
      }
    } else {
      leave_partial(phase, s, 1);
    }
    free_sums();
  }

  // Where the sums of a slot's 64 columns lie: in one place, or in several blocks'.
  struct SlotSums {
    const std::uint64_t* first = nullptr;  // null: the slot is nobody's here
    std::uint32_t next = 0, more = 0;      // blocks behind the first
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
    return tables_.rank[slot] % kDecodeColumns;
  }

  // 64 columns of a token: what its experts made, added up in the order of choices. A lane has two
  // columns; lane j knows where choice j lies.
  __device__ void add_experts(const Phase& phase, std::uint32_t token, std::uint32_t group) const {
    constexpr std::uint32_t kTogether = 4, kWhole = 0xFFFFFFFFu;
    const std::uint32_t choices = p_.call.top_k;
    SlotSums mine{};
    if (lane_ < choices) mine = slot_sums(phase, group, token * choices + lane_);
    float low = 0.0f, high = 0.0f;
    for (std::uint32_t begin = 0; begin < choices; begin += kTogether) {
      // Of each slot the first two places, which are all there are as a rule, are looked at before
      // anything is waited for.
      std::uint64_t words[kTogether][2], more_words[kTogether][2];
      float bias[kTogether][2];
      SlotSums at[kTogether];
      const std::uint64_t* second[kTogether];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        const auto from = static_cast<int>(min(begin + i, 31u));
        at[i].first = reinterpret_cast<const std::uint64_t*>(
            __shfl_sync(kWhole, reinterpret_cast<unsigned long long>(mine.first), from));
        at[i].next = __shfl_sync(kWhole, mine.next, from);
        at[i].more = __shfl_sync(kWhole, mine.more, from);
        if (begin + i >= choices) at[i].first = nullptr;
        if (at[i].first == nullptr) continue;
        const std::uint32_t slot = token * choices + begin + i;
        second[i] = partial(at[i].next, 1, true) + row_of(slot) * 64;
        const float* biases = slot_bias(phase, group, slot);
#pragma unroll
        for (std::uint32_t c = 0; c < 2; ++c) {
          words[i][c] = look(at[i].first + lane_ + 32 * c);
          if (at[i].more != 0) more_words[i][c] = look(second[i] + lane_ + 32 * c);
          bias[i][c] = biases == nullptr ? 0.0f : biases[lane_ + 32 * c];
        }
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        if (at[i].first == nullptr) continue;
        const std::uint32_t slot = token * choices + begin + i;
        float sum[2];
#pragma unroll
        for (std::uint32_t c = 0; c < 2; ++c) {
          const std::uint32_t column = lane_ + 32 * c;
          while (!is_of(words[i][c], launch_)) words[i][c] = look(at[i].first + column);
          sum[c] = number_of(words[i][c]);
          if (at[i].more == 0 || phase.is_empty(at[i].next)) continue;
          while (!is_of(more_words[i][c], launch_)) more_words[i][c] = look(second[i] + column);
          sum[c] = __fadd_rn(sum[c], number_of(more_words[i][c]));
        }
        for (std::uint32_t b = 1; b < at[i].more; ++b) {
          if (phase.is_empty(at[i].next + b)) continue;
          const std::uint64_t* from = partial(at[i].next + b, 1, true) + row_of(slot) * 64 + lane_;
          const float2 part = await(from, from + 32, launch_);
          sum[0] = __fadd_rn(sum[0], part.x);
          sum[1] = __fadd_rn(sum[1], part.y);
        }
        low = __fadd_rn(low, row_value(slot, sum[0], bias[i][0]));
        high = __fadd_rn(high, row_value(slot, sum[1], bias[i][1]));
      }
    }
    store(token, group * 64 + lane_, low);
    store(token, group * 64 + lane_ + 32, high);
  }
  __device__ const float* slot_bias(const Phase& phase, std::uint32_t group,
                                    std::uint32_t slot) const {
    const auto expert = static_cast<std::uint64_t>(tables_.expert_of_slot[slot]);
    return p_.layer.w2.bias == nullptr ? nullptr
                                       : p_.layer.w2.bias + (expert * phase.groups + group) * 64;
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
  std::uint32_t launch_, me_, warp_, lane_;
  Place place_{};
};

// No expert of this rank was chosen.
__device__ inline void clear_output(const DecodeParams& p) {
  const std::uint32_t all = p.call.tokens * p.layer.hidden;
  for (std::uint32_t i = blockIdx.x * kStagers + stager(); i < all; i += gridDim.x * kStagers)
    store_number(p.call.out.data, p.call.out.type,
                 i / p.layer.hidden * p.call.out.stride + i % p.layer.hidden, 0.0f);
}

// The last block counts the launch.
__device__ inline void count_launch(const DecodeParams& p, std::uint32_t launch) {
  if (atomicAdd(p.counters + 1, 1u) + 1 != gridDim.x) return;
  p.counters[1] = 0;
  p.counters[0] = launch;
}

// Parameters come from far at their first use, a line at a time: all lines at once cost as much as
// one.
__device__ inline void fetch_params(const DecodeParams& p) {
  constexpr std::uint32_t kLine = 64 / 4, kWords = sizeof(DecodeParams) / 4;
  const std::uint32_t at = threadIdx.x / 32 * kLine;
  if (at < kWords) asm volatile("" ::"r"(reinterpret_cast<const std::uint32_t*>(&p)[at]));
}

template <class Format>
__device__ void run(const DecodeParams& p) {
  extern __shared__ __align__(1024) std::uint8_t bytes[];
  Tables& tables = *reinterpret_cast<Tables*>(bytes);
  const std::uint32_t tile =
      max(p.tile_rows * p.layer.w13.units, kDecodeColumns * p.layer.w2.units) * 128;
  const std::uint32_t ring_bytes = p.stages * kDecodeStageUnits * Format::kRecord;
  // Swizzled tokens want multiples of 1024; the tables leave room for that.
  const std::uint32_t begin = shared_address(bytes);
  const std::uint32_t tokens = (begin + sizeof(Tables) + 1023) & ~1023u;
  std::uint8_t* ring = bytes + (tokens - begin) + tile;
  let_next_begin();
  fetch_params(p);
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
  const Memory memory{tables,
                      tokens,
                      tokens + tile,
                      reinterpret_cast<float*>(ring + ring_bytes),
                      p.counters[0] + 1,
                      kRaises<Format>};

  // A few warps route, the first of them makes the list, and weights are on their way; the others
  // stage tokens meanwhile.
  constexpr std::uint32_t kProducer = kConsumerThreads;  // the first thread of its warp
  const std::uint32_t warp = threadIdx.x / 32;
  const std::uint32_t routers = routers_of(p, ring_bytes / 4);
  if (warp < routers) {
    find_experts(p, tables, reinterpret_cast<float*>(ring), routers);
    fence_for_tensor_cores();  // bulk copies will write where routing did
    sync_some(kRoutersMeet, routers * 32);
    if (warp == 0) {
      list_slots(p, tables);
      sync_some(kListIsThere, 64);
    }
  }
  if (warp == kProducer / 32) {
    sync_some(kListIsThere, 64);
    if (threadIdx.x == kProducer && tables.entries != 0) produce<Format>(p, memory);
    return;
  }
  stage_inputs(p, memory);
  sync_some(kStagersMeet, kStagers);
  if (tables.entries == 0) {
    clear_output(p);
  } else if (threadIdx.x >= kConsumerThreads) {
    Finisher(p, memory).run();
  } else {
    consume<Format>(p, memory);
  }
  if (threadIdx.x == kProducer + 32) count_launch(p, memory.launch);
}

}  // namespace fp4moe::kernels::cuda::sm90::decode
