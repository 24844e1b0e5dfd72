#include "fp4moe/runtime/answer.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"

namespace fp4moe::runtime {
namespace answer_test {

struct Words {
  std::string model{}, device{}, policy{};
  std::vector<std::string> variables{}, libraries{};
  std::uint64_t tp = 1;
  std::string format{};
};

Answer ask(const Words& words) {
  SelectionOptions options;
  options.policy = words.policy;
  options.model = words.model;
  options.device = words.device;
  options.variables = words.variables;
  options.libraries = words.libraries;
  options.tp = words.tp;
  options.format = words.format;
  Result<SelectionRequest> request = resolve(options);
  EXPECT_TRUE(request) << text(request.why());
  return answer(request ? *std::move(request) : SelectionRequest{});
}

const ToChange* change_to(const Answer& answer, std::string_view backend) {
  const auto found = std::ranges::find_if(
      answer.to_change, [&](const ToChange& to) { return to.backend->name == backend; });
  return found == answer.to_change.end() ? nullptr : &*found;
}

TEST(Answer, ADescribedDeviceIsAnsweredForVllmAndForUs) {
  const Answer answer = ask({.device = "rtx4090"});

  EXPECT_NE(answer.request.policy->policy_date, oracle::PolicyDate::native);
  EXPECT_TRUE(answer.request.policy_assumed);
  EXPECT_EQ(answer.record.selection.backend->name, "MARLIN");
  ASSERT_EQ(answer.alternatives.size(), 1u);
  EXPECT_EQ(answer.alternatives[0].policy->name, backends::kNative);
  EXPECT_EQ(answer.alternatives[0].selection.backend->name, "NATIVE_SM80");
  EXPECT_NE(summary(answer).find("runs gpt-oss-20b (mxfp4) on rtx4090 with MARLIN."),
            std::string::npos)
      << summary(answer);
  EXPECT_EQ(assumed(answer.request).front(), "model gpt-oss-20b (--model)");
}

TEST(Answer, ThisMachineIsAnsweredForUsAndForVllm) {
  const Answer answer = ask({.device = "auto"});

  EXPECT_EQ(answer.request.policy->name, backends::kNative);
  ASSERT_EQ(answer.alternatives.size(), 1u);
  EXPECT_NE(answer.alternatives[0].policy->policy_date, oracle::PolicyDate::native);
}

TEST(Answer, AFormatThatTheNameDoesNotTellIsAssumed) {
  const auto open = [](std::string model, std::string format) {
    return assumed(ask({.model = std::move(model), .device = "h100", .format = std::move(format)})
                       .request)
        .front();
  };
  EXPECT_EQ(open("deepseek-ai/DeepSeek-R1", ""), "quantized to nvfp4 (--format)");
  EXPECT_NE(open("nvidia/DeepSeek-R1-FP4", ""), "quantized to nvfp4 (--format)");
  EXPECT_NE(open("deepseek-ai/DeepSeek-R1", "nvfp4"), "quantized to nvfp4 (--format)");
  EXPECT_NE(open("openai/gpt-oss-20b", ""), "quantized to mxfp4 (--format)");
}

TEST(Answer, ASplitThatCannotBeIsNotServedAndTheNearestOnesAreTried) {
  const Answer answer =
      ask({.model = "gpt-oss-120b", .device = "h100", .policy = "2026-08-22", .tp = 7});

  EXPECT_FALSE(answer.is_served());
  ASSERT_TRUE(answer.impossible);
  EXPECT_EQ(answer.impossible->id, "plan.divide");
  ASSERT_GE(answer.to_change.size(), 2u);
  EXPECT_EQ(answer.to_change[0].remedy.steps[0], "--tensor-parallel-size 4");
  EXPECT_EQ(answer.to_change[1].remedy.steps[0], "--tensor-parallel-size 8");
  EXPECT_NE(summary(answer).find("cannot serve gpt-oss-120b (mxfp4) on 7 x h100"),
            std::string::npos)
      << summary(answer);
}

TEST(Answer, AConversionThatRefusesTheSplitIsNotServed) {
  const Answer answer =
      ask({.model = "qwen3-30b-a3b", .device = "b200", .policy = "2026-04-24", .tp = 8});

  EXPECT_EQ(answer.record.selection.backend->name, "FLASHINFER_TRTLLM");
  ASSERT_TRUE(answer.impossible);
  EXPECT_EQ(answer.impossible->id, "sizes.conversion");
  EXPECT_FALSE(answer.to_change.empty());
}

TEST(Answer, ARemedyIsOnlyWhatHelps) {
  const Answer here = ask({.model = "gpt-oss-120b", .device = "mi300x", .policy = "2026-08-22"});
  EXPECT_EQ(change_to(here, "AITER_MXFP4_BF16"), nullptr);

  const Answer there = ask({.model = "gpt-oss-120b", .device = "mi355x", .policy = "2026-08-22"});
  const ToChange* aiter = change_to(there, "AITER_MXFP4_BF16");
  ASSERT_NE(aiter, nullptr);
  EXPECT_EQ(aiter->remedy.steps, std::vector<std::string>{"set VLLM_ROCM_USE_AITER=1"});
}

TEST(Answer, WhatVllmDoesAsReleasedIsSaidWhereItDiffers) {
  const Words words{.device = "h100", .policy = "2026-03-27", .libraries = {"flashinfer"}};
  const Answer answer = ask(words);

  EXPECT_EQ(answer.record.selection.backend->name, "FLASHINFER_CUTLASS_MXFP4_BF16");
  ASSERT_TRUE(answer.as_released);
  EXPECT_EQ(answer.as_released->selection.backend->name, "TRITON");
  EXPECT_NE(summary(answer).find("As released it takes TRITON (--mode compat)."),
            std::string::npos);
  EXPECT_FALSE(ask({.device = "h100", .policy = "2026-03-27"}).as_released);
}

TEST(Answer, WhereNothingRunsTheReasonIsTheOneToDoSomethingAbout) {
  const Answer answer = ask({.model = "gpt-oss-20b",
                             .device = "rtx4090",
                             .policy = "2026-08-22",
                             .variables = {"VLLM_BATCH_INVARIANT=1"}});

  EXPECT_FALSE(answer.is_served());
  EXPECT_NE(summary(answer).find("VLLM_BATCH_INVARIANT is on"), std::string::npos)
      << summary(answer);
  const ToChange* marlin = change_to(answer, "MARLIN");
  ASSERT_NE(marlin, nullptr);
  EXPECT_EQ(marlin->remedy.steps, std::vector<std::string>{"set VLLM_BATCH_INVARIANT=0"});
}

TEST(Answer, OtherModelsOfMxfp4HaveAnEntryOfTheirOwn) {
  const Answer answer = ask({.model = "deepseek-v4-flash", .device = "h100"});

  EXPECT_TRUE(answer.request.policy->is_generic);
  const Answer other =
      ask({.model = "deepseek-v4-flash", .device = "h100", .policy = "2026-08-22"});
  ASSERT_EQ(other.request.notes.size(), 1u);
  EXPECT_NE(other.request.notes[0].find("2026-08-22-deepseek-v4"), std::string::npos);
  EXPECT_TRUE(ask({.device = "h100", .policy = "2026-08-22"}).request.notes.empty());
}

TEST(Answer, JsonKeepsTheRecordAndAddsTheAnswer) {
  const Json result = to_json(ask({.model = "gpt-oss-20b", .device = "h100"}));

  for (const char* key : {"backend", "candidates", "would_run", "warnings", "notes", "summary",
                          "to_change", "near_misses", "alternatives", "as_released", "split",
                          "assumed", "served", "title", "model"})
    EXPECT_TRUE(result.contains(key)) << key;
  EXPECT_EQ(result["model"]["name"], "gpt-oss-20b");
  EXPECT_EQ(result["model"]["assumed"], false);
  EXPECT_EQ(result["split"]["possible"], true);
}

}  // namespace answer_test
}  // namespace fp4moe::runtime
