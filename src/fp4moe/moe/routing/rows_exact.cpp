#include <algorithm>
#include <cmath>
#include <limits>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"
#include "fp4moe/moe/routing/rows.hpp"

namespace fp4moe::moe::routing {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// A row's numbers while it is routed: 4096 of each at most.
struct ExactRow {
  ExactRow(const RowPlan& its_plan, tensor::DType type) : plan(its_plan), dtype(type) {}

  const RowPlan& plan;
  tensor::DType dtype;
  float logits[kMaxExperts];
  double scores[kMaxExperts];
  float keys[kMaxExperts];

  std::span<double> all_scores() { return {scores, plan.columns}; }
  bool is_grouped() const { return plan.groups > 1; }
};

// The logit as scores see it: where experts are grouped, anything not finite is minus infinity.
double seen_logit(const ExactRow& row, std::size_t expert) {
  const float logit = row.logits[expert];
  if (row.is_grouped() && !std::isfinite(logit)) return static_cast<double>(kLowest);
  return static_cast<double>(logit);
}

void score_softmax(ExactRow& row) {
  auto largest = static_cast<double>(kLowest);
  for (std::size_t e = 0; e < row.plan.columns; ++e)
    largest = std::max(largest, seen_logit(row, e));
  double sum = 0;
  for (std::size_t e = 0; e < row.plan.columns; ++e)
    sum += row.scores[e] = std::exp(seen_logit(row, e) - largest);
  for (double& score : row.all_scores()) score /= sum;
}

double sqrt_softplus(double x) { return std::sqrt(x > 20 ? x : std::log1p(std::exp(x))); }

double rounded(float value, tensor::DType dtype) {
  if (dtype == tensor::DType::bf16)
    return static_cast<double>(formats::Bf16::decode(formats::Bf16::encode(value)));
  if (dtype == tensor::DType::f16)
    return static_cast<double>(formats::F16::decode(formats::F16::encode(value)));
  return static_cast<double>(value);
}

// The score of every expert that becomes its weight; 0 where it is not finite.
void score(ExactRow& row) {
  const RowPlan& plan = row.plan;
  if (plan.weight == Score::softmax) score_softmax(row);
  for (std::size_t e = 0; e < plan.columns; ++e) {
    const double logit = seen_logit(row, e);
    double& score = row.scores[e];
    if (plan.weight == Score::sigmoid) score = 1 / (1 + std::exp(-logit));
    if (plan.weight == Score::sqrt_softplus) score = sqrt_softplus(logit);
    if (plan.weight == Score::logit) score = logit;
    if (plan.normalization == Normalization::softmax) {
      if (std::isnan(score)) score = static_cast<double>(kLowest);
    } else if (!std::isfinite(score)) {
      score = 0;
    }
    if (plan.scores_in_logits_dtype) score = rounded(static_cast<float>(score), row.dtype);
  }
}

void make_keys(ExactRow& row) {
  const RowPlan& plan = row.plan;
  for (std::size_t e = 0; e < plan.columns; ++e) {
    float& key = row.keys[e];
    if (plan.key == Score::logit) {
      key = row.logits[e];
      if (std::isnan(key)) key = kLowest;
      continue;
    }
    key = static_cast<float>(row.scores[e]);
    if (!plan.bias.empty()) key += plan.bias[e];
    if (plan.scores_in_logits_dtype) key = static_cast<float>(rounded(key, row.dtype));
    if (row.is_grouped() && !std::isfinite(row.logits[e])) key = kLowest;
  }
}

// The place of the largest, the first of equals; taken ones are NaN.
std::size_t largest_of(std::span<const float> keys) {
  std::size_t best = keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (std::isnan(keys[i])) continue;
    if (best == keys.size() || keys[i] > keys[best]) best = i;
  }
  return best;
}
std::size_t take_largest(std::span<float> keys) {
  const std::size_t best = largest_of(keys);
  keys[best] = std::numeric_limits<float>::quiet_NaN();
  return best;
}

float group_score(const ExactRow& row, std::size_t group) {
  const std::size_t size = row.plan.columns / row.plan.groups;
  float first = kLowest, second = kLowest;
  for (std::size_t e = group * size; e < (group + 1) * size; ++e) {
    const float key = row.keys[e];
    if (key > first) {
      second = first;
      first = key;
    } else {
      second = std::max(second, key);
    }
  }
  return row.plan.adds_two_per_group ? first + second : first;
}

// Experts outside the chosen groups become minus infinity. False when there are not as many groups
// with a finite score.
bool keep_groups(ExactRow& row) {
  const RowPlan& plan = row.plan;
  float scores[kMaxExperts];
  for (std::size_t group = 0; group < plan.groups; ++group) scores[group] = group_score(row, group);
  float last = 0;
  for (std::size_t i = 0; i < plan.chosen_groups; ++i) {
    const std::size_t best = largest_of({scores, plan.groups});
    last = scores[best];
    scores[best] = std::numeric_limits<float>::quiet_NaN();
  }
  if (last == kLowest) return false;
  const std::size_t size = plan.columns / plan.groups;
  for (std::size_t e = 0; e < plan.columns; ++e)
    if (!std::isnan(scores[e / size])) row.keys[e] = kLowest;
  return true;
}

void divide(std::span<double> weights, double divisor) {
  for (double& weight : weights) weight /= divisor;
}

void normalize(const RowPlan& plan, std::span<double> weights) {
  double sum = 0;
  if (plan.normalization == Normalization::softmax) {
    const double largest = *std::ranges::max_element(weights);
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    divide(weights, sum);
    return;
  }
  for (const double weight : weights) sum += weight;
  if (plan.normalization == Normalization::over_sum && sum > 0) divide(weights, sum);
  if (plan.normalization == Normalization::over_sum_eps) divide(weights, sum + 1e-20);
}

}  // namespace

void route_row_exact(const RowPlan& plan, const Row& asked) noexcept {
  ExactRow row(plan, asked.dtype);
  load_logits(asked.logits, asked.dtype, plan.columns, row.logits);
  score(row);
  if (!plan.hash_table.empty()) {
    const auto chosen =
        plan.hash_table.subspan(static_cast<std::size_t>(asked.token_id) * plan.top_k, plan.top_k);
    std::ranges::copy(chosen, asked.ids.begin());
  } else {
    make_keys(row);
    if (row.is_grouped() && !keep_groups(row)) {
      for (std::size_t j = 0; j < plan.top_k; ++j) {
        asked.ids[j] = static_cast<std::int32_t>(j);
        asked.weights[j] = 1.0f / static_cast<float>(plan.top_k);
      }
      return;
    }
    for (std::int32_t& id : asked.ids)
      id = static_cast<std::int32_t>(take_largest({row.keys, plan.columns}));
  }
  double weights[kMaxExperts];
  for (std::size_t j = 0; j < plan.top_k; ++j)
    weights[j] = row.scores[static_cast<std::size_t>(asked.ids[j])];
  normalize(plan, {weights, plan.top_k});
  for (std::size_t j = 0; j < plan.top_k; ++j) {
    const auto weight = static_cast<float>(weights[j] * plan.scale);
    asked.weights[j] = std::isfinite(weight) ? weight : 0;
  }
}

}  // namespace fp4moe::moe::routing
