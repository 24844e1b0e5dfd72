// A warp chooses the experts of a token, with the results of moe/routing/rows_exact.cpp. Keys are
// compared as float32, rounded once. Of equal keys the lower expert wins.
//
// Keys become unsigned integers in the same order: a warp finds the largest with one instruction.
// Lanes own neighboring columns: the first lane with the largest key has the lowest expert.
//
//   registers   up to 128 columns, where the order of logits decides. Each lane sorts its four; a
//               round removes the head of one lane's list.
//   generic     everything else, in shared memory. Scores are computed in float64 and rounded, as
//               the host does; float32 would give other ties.
//
// Softmax keeps the order of logits, except where neighbors round to the same number or a chosen
// logit is so small that its score is 0. Such tokens take the generic way.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/elements.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/route/local_expert.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// An integer in the order of numbers. NaN counts as minus infinity, zeros are equal. Never 0.
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

__device__ inline bool is_finite_score(float x) { return is_finite(x); }
__device__ inline bool is_finite_score(double x) { return isfinite(x); }

// The score of a logit, where it does not depend on other logits.
template <class Real>
__device__ inline Real elementwise_score(Score score, Real logit) {
  if (score == Score::sigmoid) return Real{1} / (Real{1} + exp(-logit));
  if (score == Score::sqrt_softplus) return sqrt(logit > Real{20} ? logit : log1p(exp(logit)));
  return logit;
}

// A score that becomes a weight, without NaN and infinities.
template <class Real>
__device__ inline Real usable_score(Normalization normal, Real score) {
  if (normal == Normalization::softmax)
    return isnan(score) ? static_cast<Real>(-infinity()) : score;
  return is_finite_score(score) ? score : Real{0};
}

// exp(a - b) without the rounding error of the difference, which exp would magnify.
__device__ inline float exp_of_difference(float a, float b) {
  const float high = __fsub_rn(a, b);
  if (!is_finite(high)) return expf(high);
  const float back = __fsub_rn(a, high);
  const float low = __fadd_rn(__fsub_rn(a, __fadd_rn(high, back)), __fsub_rn(back, b));
  const float result = expf(high);
  return result + result * low;
}
__device__ inline double exp_of_difference(double a, double b) { return exp(a - b); }

// The chosen scores, one per lane, become weights: normalized and scaled. Lanes from top_k on have
// none.
template <class Real>
__device__ inline float normalize(const RouteParams& p, Normalization normal, Real weight) {
  if (threadIdx.x % 32 >= p.top_k) weight = Real{0};
  if (normal != Normalization::none) {
    const Real sum = warp_sum(weight);
    if (normal == Normalization::softmax) weight /= sum;
    if (normal == Normalization::over_sum && sum > Real{0}) weight /= sum;
    if (normal == Normalization::over_sum_eps) weight /= sum + static_cast<Real>(1e-20);
  }
  const auto result = static_cast<float>(weight * static_cast<Real>(p.scale));
  return is_finite(result) ? result : 0.0f;
}
template <class Real>
__device__ inline float final_weight(const RouteParams& p, Real score, Real largest) {
  return normalize(p, p.normal,
                   p.normal == Normalization::softmax ? exp_of_difference(score, largest) : score);
}

__device__ inline void write_ids(const RouteParams& p, std::int32_t id, std::int32_t* ids) {
  if (threadIdx.x % 32 < p.top_k) ids[threadIdx.x % 32] = id;
  __syncwarp();
}
__device__ inline void write_weights(const RouteParams& p, float weight, float* weights) {
  if (threadIdx.x % 32 < p.top_k)
    weights[threadIdx.x % 32] = p.weights_in_bf16 != 0 ? round_to_bf16(weight) : weight;
  __syncwarp();
}

// --- Registers: at most 128 logits, four neighbors per lane.

inline constexpr std::uint32_t kLogitsPerLane = kMaxRegisterLogits / 32;
static_assert(kLogitsPerLane == 4);

template <class Key>
struct RegisterKeys {
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

struct RegisterLogits {
  float a, b, c, d;
};

// Four columns from `first` on; minus infinity beyond the last column.
__device__ inline RegisterLogits load_register_logits(const RouteParams& p, std::uint64_t row,
                                                      std::uint32_t first) {
  const ElementType type = p.logits.type;
  const auto* at = static_cast<const std::uint8_t*>(p.logits.data) + (row + first) * bytes_of(type);
  const std::uint32_t whole = kLogitsPerLane * bytes_of(type);
  if (first + kLogitsPerLane <= p.columns && reinterpret_cast<std::uintptr_t>(at) % whole == 0) {
    if (type == ElementType::f32) {
      const float4 four = *reinterpret_cast<const float4*>(at);
      return {four.x, four.y, four.z, four.w};
    }
    const uint2 four = *reinterpret_cast<const uint2*>(at);
    if (type == ElementType::bf16)
      return {low_bf16(four.x), high_bf16(four.x), low_bf16(four.y), high_bf16(four.y)};
    return {from_f16(static_cast<std::uint16_t>(four.x)),
            from_f16(static_cast<std::uint16_t>(four.x >> 16)),
            from_f16(static_cast<std::uint16_t>(four.y)),
            from_f16(static_cast<std::uint16_t>(four.y >> 16))};
  }
  const auto at_column = [&](std::uint32_t i) {
    return first + i < p.columns ? load_element(p.logits.data, type, row + first + i) : -infinity();
  };
  return {at_column(0), at_column(1), at_column(2), at_column(3)};
}

// Key and column in one integer. Of equal keys the lower column gives the larger integer. The column
// takes 7 bits; a 16-bit logit needs only the upper bits of its key.
__device__ inline std::uint32_t key_u32(float logit, std::uint32_t column) {
  return (ordered_key(logit) & ~(kMaxRegisterLogits - 1)) | (kMaxRegisterLogits - 1 - column);
}
__device__ inline std::uint64_t key_u64(float logit, std::uint32_t column) {
  return std::uint64_t{ordered_key(logit)} << 32 | (kMaxRegisterLogits - 1 - column);
}

// True if the order of logits may decide and the row fits into registers.
__device__ inline bool fits_registers(const RouteParams& p) {
  const bool by_logits = p.key == Score::logit && p.weight != Score::softmax;
  const bool by_softmax = p.key == Score::softmax && p.weight == Score::softmax &&
                          p.normal != Normalization::softmax && p.bias == nullptr &&
                          p.scores_in_logits_type == 0 && p.top_k < 32;
  return (by_logits || by_softmax) && p.groups <= 1 && p.columns <= kMaxRegisterLogits;
}

// The chosen logits and their columns, one per lane, descending. For softmax, lane top_k has the next
// one.
struct RegisterChoice {
  float logit = -infinity();
  std::uint32_t column = 0;
};

// The column of choice `lane`, largest keys first. take(keys) removes the largest key from the lists
// and returns it.
template <class Keys, class Take>
__device__ inline std::uint32_t take_top(std::uint32_t rounds, Keys keys, const Take& take) {
  std::uint32_t mine = 0;
  keys.sort();
  for (std::uint32_t j = 0; j < rounds; ++j) {
    const std::uint32_t taken = take(keys);
    if (j == threadIdx.x % 32) mine = taken;
  }
  return kMaxRegisterLogits - 1 - mine % kMaxRegisterLogits;
}
template <class Key, class KeyOf>
__device__ inline RegisterKeys<Key> register_keys(const RouteParams& p,
                                                  const RegisterLogits& logits,
                                                  const KeyOf& key_of) {
  const std::uint32_t first = threadIdx.x % 32 * kLogitsPerLane;
  const auto key = [&](float logit, std::uint32_t i) -> Key {
    return first + i < p.columns ? key_of(logit, first + i) : 0;
  };
  return {key(logits.a, 0), key(logits.b, 1), key(logits.c, 2), key(logits.d, 3)};
}
// The upper bits also distinguish nearly all 32-bit logits. Where they do not (is_sure is false), all
// bits are compared.
__device__ inline std::uint32_t choose_u32(const RouteParams& p, const RegisterLogits& logits,
                                           std::uint32_t rounds, bool& is_sure) {
  std::uint32_t last = 0;
  return take_top(rounds, register_keys<std::uint32_t>(p, logits, key_u32),
                  [&](RegisterKeys<std::uint32_t>& usable) {
                    const std::uint32_t largest_key = __reduce_max_sync(kFullWarp, usable.a);
                    usable.take(usable.a == largest_key);
                    is_sure = is_sure && (largest_key ^ last) >= kMaxRegisterLogits;
                    last = largest_key;
                    return largest_key;
                  });
}
__device__ __noinline__ inline std::uint32_t choose_u64(const RouteParams& p, RegisterLogits logits,
                                                        std::uint32_t rounds) {
  return take_top(rounds, register_keys<std::uint64_t>(p, logits, key_u64),
                  [](RegisterKeys<std::uint64_t>& usable) {
                    const auto head = static_cast<std::uint32_t>(usable.a >> 32);
                    const std::uint32_t largest_key = __reduce_max_sync(kFullWarp, head);
                    const std::uint32_t winner =
                        __ffs(__ballot_sync(kFullWarp, head == largest_key)) - 1;
                    const std::uint32_t taken = __shfl_sync(
                        kFullWarp, static_cast<std::uint32_t>(usable.a), static_cast<int>(winner));
                    usable.take(threadIdx.x % 32 == winner);
                    return taken;
                  });
}
__device__ inline RegisterChoice choose_top_k(const RouteParams& p, const RegisterLogits& logits) {
  const bool is_short = p.logits.type != ElementType::f32;
  const std::uint32_t wanted = p.top_k + (is_short && p.key != Score::softmax ? 0 : 1);
  const std::uint32_t rounds = min(wanted, p.columns);
  bool is_sure = true;
  std::uint32_t column = choose_u32(p, logits, rounds, is_sure);
  if (!is_short && !is_sure) column = choose_u64(p, logits, rounds);
  // The lane that holds the column gives its logit.
  const auto owner = static_cast<int>(column / kLogitsPerLane);
  const float a = __shfl_sync(kFullWarp, logits.a, owner),
              b = __shfl_sync(kFullWarp, logits.b, owner),
              c = __shfl_sync(kFullWarp, logits.c, owner),
              d = __shfl_sync(kFullWarp, logits.d, owner);
  const std::uint32_t i = column % kLogitsPerLane;
  const float logit = i < 2 ? (i == 0 ? a : b) : (i == 2 ? c : d);
  const bool is_chosen = threadIdx.x % 32 < rounds;
  return {is_chosen ? key_value(ordered_key(logit)) : -infinity(), is_chosen ? column : 0};
}

// True if softmax, rounded to float32, keeps the order of the chosen logits and the next one: they
// are equal or at least 2^-20 apart, and no chosen one is so small that its score loses bits.
__device__ inline bool softmax_keeps_order(const RouteParams& p, const RegisterLogits& logits,
                                           float mine, float largest) {
  constexpr float kMinGap = 0x1p-20f, kMaxDepth = 60.0f;
  const std::uint32_t lane = threadIdx.x % 32;
  const float below = __shfl_down_sync(kFullWarp, mine, 1);
  const bool has_below = lane < p.top_k && lane + 1 < p.columns;
  bool is_fine = lane >= p.top_k || largest - mine <= kMaxDepth;
  if (has_below && mine != below) is_fine = is_fine && mine - below >= kMinGap;
  // A NaN or an infinity among all logits makes softmax NaN.
  const float largest_key = fmaxf(fmaxf(logits.a, logits.b), fmaxf(logits.c, logits.d));
  const bool has_nan = is_nan(logits.a) || is_nan(logits.b) || is_nan(logits.c) || is_nan(logits.d);
  return __all_sync(kFullWarp, is_fine && !has_nan && largest_key < infinity());
}

// A token with known experts. Its weights are computed later.
struct RegisterRow {
  RegisterLogits logits;
  RegisterChoice mine;
  float largest;
};
// False: the order of logits does not decide.
__device__ inline bool choose_row_experts(const RouteParams& p, std::uint32_t token,
                                          RegisterRow& row) {
  row.logits = load_register_logits(p, token * p.logits.stride, threadIdx.x % 32 * kLogitsPerLane);
  row.mine = choose_top_k(p, row.logits);
  row.largest = __shfl_sync(kFullWarp, row.mine.logit, 0);
  return p.key != Score::softmax || softmax_keeps_order(p, row.logits, row.mine.logit, row.largest);
}
__device__ inline float row_weight(const RouteParams& p, const RegisterRow& row) {
  const auto& [logits, mine, largest] = row;
  if (p.key == Score::softmax) {
    // With a normalization, the sum over all logits cancels.
    float sum = 1.0f;
    if (p.normal == Normalization::none)
      sum = warp_sum(exp_of_difference(logits.a, largest) + exp_of_difference(logits.b, largest) +
                     exp_of_difference(logits.c, largest) + exp_of_difference(logits.d, largest));
    return normalize(
        p, p.normal == Normalization::none ? Normalization::none : Normalization::over_sum,
        __fdiv_rn(exp_of_difference(mine.logit, largest), sum));
  }
  const float score = usable_score(p.normal, elementwise_score(p.weight, mine.logit));
  if (p.normal != Normalization::softmax || p.weight == Score::logit)
    return final_weight(p, score, largest);
  return final_weight(p, score, warp_max(threadIdx.x % 32 < p.top_k ? score : -infinity()));
}

// --- Generic. Each column has two floats of shared memory: a float64 numerator of softmax, then its
// key. The second float also holds the scores of groups of experts.

struct Softmax {
  double largest = 0, sum = 1;
};

class GenericRouter {
 public:
  __device__ GenericRouter(const RouteParams& params, std::uint32_t token, float* scratch)
      : p_(params),
        row_(token * params.logits.stride),
        scratch_(scratch),
        lane_(threadIdx.x % 32),
        width_((params.columns + 31) / 32),
        begin_(min(lane_ * width_, params.columns)),
        end_(min(begin_ + width_, params.columns)) {}

  __device__ void run(std::int32_t* ids, float* weights) {
    if (p_.weight == Score::softmax) sum_softmax();
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e) scratch_[2 * e] = key_of(e);
    __syncwarp();
    if (is_grouped() && !keep_groups()) {
      const float even = __fdiv_rn(1.0f, static_cast<float>(p_.top_k));
      write_ids(p_, static_cast<std::int32_t>(lane_), ids);
      return write_weights(p_, even, weights);
    }
    const std::uint32_t column = choose();
    const double score = lane_ < p_.top_k ? score_of(column) : 0.0;
    double largest = 0;
    if (p_.normal == Normalization::softmax) {
      largest = lane_ < p_.top_k ? score : static_cast<double>(-infinity());
      for (int step = 16; step > 0; step /= 2)
        largest = fmax(largest, __shfl_xor_sync(kFullWarp, largest, step));
    }
    write_ids(p_, static_cast<std::int32_t>(column), ids);
    write_weights(p_, final_weight(p_, score, largest), weights);
  }

 private:
  __device__ bool is_grouped() const { return p_.groups > 1; }
  __device__ float logit(std::uint32_t e) const {
    return load_element(p_.logits.data, p_.logits.type, row_ + e);
  }
  // With groups of experts, every logit that is not finite counts as minus infinity.
  __device__ float seen_logit(std::uint32_t e) const {
    const float found = logit(e);
    return is_grouped() && !is_finite(found) ? -infinity() : found;
  }

  __device__ void sum_softmax() {
    float largest = -infinity();
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e) largest = fmaxf(largest, seen_logit(e));
    softmax_.largest = warp_max(largest);
    double sum = 0;
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e) {
      const double part = exp(static_cast<double>(seen_logit(e)) - softmax_.largest);
      *reinterpret_cast<double*>(scratch_ + 2 * e) = part;
      sum += part;
    }
    softmax_.sum = warp_sum(sum);
  }

  __device__ double usable(double score) const {
    const double result = usable_score(p_.normal, score);
    if (p_.scores_in_logits_type == 0) return result;
    return round_to(p_.logits.type, static_cast<float>(result));
  }
  // The score that becomes the weight.
  __device__ double score_of(std::uint32_t e) const {
    const auto seen = static_cast<double>(seen_logit(e));
    if (p_.weight == Score::softmax) return usable(exp(seen - softmax_.largest) / softmax_.sum);
    return usable(elementwise_score(p_.weight, seen));
  }

  // The key that is compared. The numerator of softmax is still in the scratch memory of the column.
  __device__ float key_of(std::uint32_t e) const {
    const float own = logit(e);
    if (p_.key == Score::logit) return is_nan(own) ? -infinity() : own;
    const double score =
        p_.weight == Score::softmax
            ? usable(*reinterpret_cast<const double*>(scratch_ + 2 * e) / softmax_.sum)
            : score_of(e);
    auto key = static_cast<float>(score);
    if (p_.bias != nullptr) key = __fadd_rn(key, p_.bias[e]);
    if (p_.scores_in_logits_type != 0) key = round_to(p_.logits.type, key);
    return is_grouped() && !is_finite(own) ? -infinity() : key;
  }

  // The largest key, or the sum of the two largest.
  __device__ float group_score(std::uint32_t group) const {
    const std::uint32_t size = p_.columns / p_.groups;
    float first = -infinity(), second = -infinity();
#pragma unroll 4
    for (std::uint32_t e = group * size; e < (group + 1) * size; ++e) {
      const float key = scratch_[2 * e];
      second = fmaxf(second, fminf(first, key));
      first = fmaxf(first, key);
    }
    return p_.adds_two_per_group != 0 ? __fadd_rn(first, second) : first;
  }

  // Keys outside the chosen groups become minus infinity. False: too few groups have a score above
  // minus infinity.
  __device__ bool keep_groups() {
    const std::uint32_t size = p_.columns / p_.groups, width = (p_.groups + 31) / 32;
    const std::uint32_t begin = min(lane_ * width, p_.groups);
    const std::uint32_t end = min(begin + width, p_.groups);
#pragma unroll 1
    for (std::uint32_t g = begin; g < end; ++g) scratch_[2 * g + 1] = group_score(g);
    std::uint32_t chosen = 0, last = 0;  // bits: of this lane's groups
#pragma unroll 1
    for (std::uint32_t i = 0; i < p_.chosen_groups; ++i) {
      std::uint32_t best = 0, bit = 0;
#pragma unroll 1
      for (std::uint32_t g = begin; g < end; ++g) {
        const std::uint32_t key = ordered_key(scratch_[2 * g + 1]);
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
      scratch_[2 * g + 1] = (chosen >> (g - begin) & 1) != 0 ? 1.0f : 0.0f;
    __syncwarp();
#pragma unroll 1
    for (std::uint32_t e = begin_; e < end_; ++e)
      if (scratch_[2 * (e / size) + 1] == 0.0f) scratch_[2 * e] = -infinity();
    __syncwarp();
    return true;
  }

  // The column of choice `lane`.
  __device__ std::uint32_t choose() const {
    std::uint32_t taken = 0;  // bits: of this lane's columns
    std::uint32_t best = 0, place = 0, column = 0;
    const auto find_best = [&] {
      best = 0;
#pragma unroll 4
      for (std::uint32_t e = begin_; e < end_; ++e) {
        const std::uint32_t key = ordered_key(scratch_[2 * e]);
        if ((taken >> (e - begin_) & 1) != 0 || key <= best) continue;
        best = key;
        place = e;
      }
    };
    find_best();
#pragma unroll 1
    for (std::uint32_t j = 0; j < p_.top_k; ++j) {
      const std::uint32_t largest_key = __reduce_max_sync(kFullWarp, best);
      const std::uint32_t winner = __ffs(__ballot_sync(kFullWarp, best == largest_key)) - 1;
      const std::uint32_t found = __shfl_sync(kFullWarp, place, winner);
      if (j == lane_) column = found;
      if (lane_ == winner) {
        taken |= 1u << (place - begin_);
        find_best();
      }
      __syncwarp();
    }
    return column;
  }

  const RouteParams& p_;
  std::uint64_t row_;
  float* scratch_;
  std::uint32_t lane_, width_, begin_, end_;
  Softmax softmax_{};
};

// All lanes of a warp call. `scratch`: 2 * columns floats of shared memory for this warp, aligned to 8
// bytes. Writes ids and weights, [top_k] each, to shared or global memory. Rare, therefore not
// inlined.
__device__ __noinline__ inline void route_generic(const RouteParams& p, std::uint32_t token,
                                                  float* scratch, std::int32_t* ids,
                                                  float* weights) {
  GenericRouter(p, token, scratch).run(ids, weights);
}
// The same for any row. True: the weights are not written yet, and `row` gives them.
__device__ inline bool choose_token_experts(const RouteParams& p, std::uint32_t token,
                                            float* scratch, std::int32_t* ids, float* weights,
                                            RegisterRow& row) {
  if (!fits_registers(p) || !choose_row_experts(p, token, row)) {
    route_generic(p, token, scratch, ids, weights);
    return false;
  }
  write_ids(p, static_cast<std::int32_t>(row.mine.column), ids);
  return true;
}
__device__ inline void write_token_weights(const RouteParams& p, const RegisterRow& row,
                                           float* weights) {
  write_weights(p, row_weight(p, row), weights);
}

}  // namespace fp4moe::kernels::cuda::sm90
