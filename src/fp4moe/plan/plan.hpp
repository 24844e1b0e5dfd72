// A layer of a backend on one rank: sizes before and after rounding, buffers, bytes,
// what padding costs, and peak memory of conversion. The selection's own verdict on the backend is
// included, so that a plan for a kernel that cannot run says so.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/vllm/buffers.hpp"
#include "fp4moe/plan/split.hpp"
#include "fp4moe/plan/wire.hpp"

namespace fp4moe::plan {

struct BackendPlan {
  const oracle::Backend* backend = nullptr;
  bool chosen = false;    // what the policy selects
  std::string refused{};  // why the kernel does not run there; empty: it does
  std::vector<std::string>
      nearest{};  // if it is impossible: splits that are possible, "--tp 4", ...
  std::optional<Error> impossible{};  // no such plan: nothing below holds

  oracle::Sizes before{}, after{};  // of a rank; as divided, and as the kernel computes
  double hidden_padding = 0, intermediate_padding = 0;  // in percent of what weights fill
  std::vector<oracle::Buffer> buffers{};                // of one layer on the fullest rank
  std::uint64_t layer_bytes = 0;                        // their sum
  std::uint64_t rank_bytes = 0;                         // of all MoE layers
  std::uint64_t all_ranks_bytes = 0;                    // of all MoE layers on all ranks together
  std::uint64_t real_bytes = 0;                         // the same without padding
  double work = 1;                                      // multiply-adds, padded over real
  double memory = 1;                                    // bytes of all ranks, padded over real
  // While converting: one expert as it is and as it becomes; and a whole layer with its copy,
  // which is what the reference holds. Nothing is converted where the layout is as loaded.
  std::uint64_t expert_peak = 0, layer_peak = 0;
  std::optional<bool> fits{};  // the MoE weights alone, on the device; absent: memory unknown
};

struct Plan {
  Model model{};
  Split split{};
  platform::Device device{};
  const oracle::Policy* policy = nullptr;
  oracle::Mode mode{};
  std::string no_choice{};              // why the policy selects nothing, in its own words
  std::string nearest_miss{};           // then: the nearest backend and what it lacks; may be empty
  std::vector<BackendPlan> backends{};  // the chosen one first, then as the policy tries them
  std::vector<WireRow> wire{};          // of one layer, between ranks
  std::vector<std::string> that_fit{};  // other splits on which the chosen one fits, if it does not
};

struct PlanRequest {
  Model model{};
  Ranks ranks{};
  platform::Device device{};
  platform::Environment environment{};
  const oracle::Policy* policy = nullptr;
  oracle::Mode mode = oracle::Mode::strict;
};

// Errors: those of plan_split, with the splits that the policy serves.
Result<Plan> make_plan(const PlanRequest& request);

// One backend on one split.
BackendPlan plan_backend(const PlanRequest& request, const Split& split,
                         const oracle::Backend& backend);

Json to_json(const Plan& plan);

}  // namespace fp4moe::plan
