#include "fp4moe/runtime/vllm_messages.hpp"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/oracle/explain/record.hpp"

namespace fp4moe::runtime {
namespace vllm_messages_test {

void expect_message(const std::string& text) {
  EXPECT_TRUE(find_message(text)) << "docs/vllm-messages.md lacks: " << text;
}
void expect_reason(const std::string& text) {
  EXPECT_TRUE(find_reason(text)) << "docs/vllm-messages.md lacks the reason: " << text;
}

TEST(VllmMessages, EverySentenceOfThePoliciesHasItsEntry) {
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.policy_date == oracle::PolicyDate::native) continue;
    const oracle::Wording& wording = policy.wording;
    for (const std::string_view form :
         {wording.using_backend, wording.unsupported, wording.since, wording.unknown_name,
          wording.nothing_supports, wording.no_clamp, wording.no_flashinfer, wording.falls_back,
          wording.not_valid}) {
      std::string filled(form);
      for (const std::string_view place : {"{0}", "{1}", "{2}"})
        if (const std::size_t at = filled.find(place); at != filled.npos)
          filled.replace(at, place.size(), "X");
      if (!filled.empty()) expect_message(filled);
    }
    for (const oracle::EnvironmentStep& step : policy.steps)
      if (!step.otherwise.empty()) expect_message(std::string(step.otherwise));
    if (policy.lora) expect_message(std::string(policy.lora->only_cuda));
  }
}

// Every described device with every policy, and deployments that bring out the other reasons.
TEST(VllmMessages, EveryReasonOfEveryKernelHasItsEntry) {
  std::vector<oracle::Request> requests(6);
  requests[1].layer.lora = true;
  requests[1].environment.set(platform::Variable::batch_invariant, "1");
  requests[1].layer.activation = oracle::Activation::silu;
  requests[2].layer.parallel = oracle::derive(
      {.dp_size = 2, .enable_expert_parallel = true, .all2all_backend = "deepep_low_latency"});
  requests[2].layer.router_logits_dtype = oracle::ScalarType::float32;
  requests[3].layer.activation = oracle::Activation::relu2_no_mul;
  requests[3].layer.gated = false;
  requests[3].layer.intermediate = 40;
  requests[3].layer.in_dtype = oracle::ScalarType::float32;
  requests[4].layer.routing = oracle::Routing::llama4;
  requests[4].layer.has_bias = true;
  requests[4].layer.num_experts = 2000;
  requests[5].layer.activation_key = oracle::ActivationKey::mxfp8;
  requests[5].layer.activation = oracle::Activation::situ;
  std::set<std::string> reasons;
  for (const platform::DescribedDevice& part : platform::described_devices())
    for (const oracle::Policy& policy : backends::policies()) {
      if (policy.policy_date == oracle::PolicyDate::native) continue;
      for (oracle::Request& request : requests) {
        request.device = *platform::describe_device(part.name);
        request.device.libraries = {platform::Library::flashinfer, platform::Library::aiter,
                                    platform::Library::b12x, platform::Library::humming};
        for (const oracle::Verdict& verdict : oracle::survey(policy, oracle::Mode::compat, request))
          if (!verdict.accepted())
            reasons.insert(oracle::reference_reason(policy, request, verdict));
        for (const std::string& check : oracle::checks_before(policy, request))
          expect_message(check);
        const oracle::Selection result = select(policy, oracle::Mode::compat, request);
        if (!result.message.empty()) expect_message(result.message);
        for (const std::string& line : result.log) expect_message(line);
        for (const std::string& line : result.warned) expect_message(line);
      }
    }
  EXPECT_GT(reasons.size(), 20u);
  for (const std::string& reason : reasons) expect_reason(reason);
}

TEST(VllmMessages, EverySentenceOfTheGoldenCasesHasItsEntry) {
  std::vector<Json> cases;
  for (const char* name : {"/oracle_cases.json", "/oracle_cases-0.33.json"}) {
    const auto file = read_json_file(std::string(FP4MOE_TESTDATA) + name);
    ASSERT_TRUE(file) << text(file.why());
    for (const Json& one : (*file)["cases"]) cases.push_back(one);
  }
  std::size_t seen = 0;
  for (const Json& one : cases) {
    if (!one.contains("expect") || !one["expect"].is_object()) continue;
    const Json& expected = one["expect"];
    for (const char* key : {"log_info", "log_warning"})
      if (expected.contains(key))
        for (const Json& line : expected[key]) expect_message(line.string()), ++seen;
    if (expected.contains("message") && expected["message"].is_string())
      expect_message(expected["message"].string()), ++seen;
    if (!expected.contains("evaluated")) continue;
    for (const Json& kernel : expected["evaluated"])
      if (kernel["reason"].is_string()) expect_reason(kernel["reason"].string()), ++seen;
  }
  EXPECT_GT(seen, 500u);
}

TEST(VllmMessages, WhatDiffersIsReadOutOfALine) {
  const auto found = find_message(
      "(EngineCore_DP0 pid=7) ERROR ValueError: Mxfp4 MoE backend 'MARLIN' does not support the "
      "deployment configuration since kernel does not support MoEActivation.SILU activation.");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row->id, "backend-refused");
  EXPECT_EQ(found->value("backend"), "MARLIN");
  EXPECT_EQ(found->value("reason"), "kernel does not support MoEActivation.SILU activation");
  EXPECT_EQ(find_reason(found->value("reason"))->row->id, "reason-activation");
  EXPECT_FALSE(find_message("nothing of the kind"));
  EXPECT_FALSE(find_message(""));
  const auto kernel =
      find_message("ValueError: B12xExperts does not support this MoE deployment since it is so.");
  ASSERT_TRUE(kernel);
  EXPECT_EQ(kernel->value("class"), "B12xExperts");
}

TEST(VllmMessages, AreFoundWithoutTheirFullStop) {
  const auto found = find_message(
      "NotImplementedError: No MXFP4 MoE backend supports the deployment configuration");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row->id, "no-backend");
  EXPECT_FALSE(find_message("No MXFP4 MoE backend"));
}

TEST(VllmMessages, EveryEntrySaysWhatItMeansAndWhatToDo) {
  std::set<std::string_view> seen;
  std::string_view last;
  for (const MessageRow& row : messages()) {
    if (row.id == last) continue;
    EXPECT_TRUE(seen.insert(row.id).second) << row.id << " stands in two places";
    EXPECT_FALSE(row.means.empty()) << row.id;
    EXPECT_FALSE(row.todo.empty()) << row.id;
    last = row.id;
  }
}

}  // namespace vllm_messages_test
}  // namespace fp4moe::runtime
