#include "fp4moe/runtime/vllm_log.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

namespace fp4moe::runtime {
namespace vllm_log_test {

constexpr std::string_view kLog =
    R"(INFO 11-03 10:00:01 [api_server.py:1839] vLLM API server version 0.29.0
INFO 11-03 10:00:01 [utils.py:253] non-default args: {'model_tag': 'x', 'model': 'openai/gpt-oss-120b', 'tensor_parallel_size': 4, 'enable_expert_parallel': True}
INFO 11-03 10:00:02 [__init__.py:241] Automatically detected platform cuda.
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
VLLM_BATCH_INVARIANT=0
INFO 11-03 10:00:09 [mxfp4.py:101] Using 'TRITON' Mxfp4 MoE backend.
)";

LogReading read(std::string_view text, SelectionOptions asked = {.policy = ""}) {
  Result<LogReading> log = read_log(text, asked);
  EXPECT_TRUE(log) << fp4moe::text(log.why());
  return log ? *std::move(log) : LogReading{};
}

std::string fact(const LogReading& log, std::string_view name) {
  const auto found = std::ranges::find(log.facts, name, &LogFact::name);
  return found == log.facts.end() ? "" : found->value;
}

TEST(VllmLog, ItsFactsBecomeTheQuestion) {
  const LogReading log = read(kLog);

  EXPECT_EQ(log.version, "0.29.0");
  EXPECT_EQ(log.options.model, "openai/gpt-oss-120b");
  EXPECT_EQ(log.options.tp, 4u);
  EXPECT_TRUE(log.options.expert_parallel);
  EXPECT_EQ(log.options.device, "h100");
  EXPECT_EQ(log.options.variables, std::vector<std::string>{"VLLM_BATCH_INVARIANT=0"});
  EXPECT_EQ(log.chosen, "TRITON");
  EXPECT_EQ(fact(log, "device"), "h100");
  Result<SelectionRequest> question = resolve(log.options);
  ASSERT_TRUE(question) << text(question.why());
  const Answer answered = answer(*std::move(question));
  EXPECT_EQ(compare_with_log(log, answered), "The log says TRITON, and so do these rules.");
}

TEST(VllmLog, TheCommandLineCountsMore) {
  SelectionOptions asked{.policy = ""};
  asked.device = "b200";
  asked.model = "gpt-oss-20b";
  asked.tp = 2;

  const LogReading log = read(kLog, asked);

  EXPECT_EQ(log.options.device, "b200");
  EXPECT_EQ(log.options.model, "gpt-oss-20b");
  EXPECT_EQ(log.options.tp, 2u);
}

TEST(VllmLog, ACommandLineOfVllmIsReadToo) {
  const LogReading log = read(
      "$ VLLM_ROCM_USE_AITER=1 vllm serve amd/DeepSeek-R1-MXFP4 --tensor-parallel-size 8 "
      "--enable-lora --moe-backend aiter --data-parallel-size=2 # on AMD Instinct MI355X\n");

  EXPECT_EQ(log.options.model, "amd/DeepSeek-R1-MXFP4");
  EXPECT_EQ(log.options.tp, 8u);
  EXPECT_EQ(log.options.dp, 2u);
  EXPECT_EQ(log.options.device, "mi355x");
  EXPECT_EQ(log.options.fields.at("moe_backend"), "aiter");
  EXPECT_TRUE(log.options.on.at("is_lora_enabled"));
  EXPECT_EQ(log.options.variables, std::vector<std::string>{"VLLM_ROCM_USE_AITER=1"});
}

TEST(VllmLog, OneMessageIsEnoughWithADevice) {
  SelectionOptions asked{.policy = ""};
  asked.device = "v100";
  const LogReading log = read(
      "NotImplementedError: No MXFP4 MoE backend supports the deployment configuration.", asked);

  ASSERT_TRUE(log.message);
  EXPECT_EQ(log.message->row->id, "no-backend");
  Result<SelectionRequest> question = resolve(log.options);
  ASSERT_TRUE(question);
  EXPECT_FALSE(answer(*std::move(question)).is_served());
}

TEST(VllmLog, ARefusalTellsItsReasonItsSplitAndItsDevice) {
  const LogReading log = read(
      "vLLM: GPU 0: NVIDIA B200\nValueError: NvFp4 MoE backend 'FLASHINFER_TRTLLM' does not "
      "support "
      "the deployment configuration since kernel does not support parallel config "
      "FusedMoEParallelConfig(tp_size=1, pcp_size=1, dp_size=2, ep_size=8, tp_rank=0, pcp_rank=0, "
      "dp_rank=0, ep_rank=0, sp_size=1, use_ep=True, all2all_backend='deepep_low_latency', "
      "enable_eplb=False).\n");

  EXPECT_EQ(log.message->row->id, "backend-refused");
  EXPECT_EQ(log.reason->row->id, "reason-parallel");
  EXPECT_EQ(log.options.tp, 4u);
  EXPECT_EQ(log.options.dp, 2u);
  EXPECT_TRUE(log.options.expert_parallel);
  EXPECT_EQ(log.options.all2all, "deepep_low_latency");
  EXPECT_EQ(log.options.assumed_model, "deepseek-v3");
}

TEST(VllmLog, ACapabilityInAMessageIsADevice) {
  const LogReading log = read(
      "ValueError: The quantization method mxfp4 is not supported for the current GPU. Minimum "
      "capability: 80. Current capability: 75.");

  EXPECT_EQ(log.options.platform, "cuda");
  EXPECT_EQ(log.options.capability, "7.5");
}

TEST(VllmLog, WhereTheLogAndTheRulesDifferThatIsSaid) {
  const LogReading log = read("vllm 0: NVIDIA H100\nINFO Using 'MARLIN' Mxfp4 MoE backend.\n");
  Result<SelectionRequest> question = resolve(log.options);
  ASSERT_TRUE(question);
  EXPECT_TRUE(compare_with_log(log, answer(*std::move(question)))
                  .starts_with("The log says MARLIN; these rules say TRITON"));
}

TEST(VllmLog, WhatIsNoLogIsAUsageError) {
  for (const std::string_view text :
       {"", "\n\n\n", "hello world", "model=gpt-oss-20b", "{\"a\": 1}", "\x00\xff\x01"}) {
    const auto log = read_log(text, {});
    ASSERT_FALSE(log) << text;
    EXPECT_EQ(log.why().id, "log.none");
    EXPECT_EQ(log.why().code, ErrorCode::usage);
  }
}

TEST(VllmLog, ABadValueInALogIsNoFact) {
  const LogReading log = read(
      "vLLM API server version 0.29.0\nNVIDIA H100\ntensor_parallel_size=-3, "
      "data_parallel_size=99999999999999999999999, model='', all2all_backend=None\n");

  EXPECT_EQ(log.options.tp, 1u);
  EXPECT_EQ(log.options.dp, 1u);
  EXPECT_TRUE(log.options.model.empty());
  EXPECT_TRUE(log.options.all2all.empty());
}

TEST(VllmLog, AFolderOfAnotherMachineIsFoundByItsName) {
  const LogReading log =
      read("vLLM API server version 0.29.0\nNVIDIA H100\nmodel='/mnt/models/gpt-oss-120b/'\n");

  EXPECT_EQ(log.options.model, "gpt-oss-120b");
}

}  // namespace vllm_log_test
}  // namespace fp4moe::runtime
