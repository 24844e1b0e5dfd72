// explain and matrix, in-process.
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/cli/answer_text.hpp"
#include "fp4moe/platform/device.hpp"
#include "fp4moe/runtime/answer.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"

namespace fp4moe::cli {
namespace {

using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

Json json_of(const std::vector<std::string>& words) {
  std::vector<std::string> with = words;
  with.emplace_back("--json");
  const Result<Json> parsed = parse_json(run(with).out);
  EXPECT_TRUE(parsed);
  return parsed ? *parsed : Json();
}

const std::vector<std::string> kHopper = {"explain",     "--device", "h100",      "--model",
                                          "gpt-oss-20b", "--policy", "2026-04-24"};

std::vector<std::string> with(std::vector<std::string> words, std::vector<std::string> more) {
  words.insert(words.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
  return words;
}

TEST(Explain, AnswersInASentenceThenSaysHowToChangeItAndWhatNearlyRuns) {
  const Outcome said = run(kHopper);

  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_TRUE(
      said.out.starts_with("vLLM of 2026-04-24 runs gpt-oss-20b (mxfp4) on h100 with TRITON.\n"))
      << said.out;
  const std::size_t change = said.out.find("To change that"), near = said.out.find("Near misses"),
                    next = said.out.find("Next: ");
  EXPECT_LT(change, near);
  EXPECT_LT(near, next);
  EXPECT_NE(next, std::string::npos);
  EXPECT_TRUE(has(said.out, "MARLIN                         --moe-backend marlin")) << said.out;
  EXPECT_TRUE(has(said.out, "needs capability 10.x; this device is 9.0"));
  EXPECT_LT(std::count(said.out.begin(), said.out.end(), '\n'), 20);
}

TEST(Explain, ADescribedDeviceIsAnsweredForVllmAndForUs) {
  const Outcome said = run({"explain", "--device", "rtx4090"});

  EXPECT_TRUE(has(said.out,
                  "runs gpt-oss-20b (mxfp4) on rtx4090 with MARLIN.\n"
                  "fp4moe itself: NATIVE_SM80.\n"))
      << said.out;
  EXPECT_TRUE(has(said.out, "Assumed: model gpt-oss-20b (--model)")) << said.out;
}

TEST(Explain, ModelsAreTakenByHubName) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"explain", "openai/gpt-oss-120b"},
        {"explain", "--model", "openai/gpt-oss-120b"}}) {
    const Json record = json_of(with(words, {"--device", "h100"}));
    EXPECT_EQ(record["layer"]["num_experts"], "128");
  }
  EXPECT_EQ(run({"explain", "gpt-oss-20b", "--model", "gpt-oss-20b"}).status, 2);
  EXPECT_EQ(run({"explain", "Qwen/Qwen3-30B-A3B-FP8"}).status, 4);
}

TEST(Explain, ModelsAreTakenFromCheckpointsAndConfigurations) {
  const TemporaryFolder folder;
  const std::string model = folder / "model";
  ASSERT_EQ(run({"synth", "--model", "qwen3-30b-a3b", "--experts", "4", "--layers", "1", "--hidden",
                 "128", "--intermediate", "64", "-o", model})
                .status,
            0);
  for (const std::string& place : {model, model + "/config.json"}) {
    const Json record = json_of({"explain", place, "--device", "h100"});
    EXPECT_EQ(record["format"], "nvfp4") << place;
    EXPECT_EQ(record["layer"]["num_experts"], "4") << place;
    EXPECT_EQ(record["layer"]["activation"], "silu") << place;
  }
  EXPECT_EQ(json_of({"explain", "--config", model + "/config.json"})["layer"]["hidden_dim"], "128");
  std::ofstream(folder / "config.json") << R"({"model_type": "llama", "hidden_size": 4096})";
  const Outcome none = run({"explain", folder / "config.json"});
  EXPECT_EQ(none.status, 4);
  EXPECT_TRUE(has(none.err, "the model has no routed experts")) << none.err;
}

TEST(Explain, ASplitThatCannotBeExitsWithFourAsPlanDoes) {
  const Outcome said =
      run({"explain", "gpt-oss-120b", "--tp", "7", "--device", "h100", "--policy", "2026-08-22"});

  EXPECT_EQ(said.status, 4);
  EXPECT_TRUE(has(said.out, "TRITON  --tensor-parallel-size 4")) << said.out;
  EXPECT_TRUE(has(said.out, "TRITON  --tensor-parallel-size 8")) << said.out;
}

TEST(Explain, ALogIsTheRequest) {
  const TemporaryFolder folder;
  const std::string path = folder / "vllm.log";
  std::ofstream(path) << "vLLM API server version 0.29.0\nGPU 0: NVIDIA H100\n"
                         "args: {'model': 'openai/gpt-oss-120b', 'tensor_parallel_size': 2}\n"
                         "INFO Using 'TRITON' Mxfp4 MoE backend.\n";

  const Outcome said = run({"explain", "--log", path});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_TRUE(has(said.out, "model openai/gpt-oss-120b (line 3)")) << said.out;
  EXPECT_TRUE(has(said.out, "The log says TRITON, and so do these rules.")) << said.out;
  EXPECT_TRUE(has(said.out, "on 2 x h100 (tensor parallel) with TRITON.")) << said.out;
  const Json record = json_of({"explain", "--log", path});
  EXPECT_EQ(record["log_read"]["backend"], "TRITON");
  EXPECT_EQ(record["log_read"]["message"]["id"], "using");

  std::ofstream(path) << "no log at all\n";
  EXPECT_EQ(run({"explain", "--log", path}).status, 2);
  EXPECT_EQ(run({"explain", "--log", folder / "nothing"}).status, 1);
}

TEST(Explain, LinesFitTheTerminalAndColorsAreForTerminalsAlone) {
  runtime::SelectionOptions options;
  options.device = "mi355x";
  options.policy = "2026-08-22";
  Result<runtime::SelectionRequest> request = runtime::resolve(options);
  ASSERT_TRUE(request);
  const runtime::Answer found = runtime::answer(*std::move(request));
  for (const bool color : {false, true}) {
    std::ostringstream out, err;
    Io io{.out = out, .err = err};
    io.columns = 70;
    io.color = color;
    print_answer(io, found, false);
    const std::string text = out.str();
    EXPECT_EQ(has(text, "\x1b["), color) << text;
    if (color) continue;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 70u) << line;
  }
}

TEST(Explain, ThePageOfMessagesIsWhatTheProgramPrints) {
  std::ifstream file(std::string(FP4MOE_TESTDATA) + "/../docs/vllm-messages.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};

  EXPECT_EQ(run({"explain", "--messages"}).out, page)
      << "docs/vllm-messages.md is stale: fp4moe explain --messages > docs/vllm-messages.md";
}

TEST(Explain, VerboseShowsEveryKernelTheReferencesWordsAndWhatFollows) {
  const Outcome said = run(with(kHopper, {"--verbose"}));

  EXPECT_TRUE(has(said.out, "kernel does not support current device cuda")) << said.out;
  EXPECT_TRUE(has(said.out, "w13_weight_scale"));
  EXPECT_TRUE(has(said.out, "mxfp4_w4a16"));
  EXPECT_TRUE(has(said.out, "Using 'TRITON' Mxfp4 MoE backend."));
}

TEST(Explain, JsonHoldsTheWholeRecord) {
  const Json record = json_of(kHopper);

  EXPECT_EQ(record["schema_version"], 1);
  EXPECT_EQ(record["outcome"], "selected");
  EXPECT_EQ(record["backend"], "TRITON");
  EXPECT_EQ(record["experts"], "OAITritonMxfp4ExpertsMonolithic");
  EXPECT_EQ(record["monolithic"], true);
  EXPECT_EQ(record["evaluated"].size(), 4u);
  EXPECT_EQ(record["evaluated"][0]["refusals"][0]["code"], "capability");
  EXPECT_EQ(record["evaluated"][0]["refusals"][0]["requirement"], "needs capability 10.x");
  EXPECT_TRUE(has(record["evaluated"][0]["refusals"][0]["remedy"].string(),
                  "TRITON, FLASHINFER_CUTLASS_MXFP4_BF16"));
  for (const Json& kernel : record["candidates"])
    for (const Json& refusal : kernel["refusals"])
      for (const char* part : {"requirement", "fact", "remedy"})
        EXPECT_FALSE(refusal[part].string().empty()) << kernel["experts"] << part;
  EXPECT_EQ(record["consequences"]["quant_config"]["scheme"], "mxfp4_w4a16");
  EXPECT_EQ(record["consequences"]["kernel"]["prepare_finalize"],
            "MoEPrepareAndFinalizeNoDPEPMonolithic");
  EXPECT_FALSE(record["would_run"].empty());
}

TEST(Explain, EveryWellKnownDeviceGetsAnAnswerUnderEveryPolicy) {
  for (const char* policy : {"native", "2026-08-22", "2026-04-24", "2026-03-27", "2026-03-20"})
    for (const platform::DescribedDevice& part : platform::described_devices()) {
      const int status =
          run({"explain", "--device", std::string(part.name), "--policy", policy}).status;
      EXPECT_TRUE(status == 0 || status == 4) << part.name << " " << policy;
    }
  for (const char* policy : {"native", "2026-08-22", "2026-04-24", "2026-01-27", "2026-01-seed"})
    EXPECT_EQ(
        run({"explain", "--device", "b200", "--model", "deepseek-v3", "--policy", policy}).status,
        0)
        << policy;
}

TEST(Explain, AConfigurationThatNothingSupportsExitsWithFourAndNamesWhatWouldRun) {
  const Outcome said = run(with(kHopper, {"--backend", "flashinfer-trtllm"}));

  EXPECT_EQ(said.status, 4);
  EXPECT_TRUE(said.out.starts_with(
      "vLLM of 2026-04-24 has no backend for gpt-oss-20b (mxfp4) on h100: "
      "FLASHINFER_TRTLLM_MXFP4_BF16: needs capability 10.x; this device is 9.0.\n"))
      << said.out;
  EXPECT_TRUE(has(said.out, "leave --moe-backend out")) << said.out;
  EXPECT_EQ(json_of(with(kHopper, {"--activation", "relu2"}))["error_type"], "NotImplementedError");
}

TEST(Explain, UnknownWordsAreUsageErrorsWithTheNearestSpelling) {
  const struct {
    std::vector<std::string> words;
    std::string_view says;
  } cases[] = {
      {{"--device", "h10O"}, "h100"},
      {{"--policy", "2026-04-23"}, "2026-04-24"},
      {{"--backend", "marlyn"}, "did you mean MARLIN?"},
      {{"--activation", "swigluoi"}, "did you mean swigluoai?"},
      {{"--routing", "Renormalizes"}, "did you mean Renormalize?"},
      {{"--model", "gpt-oss-21b"}, "did you mean gpt-oss-20b?"},
      {{"--mode", "strickt"}, "did you mean strict?"},
      {{"--format", "mxfp5"}, "did you mean mxfp4?"},
      {{"--lib", "flashinfr"}, "did you mean flashinfer?"},
      {{"--platform", "cude"}, "did you mean cuda?"},
      {{"--all2all", "deepep_low_latenzy"}, "deepep_low_latency"},
      {{"--env", "VLLM_MXFP4_USE_MARLYN=1"}, "did you mean VLLM_MXFP4_USE_MARLIN?"},
      {{"--env", "VLLM_MXFP4_USE_MARLIN"}, "NAME=VALUE"},
      {{"--env", "VLLM_MXFP4_USE_MARLIN=yes"}, "a whole number"},
      {{"--gfx", "gfx9"}, "gfx"},
      {{"--capability", "hopper"}, "9.0"},
      {{"--hidden", "0"}, "a whole number"},
      {{"--diff", "2026-04-23"}, "2026-04-24"},
  };
  for (const auto& [words, says] : cases) {
    std::vector<std::string> all =
        with({"explain", "--device", "h100", "--policy", "2026-04-24"}, {});
    if (words[0] == "--device" || words[0] == "--policy") all = {"explain"};
    const Outcome said = run(with(all, words));
    EXPECT_EQ(said.status, 2) << words[0] << " " << words[1] << ": " << said.out;
    EXPECT_TRUE(has(said.err, says)) << words[1] << ": " << said.err;
  }
}

TEST(Explain, ADeviceCanBeDescribedByItsFields) {
  EXPECT_EQ(json_of({"explain", "--platform", "cuda", "--capability", "9.0", "--lib",
                     "flashinfer,triton_kernels", "--policy", "2026-04-24"})["backend"],
            "TRITON");
  EXPECT_EQ(json_of({"explain", "--gfx", "gfx950", "--lib", "aiter,triton_kernels", "--env",
                     "VLLM_ROCM_USE_AITER=1", "--policy", "2026-04-24"})["backend"],
            "AITER");
  EXPECT_EQ(json_of(with(kHopper, {"--lib=-triton_kernels"}))["backend"],
            "FLASHINFER_CUTLASS_MXFP4_BF16");
}

TEST(Explain, LayersComeFromAFileToo) {
  const TemporaryFolder folder;
  const std::string path = folder / "layer.json";
  std::ofstream(path) << R"({"config": {"activation": "silu", "hidden_dim": 4096}})";

  const Json record =
      json_of({"explain", "--device", "h100", "--policy", "2026-04-24", "--config", path});

  EXPECT_EQ(record["backend"], "FLASHINFER_CUTLASS_MXFP4_BF16");
  EXPECT_EQ(record["layer"]["hidden_dim"], "4096");
  std::ofstream(path) << R"({"activation": 3})";
  EXPECT_EQ(run({"explain", "--config", path}).status, 2);
}

TEST(Explain, TakesTheNamesThatItPrints) {
  const auto chosen = [](const std::string& backend, const std::string& policy) {
    return json_of({"explain", "--device", "b200", "--policy", policy, "--backend", backend});
  };
  for (const char* name : {"FLASHINFER_TRTLLM_MXFP4_BF16", "flashinfer-trtllm-mxfp4-bf16",
                           "flashinfer_trtllm", "FlashInfer-TRTLLM"})
    EXPECT_EQ(chosen(name, "2026-08-22")["backend"], "FLASHINFER_TRTLLM_MXFP4_BF16") << name;
  EXPECT_EQ(chosen("FLASHINFER_TRTLLM_MXFP4_MXFP8", "2026-08-22")["backend"],
            "FLASHINFER_TRTLLM_MXFP4_MXFP8");
  const Json batched = chosen("BATCHED_MARLIN", "2026-08-22");
  EXPECT_EQ(batched["backend"], "MARLIN");
  EXPECT_TRUE(has(batched["notes"].dump(), "vLLM's word for BATCHED_MARLIN is marlin"));
  // Nothing that vLLM of that date takes leads there.
  EXPECT_TRUE(has(
      run({"explain", "--device", "b200", "--policy", "2026-04-24", "--backend", "TRITON_UNFUSED"})
          .err,
      "no name of policy 2026-04-24 selects TRITON_UNFUSED"));
  EXPECT_EQ(run({"explain", "--device", "b200", "--format", "nvfp4", "--policy", "2026-01-27",
                 "--backend", "MARLIN"})
                .status,
            2);
}

TEST(Explain, ExpertParallelismIsANumberOfRanks) {
  const auto layer = [](const std::vector<std::string>& words) {
    return json_of(with(kHopper, words))["layer"];
  };
  EXPECT_EQ(layer({"--ep", "4"}), layer({"--tp", "4", "--ep"}));
  EXPECT_EQ(layer({"--ep", "4"}), layer({"--tp", "4", "--ep", "4"}));
  EXPECT_EQ(layer({"--tp", "4", "--ep", "1"}), layer({"--tp", "4"}));
  EXPECT_EQ(run(with(kHopper, {"--tp", "2", "--ep", "8"})).status, 2);
}

TEST(Explain, AParallelLayoutIsDerivedFromTheDeployment) {
  const Json record =
      json_of(with(kHopper, {"--dp", "2", "--ep", "--all2all", "deepep_low_latency"}));

  EXPECT_EQ(record["backend"], "BATCHED_MARLIN");
  EXPECT_EQ(record["layer"]["num_local_experts"], "16");
}

TEST(Explain, ARemovedExchangeIsReplacedWithItsWarning) {
  const Outcome said = run(with(kHopper, {"--dp", "2", "--ep", "--all2all", "pplx"}));

  EXPECT_EQ(said.status, 0);
  EXPECT_TRUE(has(said.out, "The 'pplx' all2all backend has been removed.")) << said.out;
}

TEST(Explain, DiffShowsWhatAnotherPolicyDecides) {
  const Outcome said = run({"explain", "--device", "mi300x", "--policy", "2026-03-20", "--env",
                            "VLLM_ROCM_USE_AITER=1", "--diff", "2026-03-27"});

  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_TRUE(has(said.out, "2026-03-20  CK / AiterExperts")) << said.out;
  EXPECT_TRUE(has(said.out, "2026-03-27  TRITON / OAITritonMxfp4ExpertsMonolithic")) << said.out;
  EXPECT_TRUE(has(said.out, "gfx950")) << said.out;
}

TEST(Explain, AllDevicesIsOneLineForEach) {
  const Outcome said = run({"explain", "--all-devices", "--policy", "2026-04-24"});

  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(static_cast<std::size_t>(std::count(said.out.begin(), said.out.end(), '\n')),
            platform::described_devices().size());
  for (std::size_t at = 0; at < said.out.size();) {
    const std::size_t end = said.out.find('\n', at);
    EXPECT_LT(end - at, 250u) << said.out.substr(at, end - at);
    at = end + 1;
  }
  EXPECT_EQ(json_of({"explain", "--all-devices"})["devices"].size(),
            platform::described_devices().size());
}

TEST(Explain, TheReferencesOwnEarlierChecksAreRefusals) {
  const Outcome said = run({"explain", "--device", "t4", "--policy", "2026-04-24"});

  EXPECT_EQ(said.status, 4);
  EXPECT_TRUE(has(said.out, "on t4 with MARLIN, but refuses it before: ")) << said.out;
  EXPECT_TRUE(has(said.out, "Minimum capability: 80. Current capability: 75.")) << said.out;
  EXPECT_TRUE(has(said.out, "Next: fp4moe itself runs it with CPU")) << said.out;
  EXPECT_FALSE(json_of({"explain", "--device", "t4"})["served"].get<bool>());
  EXPECT_TRUE(has(run({"explain", "--all-devices"}).out, "t4          none  ")) << "t4";
  const Outcome planned =
      run({"plan", "--model", "gpt-oss-20b", "--device", "t4", "--policy", "2026-04-24"});
  EXPECT_EQ(planned.status, 4);
  EXPECT_TRUE(has(planned.out, "The quantization method")) << planned.out;
  EXPECT_TRUE(has(planned.out, "[plan.refused]")) << planned.out;
}

TEST(Explain, ADeviceInTheModelsPlaceIsRecognized) {
  const Outcome said = run({"explain", "rtx4090"});

  EXPECT_EQ(said.status, 2);
  EXPECT_TRUE(has(said.err, "rtx4090 is a device: fp4moe explain MODEL --device rtx4090"))
      << said.err;
}

TEST(Explain, ATypeThatIsRefusedBeforeHasItsRemedy) {
  const Outcome said = run({"explain", "--device", "h100", "--in-dtype", "float16"});

  EXPECT_EQ(said.status, 4);
  EXPECT_TRUE(has(said.out, "To make it run\n  TRITON  --dtype bfloat16\n")) << said.out;
  EXPECT_EQ(run({"explain", "--device", "h100", "--in-dtype", "bfloat16"}).status, 0);
}

TEST(Matrix, TheDocumentationsPageIsWhatTheProgramPrints) {
  std::ifstream file(std::string(FP4MOE_TESTDATA) + "/../docs/matrix.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};

  EXPECT_EQ(run({"matrix", "--markdown"}).out, page)
      << "docs/matrix.md is stale: fp4moe matrix --markdown > docs/matrix.md";
}

TEST(Matrix, TextHasOneLineForEachDeviceOfOnePolicy) {
  const Outcome said = run({"matrix", "--policy", "2026-04-24", "--format", "mxfp4"});

  EXPECT_EQ(said.status, 0);
  EXPECT_TRUE(has(said.out, "h100")) << said.out;
  EXPECT_TRUE(has(said.out, "BATCHED_MARLIN")) << said.out;
}

TEST(Matrix, JsonHoldsKernelsAndChoices) {
  const Json result = json_of({"matrix", "--policy", "2026-08-22"});

  ASSERT_EQ(result["policies"].size(), 2u);
  EXPECT_EQ(result["policies"][0]["format"], "mxfp4");
  bool found = false;
  for (const Json& kernel : result["policies"][0]["kernels"])
    if (kernel["kernel"] == "MarlinExperts") {
      found = true;
      EXPECT_EQ(kernel["lora"], true);
      EXPECT_EQ(kernel["refused_devices"]["v100"], "capability");
      EXPECT_FALSE(kernel["refused_devices"].contains("h100"));
    }
  EXPECT_TRUE(found);
}

TEST(Matrix, AnUnknownPolicyIsAUsageError) {
  EXPECT_EQ(run({"matrix", "--policy", "yesterday"}).status, 2);
  EXPECT_EQ(run({"matrix", "--policy", "2026-01-27", "--format", "mxfp4"}).status, 2);
}

}  // namespace
}  // namespace fp4moe::cli
