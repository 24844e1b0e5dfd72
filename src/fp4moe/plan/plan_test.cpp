#include "fp4moe/plan/plan.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"

namespace fp4moe::plan {
namespace plan_test {

PlanRequest request(std::string_view model, std::string_view device, std::string_view policy) {
  PlanRequest result;
  result.model = model_from_row(*checkpoint::find_model(model), {});
  const auto described = platform::describe_device(device);
  EXPECT_TRUE(described);
  if (described) result.device = *described;
  result.policy = backends::find_policy(policy, result.model.shape.format);
  EXPECT_NE(result.policy, nullptr);
  return result;
}

BackendPlan plan_for(PlanRequest asked, const Ranks& ranks, std::string_view backend) {
  asked.ranks = ranks;
  const auto plan = make_plan(asked);
  EXPECT_TRUE(plan) << text(plan.why());
  if (!plan) return {};
  const auto found = std::ranges::find_if(
      plan->backends, [&](const BackendPlan& row) { return row.backend->name == backend; });
  EXPECT_NE(found, plan->backends.end()) << backend;
  return found == plan->backends.end() ? BackendPlan{} : *found;
}

TEST(Plan, SaysWhatMarlinMakesOfGptOss) {
  const BackendPlan result = plan_for(request("gpt-oss-20b", "a100", "2026-04-24"), {}, "MARLIN");

  EXPECT_TRUE(result.chosen);
  EXPECT_FALSE(result.impossible);
  EXPECT_EQ(result.before, (oracle::Sizes{2880, 2880}));
  EXPECT_EQ(result.after, (oracle::Sizes{3072, 2944}));
  EXPECT_NEAR(result.hidden_padding, 6.667, 0.001);
  EXPECT_NEAR(result.intermediate_padding, 2.222, 0.001);
  EXPECT_NEAR(result.work, 3072.0 * 2944 / (2880.0 * 2880), 1e-12);
  const std::uint64_t layer =
      32ull * (5888 * 1536 + 5888 * 96 + 3072 * 1472 + 3072 * 92 + 2 * (5888 + 3072));
  EXPECT_EQ(result.layer_bytes, layer);
  EXPECT_EQ(result.rank_bytes, 24 * layer);
  EXPECT_EQ(result.all_ranks_bytes, 24 * layer);
  EXPECT_EQ(result.layer_peak, 2 * layer);
  const std::uint64_t real =
      32ull * (5760 * 1440 + 5760 * 90 + 2880 * 1440 + 2880 * 90 + 2 * (5760 + 2880));
  EXPECT_EQ(result.real_bytes, 24 * real);
  EXPECT_EQ(result.expert_peak, layer / 32 + real / 32);
  EXPECT_NEAR(result.memory, static_cast<double>(layer) / static_cast<double>(real), 1e-12);
  EXPECT_EQ(result.fits, true);
}

TEST(Plan, RoundsADividedSizeAndChecksThatTheHandedOutPartFits) {
  const PlanRequest asked = request("gpt-oss-120b", "h100", "2026-08-22");

  const BackendPlan triton = plan_for(asked, {.tp = 8}, "TRITON");
  EXPECT_EQ(triton.before.intermediate, 360u);
  EXPECT_EQ(triton.after.intermediate, 384u);
  EXPECT_NEAR(triton.intermediate_padding, 100.0 * (8 * 384.0 / 2880 - 1), 1e-9);

  const BackendPlan unrounded = plan_for(asked, {.tp = 8}, "B12X_MXFP4_BF16");
  ASSERT_TRUE(unrounded.impossible);
  EXPECT_EQ(unrounded.impossible->id, "plan.slice");
  EXPECT_EQ(unrounded.nearest, (std::vector<std::string>{"--tp 2", "--ep 8"}));
  EXPECT_EQ(unrounded.impossible->remedy, "use --tp 2 or --ep 8");
}

TEST(Plan, AnImpossibleSplitNamesThoseThatAreServed) {
  PlanRequest asked = request("gpt-oss-120b", "h100", "2026-08-22");
  const auto remedy = [&asked](const Ranks& ranks) {
    asked.ranks = ranks;
    const auto plan = make_plan(asked);
    EXPECT_FALSE(plan);
    return plan ? std::string() : plan.why().remedy;
  };
  // 6 divides 2880, but no number of attention heads.
  EXPECT_EQ(remedy({.tp = 7}), "use --tp 4, --tp 8 or --ep 7");
  EXPECT_EQ(remedy({.ep = 200}), "use --ep 128");
  asked = request("qwen3-30b-a3b", "h100", "2026-08-22");
  EXPECT_EQ(remedy({.tp = 32}), "use --tp 16 or --ep 32");
}

TEST(Plan, MoreRanksThanExpertsAreOfferedWholeExpertsOnFewer) {
  PlanRequest asked = request("mixtral-8x7b", "h100", "2026-08-22");  // 14336 is 448 blocks
  asked.ranks.tp = 96;
  const auto plan = make_plan(asked);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.why().remedy, "use --tp 64 or --ep 8");
}

TEST(Plan, WhereNothingIsServedSizesSayWhatIsPossible) {
  PlanRequest asked = request("gpt-oss-120b", "cpu", "2026-04-24");
  asked.ranks.tp = 7;
  EXPECT_EQ(make_plan(asked).why().remedy, "use --tp 4, --tp 8 or --ep 7");
}

TEST(Plan, CountsWhatConversionPads) {
  const PlanRequest nemotron = request("nemotron-3-nano", "b200", "2026-08-22");
  const BackendPlan trtllm = plan_for(nemotron, {}, "FLASHINFER_TRTLLM");
  EXPECT_EQ(trtllm.before, (oracle::Sizes{2688, 1856}));
  EXPECT_EQ(trtllm.after, (oracle::Sizes{2816, 1920}));

  // 768 / 8 = 96: gate and up are 192 rows, which is no whole number of tiles.
  const PlanRequest qwen = request("qwen3-30b-a3b", "b200", "2026-08-22");
  const BackendPlan cutlass = plan_for(qwen, {.tp = 8}, "FLASHINFER_CUTLASS");
  ASSERT_TRUE(cutlass.impossible);
  EXPECT_EQ(cutlass.impossible->id, "sizes.conversion");
  EXPECT_EQ(plan_for(qwen, {.tp = 8}, "MARLIN").after.intermediate, 128u);
}

TEST(Plan, CountsTheExpertsOfEveryRank) {
  const PlanRequest asked = request("gpt-oss-120b", "h100", "2026-08-22");

  const BackendPlan whole = plan_for(asked, {}, "MARLIN");
  const BackendPlan uneven = plan_for(asked, {.ep = 6}, "MARLIN");
  EXPECT_EQ(uneven.rank_bytes, whole.rank_bytes / 128 * 22);
  EXPECT_EQ(uneven.all_ranks_bytes, whole.rank_bytes);
  EXPECT_EQ(uneven.work, whole.work);
  EXPECT_EQ(uneven.real_bytes, whole.real_bytes);
}

TEST(Plan, SharedActivationScalesAreCountedOnEveryRank) {
  const PlanRequest asked = request("deepseek-v3", "b200", "2026-04-24");

  const BackendPlan result = plan_for(asked, {.ep = 8}, "FLASHINFER_TRTLLM");
  const auto scale = std::ranges::find_if(
      result.buffers, [](const oracle::Buffer& row) { return row.name == "w13_input_scale"; });
  ASSERT_NE(scale, result.buffers.end());
  EXPECT_EQ(scale->shape, (std::vector<std::uint64_t>{256, 2}));
  EXPECT_GT(result.memory, 1.0);
}

TEST(Plan, TheChosenBackendComesFirstAndRefusedOnesSayWhy) {
  PlanRequest asked = request("gpt-oss-20b", "h100", "2026-04-24");
  const auto plan = make_plan(asked);

  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->backends.front().backend->name, "TRITON");
  EXPECT_TRUE(plan->backends.front().chosen);
  EXPECT_EQ(std::ranges::count_if(plan->backends, &BackendPlan::chosen), 1);
  for (const BackendPlan& row : plan->backends) {
    if (row.backend->name == "XPU" || row.backend->name.find("TRTLLM") != std::string::npos) {
      EXPECT_FALSE(row.refused.empty()) << row.backend->name;
    }
    EXPECT_NE(row.backend->family, "none");
  }
}

TEST(Plan, APolicyWithoutAChoiceStillPlans) {
  const auto plan = make_plan(request("gpt-oss-20b", "cpu", "2026-04-24"));

  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->no_choice.empty());
  EXPECT_EQ(plan->nearest_miss, "");  // nothing of that day is for CPUs
  const auto close = make_plan(request("gpt-oss-120b", "cpu-avx512", "vllm-0.33.0"));
  ASSERT_TRUE(close);
  EXPECT_FALSE(close->no_choice.empty());
  EXPECT_NE(close->nearest_miss.find("CPU: needs an x86 CPU with "), std::string::npos)
      << close->nearest_miss;
  EXPECT_LT(close->nearest_miss.size(), 200u);
  EXPECT_FALSE(plan->backends.empty());
}

TEST(Plan, WhatDoesNotFitNamesSplitsThatDo) {
  PlanRequest asked = request("deepseek-v3", "h100", "2026-04-24");
  asked.ranks.tp = 1;
  const auto plan = make_plan(asked);

  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->backends.front().fits, false);
  EXPECT_EQ(plan->that_fit, (std::vector<std::string>{"--tp 8", "--ep 8"}));
}

TEST(Plan, UnknownMemoryIsNotGuessed) {
  PlanRequest asked = request("gpt-oss-20b", "h100", "2026-04-24");
  asked.device.memory_bytes = 0;

  EXPECT_FALSE(make_plan(asked)->backends.front().fits.has_value());
}

TEST(Plan, SizesBeyond64BitsAreRefusedNotWrapped) {
  PlanRequest asked = request("gpt-oss-20b", "h100", "2026-04-24");
  asked.model.shape.hidden = std::uint64_t{1} << 40;
  asked.model.shape.intermediate = std::uint64_t{1} << 40;
  const auto plan = make_plan(asked);

  ASSERT_TRUE(plan);
  for (const BackendPlan& row : plan->backends) EXPECT_TRUE(row.impossible) << row.backend->name;
}

TEST(Plan, AnExchangeWithoutASizeMakesTheBackendImpossible) {
  PlanRequest asked = request("gpt-oss-20b", "h100", "2026-04-24");
  asked.model.shape.hidden = 9600;
  asked.ranks = {.tp = 2, .dp = 2, .ep = 4, .all2all = "deepep_low_latency"};
  const auto plan = make_plan(asked);

  ASSERT_TRUE(plan);
  ASSERT_TRUE(plan->backends.front().impossible);
  EXPECT_EQ(plan->backends.front().impossible->id, "sizes.exchange");
}

TEST(Plan, IsCompleteAsJson) {
  PlanRequest asked = request("gpt-oss-120b", "h100", "2026-08-22");
  asked.ranks.tp = 8;
  const Json json = to_json(*make_plan(asked));

  EXPECT_EQ(json["model"], "gpt-oss-120b");
  EXPECT_EQ(json["split"]["intermediate_most"], 384);
  EXPECT_EQ(json["split"]["intermediate_least"], 192);
  EXPECT_EQ(json["split"]["rule"], "ceil_blocks");
  EXPECT_FALSE(json["notes"].empty());
  const auto is = [](std::string_view name) {
    return [name](const Json& row) { return row["backend"] == name; };
  };
  const auto marlin = std::ranges::find_if(json["backends"], is("MARLIN"));
  ASSERT_NE(marlin, json["backends"].end());
  EXPECT_EQ((*marlin)["after"]["hidden"], 3072);
  EXPECT_EQ((*marlin)["buffers"].size(), 6u);
  EXPECT_GT((*marlin)["bytes"]["rank"].get<std::int64_t>(), 0);
  const auto b12x = std::ranges::find_if(json["backends"], is("B12X_MXFP4_BF16"));
  ASSERT_NE(b12x, json["backends"].end());
  EXPECT_EQ((*b12x)["impossible"]["id"], "plan.slice");
}

// Every backend of every policy on every model: sizes never shrink, nothing is lost, padding is
// never negative.
TEST(Plan, PaddingNeverLosesAWeight) {
  for (const oracle::Policy& policy : backends::policies()) {
    for (const checkpoint::ModelRow& row : checkpoint::models()) {
      for (const std::string_view device : {"h100", "b200", "mi300x", "xpu", "cpu"}) {
        PlanRequest asked;
        asked.model = model_from_row(row, policy.format);
        asked.device = *platform::describe_device(device);
        asked.policy = &policy;
        for (const Ranks& ranks : {Ranks{}, Ranks{.tp = 2}, Ranks{.tp = 8}, Ranks{.ep = 8}}) {
          const auto split = plan_split(asked.model, ranks, policy.policy_date);
          if (!split) continue;
          for (const oracle::Backend* backend : policy.backends) {
            const BackendPlan result = plan_backend(asked, *split, *backend);
            if (result.impossible) continue;
            const auto where = std::string(row.name) + " " + std::string(backend->name);
            EXPECT_GE(result.after.hidden, asked.model.shape.hidden) << where;
            EXPECT_GE(result.after.intermediate, split->max_intermediate) << where;
            EXPECT_GE(result.all_ranks_bytes, result.real_bytes) << where;
            EXPECT_GE(result.work, 1.0) << where;
            EXPECT_GE(result.intermediate_padding, 0.0) << where;
          }
        }
      }
    }
  }
}

TEST(Wire, SaysWhatEachExchangeSends) {
  PlanRequest asked = request("gpt-oss-120b", "h100", "2026-08-22");
  asked.ranks = {.dp = 8, .ep = 8, .all2all = "deepep_low_latency"};
  const auto plan = make_plan(asked);

  ASSERT_TRUE(plan) << text(plan.why());
  ASSERT_EQ(plan->wire.size(), 10u);  // all_reduce, and three exchanges of three types
  const auto find = [&](std::string_view exchange, oracle::ActivationKey key) {
    return *std::ranges::find_if(plan->wire, [&](const WireRow& row) {
      return row.cost.exchange == exchange && row.cost.activations == key;
    });
  };
  const WireRow all = find("gather", oracle::ActivationKey::none);
  EXPECT_EQ(all.cost.dispatch, 7 * (2880 * 2 + 4 * 8));  // bf16, and 4 ids and weights
  EXPECT_EQ(all.cost.combine, 7 * 2880 * 2);
  EXPECT_FALSE(all.used);
  const WireRow codes = find("gather", oracle::ActivationKey::mxfp8);
  EXPECT_EQ(codes.cost.dispatch, 7 * (2880 + 2880 / 32 + 4 * 8));
  const WireRow batches = find("all_to_all_batched", oracle::ActivationKey::none);
  EXPECT_EQ(batches.cost.dispatch, 3.5 * (2880 * 2 + 4));  // 4 experts, 7 of 8 times elsewhere
  EXPECT_EQ(batches.cost.sum_at_worst(), 4 * (2880 * 2 * 2 + 4));
  EXPECT_TRUE(batches.used);
  EXPECT_EQ(std::ranges::count_if(plan->wire, &WireRow::used), 3);
  EXPECT_EQ(to_json(*plan)["wire"].size(), 10u);
}

TEST(Wire, RanksThatShareExpertsSumTheirParts) {
  PlanRequest asked = request("gpt-oss-120b", "h100", "2026-08-22");
  asked.ranks = {.tp = 8};
  auto plan = make_plan(asked);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->wire.size(), 1u);
  EXPECT_EQ(plan->wire[0].cost.exchange, "all_reduce");
  EXPECT_EQ(plan->wire[0].cost.sum(), 2 * 2880 * 2 * 7 / 8.0);
  EXPECT_TRUE(plan->wire[0].used);

  asked.ranks = {};
  plan = make_plan(asked);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->wire.empty());
}

}  // namespace plan_test
}  // namespace fp4moe::plan
