#include "fp4moe/plan/split.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::plan {
namespace {

using checkpoint::SplitRule;
using oracle::Exchange;

constexpr std::uint64_t kMaxRanks = 1u << 16;

std::uint64_t block_of(const Model& model) { return checkpoint::block_size(model.shape.format); }

// True if this many ranks can share each expert.
bool can_divide(const Model& model, std::uint64_t ranks, bool reference) {
  const std::uint64_t intermediate = model.shape.intermediate, block = block_of(model);
  if (ranks == 1) return true;
  if (intermediate % block != 0 || ranks > intermediate / block) return false;
  if (model.rule == SplitRule::ceil_blocks) return !reference || intermediate % ranks == 0;
  return intermediate / block % ranks == 0;
}

Error impossible(std::string_view id, std::string_view message) {
  return error(ErrorCode::no_backend, id, message);
}

Result<Done> check_divides(const Model& model, std::uint64_t ranks, bool reference) {
  if (can_divide(model, ranks, reference)) return Done{};
  const std::uint64_t intermediate = model.shape.intermediate, block = block_of(model);
  if (intermediate % ranks != 0)
    return impossible("plan.divide", "the intermediate size does not divide by the ranks")
        .expects(fmt::format("{} divisible by the tensor-parallel size", intermediate),
                 fmt::format("{}", ranks));
  return impossible("plan.blocks", "the intermediate size is not cut at scale-block borders")
      .expects(fmt::format("parts of whole blocks of {}", block),
               fmt::format("{} / {} = {}", intermediate, ranks, intermediate / ranks));
}

// Whole experts: the first ranks hold those left over.
Result<Done> split_experts(const Model& model, oracle::PolicyDate policy_date, Split& split) {
  const std::uint64_t experts = model.shape.experts;
  if (split.ranks > experts)
    return impossible("plan.experts", "some ranks would hold no expert")
        .expects(fmt::format("at most {} ranks for {} experts", experts, experts),
                 std::to_string(split.ranks));
  split.max_experts = oracle::local_expert_count(split.parallel, experts);
  split.min_experts = experts / split.ranks;
  const std::uint64_t rest = experts % split.ranks;
  split.ranks_with_max_experts = rest == 0 ? split.ranks : rest;
  if (rest == 0) return Done{};
  split.notes.push_back(fmt::format("{} experts over {} ranks: the first {} hold {}, the others {}",
                                    experts, split.ranks, rest, split.max_experts,
                                    split.min_experts));
  const Exchange used = oracle::exchange(split.parallel, policy_date);
  if (used != Exchange::none && used != Exchange::gather)
    split.notes.push_back(fmt::format("{} counts {} experts on every rank: use a size that divides",
                                      split.parallel.all2all_backend, split.min_experts));
  return Done{};
}

// Parts of every expert.
Result<Done> split_rows(const Model& model, bool reference, Split& split) {
  if (auto fine = check_divides(model, split.ranks, reference); !fine) return fine;
  const std::uint64_t intermediate = model.shape.intermediate, block = block_of(model);
  const auto range = [&](std::uint64_t rank) {
    return checkpoint::split_intermediate(intermediate, block, {rank, split.ranks}, model.rule);
  };
  const auto first = range(0), last = range(split.ranks - 1);
  if (!first) return first.why();
  if (!last) return last.why();
  split.divided = reference ? intermediate / split.ranks : first->size();
  split.max_intermediate = first->size();
  split.min_intermediate = last->size();
  const std::uint64_t filled =
      split.max_intermediate == 0 ? 0 : ceil_div(intermediate, split.max_intermediate);
  split.empty_ranks = split.ranks - std::min(split.ranks, filled);
  if (model.rule != SplitRule::ceil_blocks || split.max_intermediate * split.ranks == intermediate)
    return Done{};
  split.notes.push_back(fmt::format(
      "{} / {} = {}{} is not made of whole blocks of {}: {} blocks are handed out {} at a time",
      intermediate, split.ranks, intermediate / split.ranks,
      intermediate % split.ranks == 0 ? "" : " and a rest", block, intermediate / block,
      split.max_intermediate / block));
  if (split.empty_ranks > 0)
    split.notes.push_back(fmt::format("{} of {} ranks hold padding alone and only wait",
                                      split.empty_ranks, split.ranks));
  return Done{};
}

}  // namespace

Result<oracle::Deployment> deployment_of(const Ranks& ranks, oracle::PolicyDate policy_date,
                                         std::vector<std::string>& notes) {
  const auto product = checked_multiply(ranks.tp, ranks.dp);
  if (!product || *product > kMaxRanks || ranks.ep > kMaxRanks || *product == 0 || ranks.ep == 0)
    return usage("plan.ranks", "that is not a number of ranks")
        .expects(fmt::format("1 to {}", kMaxRanks),
                 fmt::format("tp {}, dp {}, ep {}", ranks.tp, ranks.dp, ranks.ep));
  if (ranks.ep > 1 && *product > 1 && *product != ranks.ep)
    return impossible("plan.ranks", "experts are split over all ranks or not at all")
        .expects(fmt::format("--ep {}, as --tp {} and --dp {} make that many", *product, ranks.tp,
                             ranks.dp),
                 fmt::format("--ep {}", ranks.ep))
        .try_this(fmt::format("Use --ep {}, or --ep {} alone", *product, ranks.ep));
  oracle::Deployment deployment;
  deployment.tp_size = static_cast<int>(ranks.ep > 1 && *product == 1 ? ranks.ep : ranks.tp);
  deployment.dp_size = static_cast<int>(ranks.dp);
  deployment.enable_expert_parallel = ranks.ep > 1;
  if (!ranks.all2all.empty()) {
    const auto accepted = oracle::accept_exchange(ranks.all2all, policy_date);
    if (!accepted) return accepted.why();
    deployment.all2all_backend = accepted->name;
    if (!accepted->warning.empty()) notes.push_back(accepted->warning);
  }
  return deployment;
}

Result<Split> plan_split(const Model& model, const Ranks& ranks, oracle::PolicyDate policy_date) {
  std::vector<std::string> notes;
  const auto deployment = deployment_of(ranks, policy_date, notes);
  if (!deployment) return deployment.why();
  Result<Split> split = plan_split(model, oracle::derive(*deployment), policy_date);
  if (split) split->notes.insert(split->notes.begin(), notes.begin(), notes.end());
  return split;
}

Result<Split> plan_split(const Model& model, oracle::Parallel parallel,
                         oracle::PolicyDate policy_date) {
  Split split;
  split.parallel = std::move(parallel);
  split.ranks = static_cast<std::uint64_t>(split.parallel.tp_size) *
                static_cast<std::uint64_t>(split.parallel.ep_size);
  split.divided = split.max_intermediate = split.min_intermediate = model.shape.intermediate;
  split.max_experts = split.min_experts = model.shape.experts;
  split.ranks_with_max_experts = split.ranks;
  const Result<Done> done =
      split.parallel.use_ep ? split_experts(model, policy_date, split)
                            : split_rows(model, policy_date != oracle::PolicyDate::native, split);
  if (!done) return done.why();
  return split;
}

}  // namespace fp4moe::plan
