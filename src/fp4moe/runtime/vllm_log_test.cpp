#include "fp4moe/runtime/vllm_log.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/base/text.hpp"

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

TEST(VllmLog, ItsFactsBecomeTheRequest) {
  const LogReading log = read(kLog);

  EXPECT_EQ(log.version, "0.29.0");
  EXPECT_EQ(log.options.model, "openai/gpt-oss-120b");
  EXPECT_EQ(log.options.tp, 4u);
  EXPECT_TRUE(log.options.expert_parallel);
  EXPECT_EQ(log.options.device, "h100");
  EXPECT_EQ(log.options.variables, std::vector<std::string>{"VLLM_BATCH_INVARIANT=0"});
  EXPECT_EQ(log.chosen, "TRITON");
  EXPECT_EQ(fact(log, "device"), "h100");
  Result<SelectionRequest> request = resolve(log.options);
  ASSERT_TRUE(request) << text(request.why());
  const Answer answered = answer(*std::move(request));
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
  Result<SelectionRequest> request = resolve(log.options);
  ASSERT_TRUE(request);
  EXPECT_FALSE(answer(*std::move(request)).is_served());
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
  Result<SelectionRequest> request = resolve(log.options);
  ASSERT_TRUE(request);
  EXPECT_TRUE(compare_with_log(log, answer(*std::move(request)))
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

TEST(VllmLog, TheHubsCacheIsAPathWithTheModelsName) {
  const LogReading log = read(
      "vLLM API server version 0.33.0\nNVIDIA H100\nmodel='/root/.cache/huggingface/hub/"
      "models--openai--gpt-oss-20b/snapshots/6cee5e81ee83917806bbde320786a8fb61efebee'\n");

  EXPECT_EQ(log.options.model, "openai/gpt-oss-20b");
}

// The same log as terminals, Windows, PowerShell and collectors of logs write it.
TEST(VllmLog, ColorsLineEndsEncodingsAndJsonDoNotCount) {
  std::string windows, colored, json, wide = "\xff\xfe";
  for (const std::string_view line : split(kLog, '\n')) {
    windows += std::string(line) + "\r\n";
    colored += "\x1b[1;36m(EngineCore_DP0 pid=71)\x1b[0;0m " + std::string(line) + "\x1b[0m\n";
    json += Json({{"log", std::string(line) + "\n"}, {"stream", "stderr"}}).dump() + "\n";
  }
  for (const char letter : kLog) (wide += letter) += '\0';
  const std::string truncated = std::string(kLog) + "\xe2\x96 Loading safetensors: 1\xff";
  for (const std::string& text : {windows, colored, json, wide, truncated}) {
    const LogReading log = read(text);
    EXPECT_EQ(log.version, "0.29.0") << text;
    EXPECT_EQ(log.options.model, "openai/gpt-oss-120b") << text;
    EXPECT_EQ(log.options.tp, 4u) << text;
    EXPECT_EQ(log.options.device, "h100") << text;
    EXPECT_EQ(log.chosen, "TRITON") << text;
    EXPECT_EQ(log.options.variables, std::vector<std::string>{"VLLM_BATCH_INVARIANT=0"}) << text;
  }
}

TEST(VllmLog, QuotesEscapedInJsonAreQuotes) {
  const LogReading log = read(
      R"({"message": "vLLM: \"model\": \"openai/gpt-oss-20b\", \"tensor_parallel_size\": 2 on NVIDIA H100\nUsing 'MARLIN' Mxfp4 MoE backend."})");

  EXPECT_EQ(log.options.model, "openai/gpt-oss-20b");
  EXPECT_EQ(log.options.tp, 2u);
  EXPECT_EQ(log.chosen, "MARLIN");
}

TEST(VllmLog, AReasonTellsWhatTheDeploymentHas) {
  SelectionOptions asked{.policy = ""};
  asked.device = "b200";
  const LogReading lora = read(
      "ValueError: Mxfp4 MoE backend 'FLASHINFER_TRTLLM_MXFP4_MXFP8' does not support the "
      "deployment configuration since expert LoRA is not supported with MXFP8 activations; use "
      "moe_backend='flashinfer_trtllm'.",
      asked);
  EXPECT_TRUE(lora.options.on.at("is_lora_enabled"));
  // The advice is not what was asked for; the backend that refused is.
  EXPECT_EQ(lora.options.fields.at("moe_backend"), "flashinfer_trtllm_afp8");

  const LogReading invariant = read(
      "No MXFP4 MoE backend supports the deployment configuration. Unsupported reasons: backend: "
      "TRITON, reason: kernel does not support batch invariance",
      asked);
  EXPECT_EQ(invariant.options.variables, std::vector<std::string>{"VLLM_BATCH_INVARIANT=1"});
  asked.variables = {"VLLM_BATCH_INVARIANT=0"};
  EXPECT_EQ(read("Mxfp4 MoE backend 'TRITON' does not support the deployment configuration since "
                 "kernel does not support batch invariance.",
                 asked)
                .options.variables,
            asked.variables);
}

TEST(VllmLog, ABackendThatWasInsistedOnIsAskedFor) {
  SelectionOptions asked{.policy = ""};
  asked.device = "a100";
  constexpr std::string_view kRefused =
      "Mxfp4 MoE backend 'TRITON' does not support the deployment configuration since kernel does "
      "not support current device cuda.";
  const LogReading log = read("ValueError: " + std::string(kRefused), asked);
  EXPECT_EQ(log.options.fields.at("moe_backend"), "triton");
  Result<SelectionRequest> request = resolve(log.options);
  ASSERT_TRUE(request);
  const Answer found = answer(*std::move(request));
  EXPECT_FALSE(found.is_served());
  EXPECT_EQ(compare_with_log(log, found), "");
  ASSERT_FALSE(found.to_change.empty());
  EXPECT_EQ(found.to_change[0].remedy.steps[0], "leave --moe-backend out");
  // Automatic selection writes the same line of every backend it passes by.
  const LogReading passing = read("DEBUG 11-03 [mxfp4.py:1] " + std::string(kRefused), asked);
  EXPECT_TRUE(passing.options.fields.at("moe_backend").empty());
}

TEST(VllmLog, WhatSeveralEnginesSayStandsBesideIt) {
  const LogReading log = read(
      "(APIServer pid=1) vLLM API server version 0.33.0\nNVIDIA H100\nNVIDIA A100\n"
      "model='openai/gpt-oss-20b'\nmodel='openai/gpt-oss-120b'\nmodel='openai/gpt-oss-120b'\n"
      "Using 'TRITON' Mxfp4 MoE backend.\nUsing 'MARLIN' Mxfp4 MoE backend.\n");
  const auto also = [&](std::string_view name) {
    const auto found = std::ranges::find(log.facts, name, &LogFact::name);
    return found == log.facts.end() ? std::vector<std::string>{} : found->also;
  };
  EXPECT_EQ(log.options.model, "openai/gpt-oss-120b");
  EXPECT_EQ(also("model"), std::vector<std::string>{"openai/gpt-oss-20b"});
  EXPECT_EQ(log.options.device, "h100");
  EXPECT_EQ(also("device"), std::vector<std::string>{"a100"});
  EXPECT_EQ(also("backend in use"), std::vector<std::string>{"TRITON"});
  EXPECT_TRUE(also("vLLM").empty());
}

}  // namespace vllm_log_test
}  // namespace fp4moe::runtime
