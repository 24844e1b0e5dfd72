// How a model's layers are cut over ranks, or why they cannot be. The reference divides the
// intermediate size by the number of ranks and rounds that up for the kernel; what a rank then
// loads is another matter: gpt-oss assigns whole scale blocks, so ranks may hold more than the
// division says, the last one less, and with many ranks some nothing at all. All other models need
// the division to fall on a block border.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/parallel.hpp"
#include "fp4moe/plan/model.hpp"

namespace fp4moe::plan {

struct Ranks {
  std::uint64_t tp = 1, dp = 1;
  std::uint64_t ep = 1;   // above 1: experts are split, over all ranks
  std::string all2all{};  // empty: the default
};

struct Split {
  oracle::Parallel parallel{};  // of rank 0, which holds the most
  std::uint64_t ranks = 1;
  // Intermediate size of a rank: divided, as the reference's kernels see it before rounding, and
  // as weights are handed out to the fullest and to the emptiest rank.
  std::uint64_t divided = 0, max_intermediate = 0, min_intermediate = 0;
  std::uint64_t empty_ranks = 0;  // hold padding alone
  std::uint64_t max_experts = 0, min_experts = 0;
  std::uint64_t ranks_with_max_experts = 1;  // experts
  std::vector<std::string> notes{};          // what a person should know, in sentences
};

// These ranks in vLLM's terms; `notes` gets its remarks on a name. Errors: plan.ranks (no such
// number, or ep is not the number of ranks), parallel.all2all (no such exchange).
Result<oracle::Deployment> deployment_of(const Ranks& ranks, oracle::PolicyDate policy_date,
                                         std::vector<std::string>& notes);

// Errors: those of deployment_of; with code no_backend plan.experts (ranks without an expert),
// plan.divide (the intermediate size does not divide) and plan.blocks (it divides, but not at a
// block border). Which splits to offer instead depends on who asks: plan/other_splits.hpp.
Result<Split> plan_split(const Model& model, const Ranks& ranks, oracle::PolicyDate policy_date);
// The same for ranks that were arranged elsewhere.
Result<Split> plan_split(const Model& model, oracle::Parallel parallel,
                         oracle::PolicyDate policy_date);

}  // namespace fp4moe::plan
