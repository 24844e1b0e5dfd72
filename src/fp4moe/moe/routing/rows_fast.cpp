// The fast way through a row. Scores that grow with the logit need not be computed to be compared:
// logits are, and it is enough to show that neighbors in their order have scores that differ by
// more than a rounding. Keys with a bias, or in groups, are approximated and must differ by more
// than the approximation's error.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "fp4moe/moe/routing/rows.hpp"
#include "fp4moe/moe/routing/scores.hpp"
#include "fp4moe/moe/routing/select_largest.hpp"

namespace fp4moe::moe::routing {
namespace {

using tensor::DType;

struct FastRow {
  explicit FastRow(const RowPlan& its_plan) : plan(its_plan) {}

  const RowPlan& plan;
  alignas(64) float logits[kMaxExperts];
  alignas(64) float scores[kMaxExperts];  // where all of them are needed
  LargestSelector<kMaxExperts> selector;
  std::int32_t taken[kMaxExperts];  // keys of the chosen
  float max_logit = 0;              // magnitude of logits
  float largest = 0, sum = 0;       // of logits, and of exp(logit - largest)
};

// The largest magnitude, infinite where something is not finite.
float max_magnitude(const float* values, std::size_t count) noexcept {
  std::int32_t max = 0;
  for (std::size_t i = 0; i < count; ++i)
    max = std::max(max, std::bit_cast<std::int32_t>(values[i]) & 0x7FFFFFFF);
  return std::bit_cast<float>(std::min(max, 0x7F800000));
}

void find_largest(FastRow& row) noexcept {
  std::int32_t max = kTaken;
  for (std::size_t i = 0; i < row.plan.columns; ++i) max = std::max(max, ordered(row.logits[i]));
  row.largest = from_ordered(max);
}

// In sixteen sums, the same whatever the compiler makes of it.
void find_sum(FastRow& row) noexcept {
  float sums[16] = {};
  const std::size_t whole = row.plan.columns / 16 * 16;
  for (std::size_t i = 0; i < whole; i += 16)
    for (std::size_t j = 0; j < 16; ++j) sums[j] += fast_exp(row.logits[i + j] - row.largest);
  for (std::size_t i = whole; i < row.plan.columns; ++i)
    sums[i - whole] += fast_exp(row.logits[i] - row.largest);
  for (std::size_t width = 8; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) sums[j] += sums[j + width];
  row.sum = sums[0];
}

// Computes the scores of logits that need no clamping (scores.hpp, tame_...).
void find_scores(FastRow& row) noexcept {
  const std::size_t count = row.plan.columns;
  if (row.plan.weight == Score::softmax) {
    find_largest(row);
    find_sum(row);
    const float factor = 1.0f / row.sum;
    for (std::size_t i = 0; i < count; ++i)
      row.scores[i] = tame_exp(row.logits[i] - row.largest) * factor;
  } else if (row.plan.weight == Score::sigmoid) {
    for (std::size_t i = 0; i < count; ++i) row.scores[i] = tame_sigmoid(row.logits[i]);
  } else {
    for (std::size_t i = 0; i < count; ++i) row.scores[i] = tame_sqrt_softplus(row.logits[i]);
  }
}

// True if a score is certainly larger than that of a smaller logit, both rounded to float32.
bool is_apart(Score score, float larger, float smaller, float largest) noexcept {
  if (score == Score::softmax) return larger - smaller > 1e-6f && smaller - largest > -kTamest;
  if (smaller < -kTamest || larger > kTamest) return false;
  const bool is_sigmoid = score == Score::sigmoid;
  const float high = is_sigmoid ? tame_sigmoid(larger) : tame_sqrt_softplus(larger);
  const float low = is_sigmoid ? tame_sigmoid(smaller) : tame_sqrt_softplus(smaller);
  return high - low > 4 * error_bound(score) * high;
}

// By logits; the score grows with them.
bool choose_by_logits(FastRow& row, std::span<std::int32_t> ids) noexcept {
  const std::size_t count = row.plan.columns;
  for (std::size_t i = 0; i < count; ++i) row.selector.keys[i] = ordered(row.logits[i]);
  row.selector.prepare(count);
  row.selector.take_many(ids.size(), ids.data(), row.taken);
  row.largest = row.logits[static_cast<std::size_t>(ids[0])];
  if (row.plan.key == Score::logit) return true;

  float last = row.largest;
  for (const std::int32_t id : ids) {
    const float logit = row.logits[static_cast<std::size_t>(id)];
    if (logit != last && !is_apart(row.plan.key, last, logit, row.largest)) return false;
    last = logit;
  }
  std::int32_t next = row.selector.next_key();
  if (next == ordered(last)) next = row.selector.next_below(next, count);  // equal ones keep order
  return next == kTaken || is_apart(row.plan.key, last, from_ordered(next), row.largest);
}

// How near two keys may be before their order is in doubt.
float doubt(const FastRow& row, float key, float other, float scores) noexcept {
  return error_bound(row.plan.key) * scores + 0x1p-22f * (std::abs(key) + std::abs(other));
}

float fast_group_score(const FastRow& row, std::size_t group) noexcept {
  const std::size_t size = row.plan.columns / row.plan.groups;
  const std::int32_t* keys = row.selector.keys + group * size;
  std::int32_t first = kTaken;
  for (std::size_t i = 0; i < size; ++i) first = std::max(first, keys[i]);
  if (!row.plan.adds_two_per_group) return from_ordered(first);
  std::int32_t times = 0, second = kTaken;
  for (std::size_t i = 0; i < size; ++i) {
    times += keys[i] == first ? 1 : 0;
    second = std::max(second, keys[i] == first ? kTaken : keys[i]);
  }
  return from_ordered(first) + from_ordered(times > 1 ? first : second);
}

// Takes the keys of all groups but the best; false when it is in doubt which those are.
bool keep_best_groups(FastRow& row) noexcept {
  const RowPlan& plan = row.plan;
  LargestSelector<kMaxExperts / 2> groups;
  bool kept[kMaxExperts / 2] = {};
  for (std::size_t group = 0; group < plan.groups; ++group)
    groups.keys[group] = ordered(fast_group_score(row, group));
  groups.prepare(plan.groups);
  float last = 0;
  for (std::size_t i = 0; i < plan.chosen_groups; ++i) {
    const std::int32_t key = groups.next_key();
    last = from_ordered(key);
    kept[groups.take(key)] = true;
  }
  if (const std::int32_t next = groups.next_key(); next != kTaken) {
    const float other = from_ordered(next);
    if (last - other <= 2 * doubt(row, last, other, 2)) return false;  // scores are up to 1
  }
  const std::size_t size = plan.columns / plan.groups;
  for (std::size_t group = 0; group < plan.groups; ++group)
    if (!kept[group]) std::fill_n(row.selector.keys + group * size, size, kTaken);
  return true;
}

// By approximate keys.
bool choose_by_keys(FastRow& row, std::span<std::int32_t> ids) noexcept {
  const RowPlan& plan = row.plan;
  if (row.max_logit > (plan.weight == Score::softmax ? kTamest / 2 : kTamest)) return false;
  find_scores(row);
  if (plan.bias.empty()) {
    for (std::size_t i = 0; i < plan.columns; ++i) row.selector.keys[i] = ordered(row.scores[i]);
  } else {
    const float* bias = plan.bias.data();
    for (std::size_t i = 0; i < plan.columns; ++i)
      row.selector.keys[i] = ordered(row.scores[i] + bias[i]);
  }
  if (plan.groups > 1 && !keep_best_groups(row)) return false;
  row.selector.prepare(plan.columns);

  row.selector.take_many(ids.size(), ids.data(), row.taken);
  for (std::size_t j = 1; j < ids.size(); ++j) {
    const auto id = static_cast<std::size_t>(ids[j]), last = static_cast<std::size_t>(ids[j - 1]);
    const bool is_tie = row.logits[id] == row.logits[last] &&
                        (plan.bias.empty() || plan.bias[id] == plan.bias[last]);
    const float key = from_ordered(row.taken[j]), larger_key = from_ordered(row.taken[j - 1]);
    if (!is_tie &&
        larger_key - key <= doubt(row, key, larger_key, row.scores[id] + row.scores[last]))
      return false;
  }
  const float last_key = from_ordered(row.taken[ids.size() - 1]);
  const std::int32_t next = row.selector.next_key();
  if (next == kTaken) return true;
  // The key's owner does not matter: no score is above that of the largest logit, or above 1.
  float max = 1;
  if (plan.weight == Score::sqrt_softplus) {
    find_largest(row);
    max = tame_sqrt_softplus(row.largest);
  }
  const float other = from_ordered(next);
  return last_key - other > doubt(row, last_key, other, 2 * max);
}

// The weights of the chosen experts. `by_keys`: all scores are there.
bool weigh(FastRow& row, const Row& asked, bool by_keys) noexcept {
  const RowPlan& plan = row.plan;
  const std::size_t count = asked.ids.size();
  float* weights = asked.weights.data();
  for (std::size_t j = 0; j < count; ++j)
    weights[j] = (by_keys ? row.scores : row.logits)[static_cast<std::size_t>(asked.ids[j])];
  const bool is_softmax =
      plan.weight == Score::softmax || plan.normalization == Normalization::softmax;
  if (is_softmax && !by_keys) {
    for (std::size_t j = 0; j < count; ++j) weights[j] = fast_exp(weights[j] - row.largest);
  } else if (plan.weight == Score::sigmoid && !by_keys) {
    for (std::size_t j = 0; j < count; ++j) weights[j] = fast_sigmoid(weights[j]);
  } else if (plan.weight == Score::sqrt_softplus && !by_keys) {
    if (row.max_logit > kTamest) return false;
    for (std::size_t j = 0; j < count; ++j) weights[j] = tame_sqrt_softplus(weights[j]);
  }
  float divisor = 1;
  if (plan.normalization != Normalization::none) {
    double sum = 0;
    for (std::size_t j = 0; j < count; ++j) sum += static_cast<double>(weights[j]);
    if (sum < 1e-12) return false;      // too small for their approximations
    divisor = static_cast<float>(sum);  // which 1e-20 more would not change
  } else if (is_softmax && !by_keys) {
    find_sum(row);
    divisor = row.sum;
  }
  const auto scale = static_cast<float>(plan.scale);
  for (std::size_t j = 0; j < count; ++j) weights[j] = weights[j] / divisor * scale;
  return true;
}

void load_bf16(const std::uint16_t* from, std::size_t count, float* to) noexcept {
  for (std::size_t i = 0; i < count; ++i)
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
}

// The exponent's bias is mended by a product, which takes care of subnormals too.
void load_f16(const std::uint16_t* from, std::size_t count, float* to) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t code = from[i];
    const float scaled = std::bit_cast<float>((code & 0x7FFFu) << 13) * 0x1p112f;
    const std::uint32_t wild = (code & 0x7C00u) == 0x7C00u ? 0x7F800000u : 0u;
    to[i] =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | wild | (code & 0x8000u) << 16);
  }
}

}  // namespace

void load_logits(const void* from, DType dtype, std::size_t count, float* to) noexcept {
  if (dtype == DType::bf16)
    load_bf16(static_cast<const std::uint16_t*>(from), count, to);
  else if (dtype == DType::f16)
    load_f16(static_cast<const std::uint16_t*>(from), count, to);
  else
    std::memcpy(to, from, count * sizeof(float));
}

bool route_row_fast(const RowPlan& plan, const Row& asked) noexcept {
  if (plan.scores_in_logits_dtype) return false;  // everything ties
  FastRow row(plan);
  load_logits(asked.logits, asked.dtype, plan.columns, row.logits);
  row.max_logit = max_magnitude(row.logits, plan.columns);
  if (!(row.max_logit <= std::numeric_limits<float>::max())) return false;
  if (!plan.hash_table.empty()) {
    const auto chosen =
        plan.hash_table.subspan(static_cast<std::size_t>(asked.token_id) * plan.top_k, plan.top_k);
    std::ranges::copy(chosen, asked.ids.begin());
    return weigh(row, asked, false);
  }
  const bool by_keys = plan.groups > 1 || !plan.bias.empty();
  if (!(by_keys ? choose_by_keys(row, asked.ids) : choose_by_logits(row, asked.ids))) return false;
  return weigh(row, asked, by_keys);
}

}  // namespace fp4moe::moe::routing
