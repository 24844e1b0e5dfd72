#include "fp4moe/plan/other_splits.hpp"

#include <bit>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::plan {
namespace {

using oracle::Deployment;

// Up to how many ranks another split is looked for.
constexpr int kMaxOffered = 64;

int all_ranks(const Deployment& now) { return now.tp_size * now.dp_size * now.pcp_size; }

OtherSplit with_ranks(const Deployment& now, int ranks) {
  OtherSplit result{
      fmt::format("--tensor-parallel-size {}", ranks), {"--tp", std::to_string(ranks)}, now};
  result.deployment.tp_size = ranks;
  if (!now.enable_expert_parallel) return result;
  const std::string all = std::to_string(all_ranks(result.deployment));
  // --ep alone is that many ranks.
  if (all_ranks(result.deployment) == ranks) result.asks.clear();
  result.asks.insert(result.asks.end(), {"--ep", all});
  return result;
}

}  // namespace

std::vector<OtherSplit> other_arrangements(const Deployment& now) {
  std::vector<OtherSplit> result;
  const int ranks = all_ranks(now);
  const auto add = [&](std::string says, std::vector<std::string> asks, auto&& change) {
    result.push_back({std::move(says), std::move(asks), now});
    change(result.back().deployment);
  };
  if (ranks > 1 && now.enable_expert_parallel)
    add("leave --enable-expert-parallel out", {},
        [](Deployment& d) { d.enable_expert_parallel = false; });
  else if (ranks > 1)
    add("--enable-expert-parallel", {"--ep", std::to_string(ranks)},
        [](Deployment& d) { d.enable_expert_parallel = true; });
  if (now.dp_size > 1) {
    const int all = now.tp_size * now.dp_size;
    add(fmt::format("--tensor-parallel-size {} --data-parallel-size 1", all),
        {"--tp", std::to_string(all), "--dp", "1"}, [all](Deployment& d) {
          d.tp_size = all;
          d.dp_size = 1;
        });
  }
  return result;
}

std::vector<OtherSplit> other_splits(const Deployment& now,
                                     const std::function<bool(const Deployment&)>& works) {
  std::vector<OtherSplit> result;
  const auto add = [&](OtherSplit other) {
    if (!works(other.deployment)) return false;
    result.push_back(std::move(other));
    return true;
  };
  const auto now_ranks = static_cast<unsigned>(now.tp_size);
  const int below = static_cast<int>(std::bit_floor(now_ranks - 1));
  for (int ranks = below; ranks >= 1; ranks /= 2)
    if (add(with_ranks(now, ranks))) break;
  for (int ranks = static_cast<int>(std::bit_ceil(now_ranks + 1)); ranks <= kMaxOffered; ranks *= 2)
    if (add(with_ranks(now, ranks))) break;
  bool holds_whole_experts = now.enable_expert_parallel;
  for (OtherSplit& other : other_arrangements(now)) {
    const bool is_whole = other.deployment.enable_expert_parallel;
    if (add(std::move(other)) && is_whole) holds_whole_experts = true;
  }
  // More ranks than experts: whole experts on fewer.
  Deployment whole = now;
  whole.enable_expert_parallel = true;
  for (int ranks = below; ranks > 1 && !holds_whole_experts; ranks /= 2) {
    OtherSplit other = with_ranks(whole, ranks);
    other.says += " --enable-expert-parallel";
    holds_whole_experts = add(std::move(other));
  }
  return result;
}

std::vector<std::string> asked_words(std::span<const OtherSplit> splits) {
  std::vector<std::string> words;
  for (const OtherSplit& other : splits)
    if (!other.asks.empty()) words.push_back(join(other.asks, " "));
  return words;
}

std::string advice(std::span<const OtherSplit> splits) {
  const std::vector<std::string> words = asked_words(splits);
  if (words.empty()) return {};
  std::string result = "use " + words.front();
  for (std::size_t i = 1; i < words.size(); ++i)
    result += (i + 1 == words.size() ? " or " : ", ") + words[i];
  return result;
}

}  // namespace fp4moe::plan
