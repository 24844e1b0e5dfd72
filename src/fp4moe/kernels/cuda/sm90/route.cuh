// A token's experts, chosen by one warp: what moe/routing/exact_row.cpp computes. Keys are compared
// as float32, rounded once; equal ones win in the order of experts. Keys become unsigned integers
// in the same order, of which a warp finds the largest with one instruction; lanes own neighbouring
// columns, so the first lane that has the largest has the first expert that has it.
//
// Up to 128 columns stay in registers where logits decide, each lane's sorted, and a round takes a
// head off one lane's list. Softmax keeps the order of logits, but for those so near each other
// that it rounds to the same number, or so far down that it is 0: where such are among the chosen,
// and for all other scores that are compared (sigmoid, sqrt_softplus, any with a bias), scores are
// computed in float64 and rounded, as the host does: float32 would make other ties.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/local_expert.cuh"
#include "fp4moe/kernels/cuda/sm90/numbers.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// In the order of numbers; NaN counts as minus infinity, zeros are equal. Never 0.
__device__ inline std::uint32_t ordered_key(float x) {
  if (is_nan(x)) x = -infinity();
  const std::uint32_t bits = __float_as_uint(__fadd_rn(x, 0.0f));
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}
__device__ inline float key_value(std::uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu));
}

template <class Real>
__device__ inline Real warp_sum(Real x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  return key_value(__reduce_max_sync(kFullWarp, ordered_key(x)));
}

__device__ inline bool is_real_number(float x) { return is_finite(x); }
__device__ inline bool is_real_number(double x) { return isfinite(x); }

// A logit's score where it depends on nothing else.
template <class Real>
__device__ inline Real own_score(Score score, Real logit) {
  if (score == Score::sigmoid) return Real{1} / (Real{1} + exp(-logit));
  if (score == Score::sqrt_softplus) return sqrt(logit > Real{20} ? logit : log1p(exp(logit)));
  return logit;
}

// What is left of a score that becomes a weight.
template <class Real>
__device__ inline Real held_score(Normal normal, Real score) {
  if (normal == Normal::softmax) return isnan(score) ? static_cast<Real>(-infinity()) : score;
  return is_real_number(score) ? score : Real{0};
}

// exp(a - b) without the rounding of the difference, which exp would magnify.
__device__ inline float exp_of_difference(float a, float b) {
  const float high = __fsub_rn(a, b);
  if (!is_finite(high)) return expf(high);
  const float back = __fsub_rn(a, high);
  const float low = __fadd_rn(__fsub_rn(a, __fadd_rn(high, back)), __fsub_rn(back, b));
  const float made = expf(high);
  return made + made * low;
}
__device__ inline double exp_of_difference(double a, double b) { return exp(a - b); }

// The chosen scores, one a lane, become weights: normalised and scaled. Lanes from top_k on have
// none.
template <class Real>
__device__ inline float normalised(const RouteParams& p, Normal normal, Real weight) {
  if (threadIdx.x % 32 >= p.top_k) weight = Real{0};
  if (normal != Normal::none) {
    const Real sum = warp_sum(weight);
    if (normal == Normal::softmax) weight /= sum;
    if (normal == Normal::over_sum && sum > Real{0}) weight /= sum;
    if (normal == Normal::over_sum_eps) weight /= sum + static_cast<Real>(1e-20);
  }
  const auto made = static_cast<float>(weight * static_cast<Real>(p.scale));
  return is_finite(made) ? made : 0.0f;
}
template <class Real>
__device__ inline float finished_weight(const RouteParams& p, Real score, Real largest) {
  return normalised(p, p.normal,
                    p.normal == Normal::softmax ? exp_of_difference(score, largest) : score);
}

__device__ inline void write_ids(const RouteParams& p, std::int32_t id, std::int32_t* ids) {
  if (threadIdx.x % 32 < p.top_k) ids[threadIdx.x % 32] = id;
  __syncwarp();
}
__device__ inline void write_weights(const RouteParams& p, float weight, float* weights) {
  if (threadIdx.x % 32 < p.top_k)
    weights[threadIdx.x % 32] = p.weights_in_bf16 != 0 ? rounded_to_bf16(weight) : weight;
  __syncwarp();
}

// --- Logits compared, at most 128: four neighbours a lane.

inline constexpr std::uint32_t kHeldColumns = kMostHeld / 32;
static_assert(kHeldColumns == 4);

template <class Key>
struct HeldKeys {
  Key a = 0, b = 0, c = 0, d = 0;  // descending; 0: none

  __device__ static void order(Key& high, Key& low) {
    const Key larger = max(high, low);
    low = min(high, low);
    high = larger;
  }
  __device__ void sort() {
    order(a, b);
    order(c, d);
    order(a, c);
    order(b, d);
    order(b, c);
  }
  __device__ void take(bool is_mine) {
    a = is_mine ? b : a;
    b = is_mine ? c : b;
    c = is_mine ? d : c;
    d = is_mine ? 0 : d;
  }
};

struct HeldLogits {
  float a, b, c, d;
};

// Columns from `first`; minus infinity beyond the last.
__device__ inline HeldLogits held_logits(const RouteParams& p, std::uint64_t row,
                                         std::uint32_t first) {
  const Type type = p.logits.type;
  const auto* at = static_cast<const std::uint8_t*>(p.logits.data) + (row + first) * bytes_of(type);
  const std::uint32_t whole = kHeldColumns * bytes_of(type);
  if (first + kHeldColumns <= p.columns && reinterpret_cast<std::uintptr_t>(at) % whole == 0) {
    if (type == Type::f32) {
      const float4 four = *reinterpret_cast<const float4*>(at);
      return {four.x, four.y, four.z, four.w};
    }
    const uint2 four = *reinterpret_cast<const uint2*>(at);
    if (type == Type::bf16)
      return {low_bf16(four.x), high_bf16(four.x), low_bf16(four.y), high_bf16(four.y)};
    return {from_f16(static_cast<std::uint16_t>(four.x)),
            from_f16(static_cast<std::uint16_t>(four.x >> 16)),
            from_f16(static_cast<std::uint16_t>(four.y)),
            from_f16(static_cast<std::uint16_t>(four.y >> 16))};
  }
  const auto at_column = [&](std::uint32_t i) {
    return first + i < p.columns ? load_number(p.logits.data, type, row + first + i) : -infinity();
  };
  return {at_column(0), at_column(1), at_column(2), at_column(3)};
}

// Key and column in one integer: of equal keys the lower column is larger; 7 bits hold the column.
// The upper bits of a 16-bit number's key are all it has.
__device__ inline std::uint32_t short_key(float logit, std::uint32_t column) {
  return (ordered_key(logit) & ~(kMostHeld - 1)) | (kMostHeld - 1 - column);
}
__device__ inline std::uint64_t long_key(float logit, std::uint32_t column) {
  return std::uint64_t{ordered_key(logit)} << 32 | (kMostHeld - 1 - column);
}

// Whether it is worth a try.
__device__ inline bool may_be_held(const RouteParams& p) {
  const bool by_logits = p.key == Score::logit && p.weight != Score::softmax;
  const bool by_softmax = p.key == Score::softmax && p.weight == Score::softmax &&
                          p.normal != Normal::softmax && p.bias == nullptr &&
                          p.scores_in_logits_type == 0 && p.top_k < 32;
  return (by_logits || by_softmax) && p.groups <= 1 && p.columns <= kMostHeld;
}

// The chosen logits and their columns, one a lane, descending; for softmax, lane top_k has the next
// one.
struct HeldChoice {
  float logit = -infinity();
  std::uint32_t column = 0;
};

// The column of choice `lane`, the largest keys first. take(keys) takes the largest off the lists
// and tells it.
template <class Keys, class Take>
__device__ inline std::uint32_t take_held(std::uint32_t rounds, Keys keys, const Take& take) {
  std::uint32_t mine = 0;
  keys.sort();
  for (std::uint32_t j = 0; j < rounds; ++j) {
    const std::uint32_t taken = take(keys);
    if (j == threadIdx.x % 32) mine = taken;
  }
  return kMostHeld - 1 - mine % kMostHeld;
}
template <class Key, class KeyOf>
__device__ inline HeldKeys<Key> held_keys(const RouteParams& p, const HeldLogits& logits,
                                          const KeyOf& key_of) {
  const std::uint32_t first = threadIdx.x % 32 * kHeldColumns;
  const auto key = [&](float logit, std::uint32_t i) -> Key {
    return first + i < p.columns ? key_of(logit, first + i) : 0;
  };
  return {key(logits.a, 0), key(logits.b, 1), key(logits.c, 2), key(logits.d, 3)};
}
// Some upper bits tell nearly all logits of 32 bits apart, too; where they do not, all bits do.
__device__ inline std::uint32_t choose_short(const RouteParams& p, const HeldLogits& logits,
                                             std::uint32_t rounds, bool& is_sure) {
  std::uint32_t last = 0;
  return take_held(rounds, held_keys<std::uint32_t>(p, logits, short_key),
                   [&](HeldKeys<std::uint32_t>& held) {
                     const std::uint32_t most = __reduce_max_sync(kFullWarp, held.a);
                     held.take(held.a == most);
                     is_sure = is_sure && (most ^ last) >= kMostHeld;
                     last = most;
                     return most;
                   });
}
__device__ __noinline__ inline std::uint32_t choose_long(const RouteParams& p, HeldLogits logits,
                                                         std::uint32_t rounds) {
  return take_held(
      rounds, held_keys<std::uint64_t>(p, logits, long_key), [](HeldKeys<std::uint64_t>& held) {
        const auto head = static_cast<std::uint32_t>(held.a >> 32);
        const std::uint32_t most = __reduce_max_sync(kFullWarp, head);
        const std::uint32_t winner = __ffs(__ballot_sync(kFullWarp, head == most)) - 1;
        const std::uint32_t taken =
            __shfl_sync(kFullWarp, static_cast<std::uint32_t>(held.a), static_cast<int>(winner));
        held.take(threadIdx.x % 32 == winner);
        return taken;
      });
}
__device__ inline HeldChoice choose_held(const RouteParams& p, const HeldLogits& logits) {
  const bool is_short = p.logits.type != Type::f32;
  const std::uint32_t wanted = p.top_k + (is_short && p.key != Score::softmax ? 0 : 1);
  const std::uint32_t rounds = min(wanted, p.columns);
  bool is_sure = true;
  std::uint32_t column = choose_short(p, logits, rounds, is_sure);
  if (!is_short && !is_sure) column = choose_long(p, logits, rounds);
  // Whoever holds the column tells its logit.
  const auto owner = static_cast<int>(column / kHeldColumns);
  const float a = __shfl_sync(kFullWarp, logits.a, owner),
              b = __shfl_sync(kFullWarp, logits.b, owner),
              c = __shfl_sync(kFullWarp, logits.c, owner),
              d = __shfl_sync(kFullWarp, logits.d, owner);
  const std::uint32_t i = column % kHeldColumns;
  const float logit = i < 2 ? (i == 0 ? a : b) : (i == 2 ? c : d);
  const bool is_chosen = threadIdx.x % 32 < rounds;
  return {is_chosen ? key_value(ordered_key(logit)) : -infinity(), is_chosen ? column : 0};
}

// Whether softmax, rounded to float32, tells all chosen logits and the next one apart where they
// differ: numbers 2^-20 apart, none of the chosen so small that bits are lost.
__device__ inline bool softmax_tells_apart(const RouteParams& p, const HeldLogits& logits,
                                           float mine, float largest) {
  constexpr float kApart = 0x1p-20f, kDeep = 60.0f;
  const std::uint32_t lane = threadIdx.x % 32;
  const float below = __shfl_down_sync(kFullWarp, mine, 1);
  const bool has_below = lane < p.top_k && lane + 1 < p.columns;
  bool is_fine = lane >= p.top_k || largest - mine <= kDeep;
  if (has_below && mine != below) is_fine = is_fine && mine - below >= kApart;
  // A NaN or an infinity among all logits makes softmax NaN.
  const float most = fmaxf(fmaxf(logits.a, logits.b), fmaxf(logits.c, logits.d));
  const bool has_nan = is_nan(logits.a) || is_nan(logits.b) || is_nan(logits.c) || is_nan(logits.d);
  return __all_sync(kFullWarp, is_fine && !has_nan && most < infinity());
}

// A token whose experts are known; their weights take a little longer.
struct HeldRow {
  HeldLogits logits;
  HeldChoice mine;
  float largest;
};
// False: logits do not decide.
__device__ inline bool choose_row(const RouteParams& p, std::uint32_t token, HeldRow& row) {
  row.logits = held_logits(p, token * p.logits.stride, threadIdx.x % 32 * kHeldColumns);
  row.mine = choose_held(p, row.logits);
  row.largest = __shfl_sync(kFullWarp, row.mine.logit, 0);
  return p.key != Score::softmax || softmax_tells_apart(p, row.logits, row.mine.logit, row.largest);
}
__device__ inline float weigh_row(const RouteParams& p, const HeldRow& row) {
  const auto& [logits, mine, largest] = row;
  if (p.key == Score::softmax) {
    // Over the sum of the chosen, what all logits have in common falls out.
    float sum = 1.0f;
    if (p.normal == Normal::none)
      sum = warp_sum(exp_of_difference(logits.a, largest) + exp_of_difference(logits.b, largest) +
                     exp_of_difference(logits.c, largest) + exp_of_difference(logits.d, largest));
    return normalised(p, p.normal == Normal::none ? Normal::none : Normal::over_sum,
                      __fdiv_rn(exp_of_difference(mine.logit, largest), sum));
  }
  const float score = held_score(p.normal, own_score(p.weight, mine.logit));
  if (p.normal != Normal::softmax || p.weight == Score::logit)
    return finished_weight(p, score, largest);
  return finished_weight(p, score, warp_max(threadIdx.x % 32 < p.top_k ? score : -infinity()));
}

// --- Anything else. Each column has a place of two floats in shared memory: a float64 while
// softmax adds up, then its key, and of some the score of a group of experts.

struct Softmax {
  double largest = 0, sum = 1;
};

class AnyRoute {
 public:
  __device__ AnyRoute(const RouteParams& params, std::uint32_t token, float* scratch)
      : p_(params),
        row_(token * params.logits.stride),
        places_(scratch),
        lane_(threadIdx.x % 32),
        width_((params.columns + 31) / 32),
        begin_(min(lane_ * width_, params.columns)),
        end_(min(begin_ + width_, params.columns)) {}

  __device__ void run(std::int32_t* ids, float* weights) {
    if (p_.weight == Score::softmax) add_up();
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e) places_[2 * e] = key_of(e);
    __syncwarp();
    if (is_grouped() && !keep_groups()) {
      const float even = __fdiv_rn(1.0f, static_cast<float>(p_.top_k));
      write_ids(p_, static_cast<std::int32_t>(lane_), ids);
      return write_weights(p_, even, weights);
    }
    const std::uint32_t column = choose();
    const double score = lane_ < p_.top_k ? score_of(column) : 0.0;
    double largest = 0;
    if (p_.normal == Normal::softmax) {
      largest = lane_ < p_.top_k ? score : static_cast<double>(-infinity());
      for (int step = 16; step > 0; step /= 2)
        largest = fmax(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    write_ids(p_, static_cast<std::int32_t>(column), ids);
    write_weights(p_, finished_weight(p_, score, largest), weights);
  }

 private:
  __device__ bool is_grouped() const { return p_.groups > 1; }
  __device__ float logit(std::uint32_t e) const {
    return load_number(p_.logits.data, p_.logits.type, row_ + e);
  }
  // Where experts are grouped, anything not finite is minus infinity.
  __device__ float seen_logit(std::uint32_t e) const {
    const float found = logit(e);
    return is_grouped() && !is_finite(found) ? -infinity() : found;
  }

  __device__ void add_up() {
    float largest = -infinity();
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e) largest = fmaxf(largest, seen_logit(e));
    softmax_.largest = warp_max(largest);
    double sum = 0;
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e) {
      const double part = exp(static_cast<double>(seen_logit(e)) - softmax_.largest);
      *reinterpret_cast<double*>(places_ + 2 * e) = part;
      sum += part;
    }
    softmax_.sum = warp_sum(sum);
  }

  __device__ double held(double score) const {
    const double made = held_score(p_.normal, score);
    if (p_.scores_in_logits_type == 0) return made;
    return rounded_to(p_.logits.type, static_cast<float>(made));
  }
  // What becomes the weight.
  __device__ double score_of(std::uint32_t e) const {
    const auto seen = static_cast<double>(seen_logit(e));
    if (p_.weight == Score::softmax) return held(exp(seen - softmax_.largest) / softmax_.sum);
    return held(own_score(p_.weight, seen));
  }

  // What is compared. Of softmax, the numerator still lies in the column's place.
  __device__ float key_of(std::uint32_t e) const {
    const float own = logit(e);
    if (p_.key == Score::logit) return is_nan(own) ? -infinity() : own;
    const double score =
        p_.weight == Score::softmax
            ? held(*reinterpret_cast<const double*>(places_ + 2 * e) / softmax_.sum)
            : score_of(e);
    auto key = static_cast<float>(score);
    if (p_.bias != nullptr) key = __fadd_rn(key, p_.bias[e]);
    if (p_.scores_in_logits_type != 0) key = rounded_to(p_.logits.type, key);
    return is_grouped() && !is_finite(own) ? -infinity() : key;
  }

  // The largest key, or the sum of the two largest.
  __device__ float group_score(std::uint32_t group) const {
    const std::uint32_t size = p_.columns / p_.groups;
    float first = -infinity(), second = -infinity();
#pragma unroll 4
    for (std::uint32_t e = group * size; e < (group + 1) * size; ++e) {
      const float key = places_[2 * e];
      second = fmaxf(second, fminf(first, key));
      first = fmaxf(first, key);
    }
    return p_.adds_two_per_group != 0 ? __fadd_rn(first, second) : first;
  }

  // Keys outside the chosen groups become minus infinity. False when there are not as many groups
  // with a score above that.
  __device__ bool keep_groups() {
    const std::uint32_t size = p_.columns / p_.groups, width = (p_.groups + 31) / 32;
    const std::uint32_t begin = min(lane_ * width, p_.groups);
    const std::uint32_t end = min(begin + width, p_.groups);
#pragma unroll 1
    for (std::uint32_t g = begin; g < end; ++g) places_[2 * g + 1] = group_score(g);
    std::uint32_t chosen = 0, last = 0;  // bits: of this lane's groups
#pragma unroll 1
    for (std::uint32_t i = 0; i < p_.chosen_groups; ++i) {
      std::uint32_t best = 0, bit = 0;
#pragma unroll 1
      for (std::uint32_t g = begin; g < end; ++g) {
        const std::uint32_t key = ordered_key(places_[2 * g + 1]);
        if ((chosen >> (g - begin) & 1) != 0 || key <= best) continue;
        best = key;
        bit = 1u << (g - begin);
      }
      last = __reduce_max_sync(kFullWarp, best);
      const std::uint32_t winner = __ffs(__ballot_sync(kFullWarp, best == last)) - 1;
      if (lane_ == winner) chosen |= bit;
    }
    if (last == ordered_key(-infinity())) return false;
    __syncwarp();
#pragma unroll 1
    for (std::uint32_t g = begin; g < end; ++g)
      places_[2 * g + 1] = (chosen >> (g - begin) & 1) != 0 ? 1.0f : 0.0f;
    __syncwarp();
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e)
      if (places_[2 * (e / size) + 1] == 0.0f) places_[2 * e] = -infinity();
    __syncwarp();
    return true;
  }

  // Of choice `lane`: its column.
  __device__ std::uint32_t choose() const {
    std::uint32_t taken = 0;  // bits: of this lane's columns
    std::uint32_t best = 0, place = 0, column = 0;
    const auto look = [&] {
      best = 0;
#pragma unroll 4
      for (std::uint32_t e = begin_; e < end_; ++e) {
        const std::uint32_t key = ordered_key(places_[2 * e]);
        if ((taken >> (e - begin_) & 1) != 0 || key <= best) continue;
        best = key;
        place = e;
      }
    };
    look();
#pragma unroll 1
    for (std::uint32_t j = 0; j < p_.top_k; ++j) {
      const std::uint32_t most = __reduce_max_sync(kFullWarp, best);
      const std::uint32_t winner = __ffs(__ballot_sync(kFullWarp, best == most)) - 1;
      const std::uint32_t found = __shfl_sync(kFullWarp, place, winner);
      if (j == lane_) column = found;
      if (lane_ == winner) {
        taken |= 1u << (place - begin_);
        look();
      }
      __syncwarp();
    }
    return column;
  }

  const RouteParams& p_;
  std::uint64_t row_;
  float* places_;
  std::uint32_t lane_, width_, begin_, end_;
  Softmax softmax_{};
};

// One warp, all its lanes. `scratch`: 2 * columns floats of this warp in shared memory, aligned to
// 8 bytes. ids and weights, [top_k] each, are written by the first lanes, in shared or global
// memory. Seldom: it shall not lie in between what is run.
__device__ __noinline__ inline void route_any(const RouteParams& p, std::uint32_t token,
                                              float* scratch, std::int32_t* ids, float* weights) {
  AnyRoute(p, token, scratch).run(ids, weights);
}
// The same, but weights may be left for later: true, and the row tells them.
__device__ inline bool choose_token(const RouteParams& p, std::uint32_t token, float* scratch,
                                    std::int32_t* ids, float* weights, HeldRow& row) {
  if (!may_be_held(p) || !choose_row(p, token, row)) {
    route_any(p, token, scratch, ids, weights);
    return false;
  }
  write_ids(p, static_cast<std::int32_t>(row.mine.column), ids);
  return true;
}
__device__ inline void weigh_token(const RouteParams& p, const HeldRow& row, float* weights) {
  write_weights(p, weigh_row(p, row), weights);
}

}  // namespace fp4moe::kernels::cuda::sm90
