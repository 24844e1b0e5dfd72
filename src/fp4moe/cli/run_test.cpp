#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/numerics.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/runtime/facts.hpp"
#include "fp4moe/runtime/layer_options.hpp"
#include "fp4moe/runtime/run_input.hpp"
#include "fp4moe/tensor/files/safetensors.hpp"
#include "fp4moe/tensor/files/store.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"
#include "support/page.hpp"
#include "support/run_fixture.hpp"

namespace fp4moe::cli {
namespace {

namespace fs = std::filesystem;
using tensor::DType;
using tensor::Shape;
using tensor::testing::read_text;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;
using testing::has;
using testing::Outcome;
using testing::run;

constexpr std::uint64_t kTokens = 5, kHidden = testing::RunFixture::kHidden, kExperts = 4,
                        kTopK = 4;

TEST(RunPage, IsShownByThePageAsItIs) { testing::expect_page_shows("run.md", 6); }

TEST(RunPage, ShowsTheTableOfNumerics) {
  const std::string page = read_text(std::string(FP4MOE_TESTDATA) + "/../docs/run.md");
  EXPECT_TRUE(
      has(page, fmt::format("<!-- numerics -->\n{}<!-- numerics -->", moe::numerics_markdown())))
      << "docs/run.md is stale; between its markers belongs\n"
      << moe::numerics_markdown();
}

TEST(RunPage, ShowsWhatIsAllowed) {
  using oracle::ActivationKey;
  const std::string page = read_text(std::string(FP4MOE_TESTDATA) + "/../docs/run.md");
  const moe::Numerics& row = **moe::require_numerics("unfused");
  for (const auto& [words, key] :
       {std::pair{"bf16", ActivationKey::none}, std::pair{"MXFP8, FP8", ActivationKey::fp8_token},
        std::pair{"MXFP4, NVFP4", ActivationKey::nvfp4}}) {
    const moe::Tolerance allowed = moe::tolerance(row, key);
    EXPECT_TRUE(
        has(page, fmt::format("| {} | {} | {} |", words, allowed.of_largest, allowed.cosine)))
        << words;
  }
}

// A tensor of small numbers as a file holds it.
struct Part {
  std::string name{};
  DType dtype = DType::bf16;
  Shape shape{};
  int offset = 0;  // added to every whole number
};

std::vector<std::byte> values_of(const Part& part) {
  SplitMix64 random(part.name.size());
  std::vector<std::byte> bytes;
  const auto append = [&](const auto& value) {
    const auto* data = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), data, data + sizeof(value));
  };
  std::uint64_t count = 1;
  for (const std::uint64_t size : part.shape) count *= size;
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = 2.0f * random.unit() - 1.0f;
    const std::int32_t whole = static_cast<std::int32_t>(i % kExperts) + part.offset;
    switch (part.dtype) {
      case DType::bf16:
        append(formats::Bf16::encode(value));
        break;
      case DType::f32:
        append(formats::Bf16::decode(formats::Bf16::encode(value)));
        break;
      case DType::i64:
        append(std::int64_t{whole});
        break;
      default:
        append(whole);
    }
  }
  return bytes;
}

void write_file(const std::string& path, const std::vector<Part>& parts) {
  std::vector<tensor::TensorSpec> specs;
  for (const Part& part : parts)
    specs.push_back({.name = part.name, .dtype = part.dtype, .shape = part.shape});
  auto writer = tensor::SafetensorsWriter::create(path, specs);
  ASSERT_TRUE(writer);
  for (std::size_t i = 0; i < parts.size(); ++i)
    ASSERT_TRUE(writer->write(i, 0, values_of(parts[i])));
  ASSERT_TRUE(writer->finish());
}

const Part kStates{.name = "hidden_states", .shape = {kTokens, kHidden}};
const Part kLogits{.name = "router_logits", .dtype = DType::f32, .shape = {kTokens, kExperts}};
const Part kIds{.name = "topk_ids", .dtype = DType::i32, .shape = {kTokens, kTopK}};
const Part kWeights{.name = "topk_weights", .dtype = DType::f32, .shape = {kTokens, kTopK}};

class RunCommand : public testing::RunFixture {
 protected:
  static Outcome run_on(const std::vector<Part>& parts, std::vector<std::string> words = {}) {
    write_file(file("given.safetensors"), parts);
    words.insert(words.end(), {"--input", file("given.safetensors")});
    return run_with(words);
  }
};

TEST_F(RunCommand, GivesTheSameBitsFromAConvertedFolder) {
  const std::string direct = output_of({"run", source(), "--numerics", "exact", "--layer", "1"});
  EXPECT_EQ(direct.size(), 16 * kHidden * 4);
  for (const char* backend : {"MARLIN", "TRITON", "EMULATION"}) {
    const std::string converted = file(backend);
    const Outcome result = run({"convert", source(), "--backend", backend, "--policy", "2026-08-22",
                                "--device", "h100", "-o", converted});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(output_of({"run", converted, "--numerics", "exact", "--layer", "1"}) == direct)
        << backend;
  }
  EXPECT_TRUE(output_of({"run", file("MARLIN")}) ==
              output_of({"run", source(), "--backend", "MARLIN"}));
  refused(run({"run", file("MARLIN"), "--ep", "2"}), 2, "run.converted");
}

// A folder that names no backend: AITER_MXFP4_FP8 reads Triton's layout, too, and EMULATION rows of
// NVFP4, but both by input scales that the checkpoint may lack.
TEST_F(RunCommand, ABackendWith16BitActivationsReadsAFolderWithoutInputScales) {
  const std::string triton = file("triton"), plain = file("weight-only"), rows = file("rows");
  const Outcome converted =
      run({"convert", source(), "--layout", "triton.mxfp4", "--device", "h100", "-o", triton});
  ASSERT_EQ(converted.status, 0) << converted.err;
  const Json layer = layer_of(run({"run", triton, "--json"}));
  EXPECT_EQ(layer["backend"], "TRITON");
  EXPECT_EQ(layer["activations"], "bf16");
  ASSERT_EQ(run({"synth", "--model", "qwen3-30b-a3b", "--weight-only", "--experts", "4", "--hidden",
                 "64", "--intermediate", "64", "-o", plain})
                .status,
            0);
  ASSERT_EQ(run({"convert", plain, "--layout", "as_loaded.nvfp4", "-o", rows}).status, 0);
  EXPECT_EQ(layer_of(run({"run", rows, "--json"}))["activations"], "bf16");
  const Json scaled = layer_of(run({"run", rows, "--input-scale", "0.02,0.05", "--json"}));
  EXPECT_EQ(scaled["backend"], "EMULATION");
  EXPECT_EQ(scaled["activations"], "nvfp4");
}

TEST_F(RunCommand, ComputesWithTheCpuEngineUnlessToldOtherwise) {
  const Json layer = layer_of(run_with({"--backend", "MARLIN", "--check", "--json"}));
  EXPECT_EQ(layer["engine"], "cpu");
  EXPECT_TRUE(layer["kernel"].string().ends_with("/match:marlin")) << layer["kernel"];
  const Json exact =
      layer_of(run_with({"--backend", "CPU", "--numerics", "exact", "--check", "--json"}));
  EXPECT_EQ(exact["within_numerics"], true);
  EXPECT_LT(exact["rel_error"].get<double>(), 5e-4);
  EXPECT_GT(exact["rel_error"].get<double>(), 0);
  const Json fast = layer_of(run_with({"--numerics", "fast", "--check", "--json"}));
  EXPECT_TRUE(fast["kernel"].string().ends_with("/fast")) << fast["kernel"];
  EXPECT_EQ(fast["within_numerics"], true);
  EXPECT_GT(fast["rel_error"].get<double>(), exact["rel_error"].get<double>());
  const Json mapped =
      layer_of(run_with({"--numerics", "exact", "--weights", "mapped", "--check", "--json"}));
  EXPECT_EQ(mapped["rel_error"], exact["rel_error"]);
  EXPECT_TRUE(mapped["kernel"].string().ends_with("mapped")) << mapped["kernel"];
}

TEST_F(RunCommand, QuantizesActivationsAsAsked) {
  const Json plain = layer_of(run_with({"--check", "--json"}));
  EXPECT_EQ(plain["activations"], "bf16");
  for (const runtime::ActivationsWord& row : runtime::kActivationsWords)
    for (const char* engine : {"cpu", "reference"}) {
      const Json layer = layer_of(run_with({"--activations", std::string(row.word), "--input-scale",
                                            "0.02,0.5", "--engine", engine, "--check", "--json"}));
      const bool is_quantized = row.key != oracle::ActivationKey::none;
      EXPECT_EQ(layer["activations"], is_quantized ? oracle::name(row.key) : "bf16");
      EXPECT_EQ(layer["within_numerics"], true) << row.word << " " << engine;
      // Unquantized activations differ by more than an engine's own roundings.
      EXPECT_EQ(layer["rel_error"].get<double>() > 4 * plain["rel_error"].get<double>(),
                is_quantized)
          << row.word << " " << engine << ": " << layer["rel_error"];
    }
}

TEST_F(RunCommand, ReportsWhatItDid) {
  const Outcome outcome = run_with(
      {"--backend", "MARLIN", "--engine", "reference", "--tokens", "3", "--check", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = *parse_json(outcome.out);
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["command"], "run");
  EXPECT_EQ(json["path"], source());
  EXPECT_EQ(json["input"], "seed 1");
  EXPECT_EQ(json["ranks"], 1);
  EXPECT_EQ(json["exchange"], "local");
  EXPECT_EQ(json["output"], "");
  const Json layer = json["layers"][0];
  const std::map<std::string, Json> expected{{"layer", 0},
                                             {"backend", "MARLIN"},
                                             {"layout", "marlin.mxfp4"},
                                             {"kernel", "reference/marlin"},
                                             {"engine", "reference"},
                                             {"numerics", "marlin"},
                                             {"activations", "bf16"},
                                             {"monolithic", false},
                                             {"routing", "the model's router"},
                                             {"tokens", 3},
                                             {"hidden", kHidden},
                                             {"top_k", kTopK},
                                             {"within_numerics", true}};
  for (const auto& [name, value] : expected) EXPECT_EQ(layer[name], value) << name;
  for (const char* name : {"weight_bytes", "load_seconds", "us", "rel_error", "cosine"})
    EXPECT_GT(layer[name].get<double>(), 0) << name;
  EXPECT_EQ(layer["allowed"]["rel_error"], 2e-2);
  EXPECT_EQ(layer["allowed"]["cosine"], 0.9999);
  EXPECT_FALSE(layer["policy"].string().empty());
  EXPECT_TRUE(layer["warnings"].is_array());
  EXPECT_FALSE(layer_of(run_with({"--json"})).contains("rel_error"));
}

TEST_F(RunCommand, TakesLogitsChosenExpertsOrHiddenStatesAlone) {
  EXPECT_EQ(layer_of(run_on({kStates}, {"--json"}))["routing"], "the model's router");
  EXPECT_EQ(layer_of(run_on({kStates, kLogits}, {"--json"}))["routing"], "given logits");
  const Json chosen = layer_of(run_on({kStates, kIds, kWeights}, {"--json"}));
  EXPECT_EQ(chosen["routing"], "given experts");
  EXPECT_EQ(chosen["tokens"], kTokens);
}

TEST_F(RunCommand, ReadsTheSameNumbersFromEveryType) {
  const auto bits = [&](const std::vector<Part>& parts) {
    write_file(file("given.safetensors"), parts);
    return output_of({"run", source(), "--input", file("given.safetensors")});
  };
  Part wide = kStates, long_ids = kIds;
  wide.dtype = DType::f32;
  long_ids.dtype = DType::i64;
  EXPECT_TRUE(bits({kStates, kIds, kWeights}) == bits({wide, long_ids, kWeights}));
}

TEST_F(RunCommand, IdsThatNoExpertHasCountForNothing) {
  Part beyond = kIds;
  beyond.offset = 1000;
  write_file(file("given.safetensors"), {kStates, beyond, kWeights});
  const std::string bits = output_of({"run", source(), "--input", file("given.safetensors")});
  EXPECT_EQ(bits, std::string(kTokens * kHidden * 2, '\0'));
}

TEST_F(RunCommand, RefusesInputThatDoesNotFit) {
  const auto with = [](Part part, Shape shape, DType dtype) {
    part.shape = std::move(shape);
    part.dtype = dtype;
    return part;
  };
  const Part narrow = with(kStates, {kTokens, 32}, DType::bf16);
  refused(run_on({kLogits}), 3, "\"hidden_states\": a tensor of the input does not fit");
  refused(run_on({narrow}), 3, "found: [5, 32]; expected: [tokens, 96]");
  refused(run_on({with(kStates, {kTokens, kHidden}, DType::i32)}), 3, "found: I32 [5, 96]");
  refused(run_on({with(kStates, {kTokens * kHidden}, DType::bf16)}), 3, "found: BF16 [480]");
  refused(run_on({kStates, with(kLogits, {kTokens, 3}, DType::f32)}), 3,
          "another number of experts");
  refused(run_on({kStates, with(kLogits, {2, kExperts}, DType::f32)}), 3, "found: F32 [2, 4]");
  refused(run_on({kStates, kIds}), 3, "\"topk_weights\"");
  refused(run_on({kStates, kWeights}), 3, "\"topk_ids\"");
  refused(run_on({kStates, with(kIds, {kTokens, 3}, DType::i32), kWeights}), 3,
          "found: I32 [5, 3]");
  refused(run_on({kStates, with(kIds, {kTokens, kTopK}, DType::f32), kWeights}), 3,
          "expected: [5, 4] of I32 or I64");
  refused(run_on({kStates, with(kIds, {kTokens, 0}, DType::i32),
                  with(kWeights, {kTokens, 0}, DType::f32)}),
          3, "expected: [5, at least 1]");
  refused(run_on({kStates, kLogits, kIds, kWeights}), 3, "both logits and chosen experts");
}

TEST_F(RunCommand, RefusesDamagedFiles) {
  write_file(file("whole.safetensors"), {kStates});
  const std::string whole = read_text(file("whole.safetensors"));
  const std::string cut = file("cut.safetensors");
  write_text(cut, std::string_view(whole).substr(0, whole.size() - 10));
  refused(run_with({"--input", cut}), 3, "the file may be cut off");
  write_text(cut, "");
  refused(run_with({"--input", cut}), 3, "safetensors.truncated");
  EXPECT_NE(run_with({"--input", file("nothing.safetensors")}).status, 0);
  EXPECT_NE(run({"run", file("nothing")}).status, 0);
}

TEST_F(RunCommand, NoTokensGiveAnEmptyOutput) {
  EXPECT_TRUE(output_of({"run", source(), "--tokens", "0"}).empty());
  Part none = kStates;
  none.shape = {0, kHidden};
  const Json layer = layer_of(run_on({none}, {"--json", "--ep", "2", "--exchange", "gather"}));
  EXPECT_EQ(layer["tokens"], 0);
}

TEST_F(RunCommand, RunsTheLayersItIsTold) {
  EXPECT_NE(output_of({"run", source()}), output_of({"run", source(), "--layer", "1"}));
  const Outcome all = run_with({"--layer", "all", "--json", "-o", file("all.safetensors")});
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_EQ((*parse_json(all.out))["layers"].size(), 2u);
  const Result<tensor::Store> store = tensor::Store::open(file("all.safetensors"));
  ASSERT_TRUE(store);
  ASSERT_NE(store->find("layers.1.output"), nullptr);
  EXPECT_EQ(store->find("layers.1.output")->entry.shape, (Shape{16, kHidden}));
  refused(run_with({"--layer", "2"}), 2, "found: '2'; expected: all, or one of 0, 1");
  refused(run_with({"--layer", "first"}), 2, "run.option");
}

TEST_F(RunCommand, ThreadsAndBatchesChangeNoBit) {
  const std::string bits = output_of({"run", source(), "--backend", "MARLIN", "--threads", "1"});
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--threads", "3"}, {"--batch", "1"}, {"--batch", "5"}}) {
    std::vector<std::string> words{"run", source(), "--backend", "MARLIN"};
    words.insert(words.end(), more.begin(), more.end());
    EXPECT_TRUE(output_of(words) == bits) << more[0] << " " << more[1];
  }
}

TEST_F(RunCommand, StopsBetweenTokensWhenToldTo) {
  const std::vector<std::uint16_t> one{0x3F80};
  const runtime::RouterWeights router{.experts = 1, .hidden = 1, .weight = {1.0f}};
  const InterruptGuard guard;
  request_interrupt();
  const auto tokens = runtime::seeded_input(1, 1, 1);
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.why().code, ErrorCode::interrupted);
  const auto logits = router.logits(moe::dense_rows(std::span(one), DType::bf16, 1, 1));
  ASSERT_FALSE(logits);
  EXPECT_EQ(logits.why().code, ErrorCode::interrupted);
  const Outcome outcome = run_with({});
  EXPECT_EQ(outcome.status, 130);
  EXPECT_TRUE(has(outcome.err, "stopped before the work was done [interrupted]")) << outcome.err;
  // The demo's files are gone with it: there is nothing to go on with.
  const Outcome demo = run({"demo", "--experts", "2"});
  EXPECT_EQ(demo.status, 130) << demo.err;
  EXPECT_FALSE(has(demo.err, "--resume")) << demo.err;
}

TEST_F(RunCommand, RunsEveryLayerWhenAskedForAll) {
  const Outcome outcome = run_with({"--layer", "all", "--check", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json layers = (*parse_json(outcome.out))["layers"];
  ASSERT_EQ(layers.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(layers[i]["layer"], i);
    EXPECT_EQ(layers[i]["within_numerics"], true);
  }
}

TEST_F(RunCommand, WarnsOnceOfWhatLintWouldFind) {
  const std::string path = file("inverted");
  ASSERT_EQ(run({"synth", "--model", "qwen3-30b-a3b", "--experts", "4", "--hidden", "128",
                 "--intermediate", "64", "--defect", "inverted-global-scale", "-o", path})
                .status,
            0);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", path},
        {"convert", path, "--layout", "as_loaded.nvfp4", "-o", file("inverted-out")}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::size_t at = outcome.err.find("warning: ");
    EXPECT_TRUE(has(outcome.err, "scale.global_inverted (1)")) << outcome.err;
    EXPECT_EQ(outcome.err.find("warning: ", at + 1), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run_with({}).err, "");
}

TEST_F(RunCommand, SaysWhoChecksTheBytesOfAConvertedFolder) {
  const std::string converted = file("to-check");
  ASSERT_EQ(run({"convert", source(), "--layout", "as_loaded.mxfp4", "-o", converted}).status, 0);
  EXPECT_TRUE(has(run({"run", converted, "--check"}).out, "fp4moe verify " + converted));
  EXPECT_FALSE(has(run({"run", converted}).out, "fp4moe verify"));
}

TEST_F(RunCommand, RefusesWrongWords) {
  refused(run_with({"--backend", "MARLIM"}), 2, "did you mean MARLIN?");
  refused(run_with({"--engine", "steam"}), 2, "engine.unknown");
  refused(run_with({"--backend", "MARLIN", "--weights", "mapped"}), 2, "layer.weights");
  refused(run_with({"--numerics", "approximate"}), 2, "numerics.unknown");
  refused(run_with({"--activations", "fp9"}), 2, "layer.activations");
  refused(run_with({"--policy", "1999-01-01"}), 2, "policy.unknown");
  refused(run_with({"--device", "abacus"}), 2, "device.unknown");
  refused(run_with({"--tp", "0"}), 2, "--tp does not take this value");
  refused(run_with({"--ep", "65"}), 2, "1 to 64, or mpi");
  refused(run_with({"--ep", "two"}), 2, "--ep does not take this value");
  refused(run_with({"--tp", "2", "--ep", "2"}), 2, "one of them");
  refused(run_with({"--exchange", "gather"}), 2, "unless experts are sharded");
  refused(run_with({"--exchange", "pigeon"}), 2, "--exchange");
  refused(run_with({"--placement", "heap"}), 2, "--placement");
  refused(run_with({"--input-scale", "1"}), 2, "two positive numbers");
  refused(run_with({"--input-scale", "1,-2"}), 2, "two positive numbers");
  refused(run_with({"--ep", "8"}), 4, "do:    use --ep 4");
  refused(run_with({"--tp", "3"}), 4, "plan.divide");
  refused(run({"run"}), 2, "PATH");
}

// The configuration has the last word on whether weights are normalized, where a method can leave
// it.
TEST(RunRouting, FollowsTheConfiguration) {
  const TemporaryFolder folder;
  const auto run_as = [&](const std::string& model, bool renormalizes) {
    const std::string path = folder / model;
    if (!fs::exists(path)) {
      EXPECT_EQ(run({"synth", "--model", model, "--experts", "4", "--hidden", "64",
                     "--intermediate", "64", "-o", path})
                    .status,
                0);
    }
    Json config = *parse_json(read_text(path + "/config.json"));
    config["norm_topk_prob"] = renormalizes;
    config["num_experts_per_tok"] = 2;
    write_text(path + "/config.json", config.dump());
    const Outcome outcome = run({"run", path, "--json", "-o", folder / "out.safetensors"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return outcome.status == 0 ? (*parse_json(outcome.out))["layers"][0] : Json();
  };
  run_as("qwen3-30b-a3b", true);
  const std::string normalized = read_text(folder / "out.safetensors");
  EXPECT_TRUE(run_as("qwen3-30b-a3b", false)["warnings"].empty());
  EXPECT_NE(read_text(folder / "out.safetensors"), normalized);
  EXPECT_TRUE(run_as("deepseek-v3", true)["warnings"].empty());
  const Json left = run_as("deepseek-v3", false);
  EXPECT_TRUE(has(left["routing"].string(),
                  "seeded experts (norm_topk_prob is false, but routing DeepSeekV3 normalizes"));
}

}  // namespace
}  // namespace fp4moe::cli
