#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/platform/detect.hpp"
#include "support/command_line.hpp"
#include "support/files.hpp"
#include "support/page.hpp"

namespace fp4moe::cli {
namespace {

namespace fs = std::filesystem;
using tensor::testing::TemporaryFolder;
using testing::has;
using testing::Outcome;
using testing::run;

TEST(ConvertPage, IsShownByThePageAsItIs) { testing::expect_page_shows("convert.md", 8); }

TEST(ConvertWarnings, SayThatAKernelTakesTheGatesGlobalScaleForBoth) {
  const TemporaryFolder folder;
  ASSERT_EQ(
      run({"synth", "--model", "qwen3-30b-a3b", "--experts", "2", "--hidden", "128",
           "--intermediate", "128", "--defect", "mismatched-global-scale", "-o", folder / "source"})
          .status,
      0);
  const auto to = [&](const std::string& layout) {
    return run({"convert", folder / "source", "--layout", layout, "-o", folder / layout});
  };
  const Outcome marlin = to("marlin.nvfp4");
  EXPECT_EQ(marlin.status, 0) << marlin.err;
  EXPECT_TRUE(has(marlin.out, "warning: gate and up of 1 experts have different global scales"));
  const Outcome native = to("native_sm90.nvfp4");
  EXPECT_EQ(native.status, 0) << native.err;
  EXPECT_FALSE(has(native.out, "warning"));
}

class ConvertCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    const Outcome result = run({"synth", "--model", "gpt-oss-20b", "--experts", "3", "--hidden",
                                "128", "--intermediate", "128", "-o", source_});
    ASSERT_EQ(result.status, 0) << result.err;
  }
  Outcome convert(std::vector<std::string> words) const {
    words.insert(words.begin(), {"convert", source_});
    return run(words);
  }

  TemporaryFolder folder_{};
  std::string source_ = folder_ / "source", out_ = folder_ / "out";
};

TEST_F(ConvertCommand, ConvertsForThisMachineByDefault) {
  const Outcome outcome = convert({"-o", out_, "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = *parse_json(outcome.out);
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_FALSE(json["backend"].string().empty());
  EXPECT_EQ(json["layers"].size(), 1u);
  EXPECT_TRUE(json["losses"].empty());
  const Outcome verified = run({"verify", out_, "--deep", "--json"});
  ASSERT_EQ(verified.status, 0) << verified.out << verified.err;
  EXPECT_TRUE((*parse_json(verified.out))["findings"].empty());
  const Outcome back = run({"unconvert", out_, "-o", folder_ / "back", "--json"});
  ASSERT_EQ(back.status, 0) << back.err;
  EXPECT_EQ((*parse_json(back.out))["exact"], true);
}

TEST_F(ConvertCommand, WhatItSaysToDoNextCanBeDone) {
  const auto last = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::string text = outcome.out.substr(0, outcome.out.rfind('\n'));
    return text.substr(text.rfind('\n') + 1);
  };
  EXPECT_EQ(last(convert({"--dry-run"})), "Next: the same with -o OUT");
  EXPECT_EQ(last(convert({"--dry-run", "-o", out_})), "Next: the same without --dry-run");
  EXPECT_TRUE(has(last(convert({"-o", out_})), "fp4moe verify " + out_ + " --deep"));
  const std::string ranks = folder_ / "ranks";
  EXPECT_TRUE(has(last(convert({"--tp", "2", "-o", ranks})), "fp4moe verify " + ranks + " --deep"));
  EXPECT_EQ(run({"verify", ranks, "--deep"}).status, 0);
  EXPECT_EQ(
      last(run({"transcode", source_, "--to", "gguf", "-o", folder_ / "m.gguf", "--dry-run"})),
      "Next: the same without --dry-run");
}

TEST_F(ConvertCommand, TakesAGenerationOfTheBackendsLayout) {
  const std::vector<std::string> triton{"--backend", "TRITON", "--policy", "2026-08-22",
                                        "--device",  "h100",   "--dry-run"};
  EXPECT_TRUE(has(convert(triton).out, "triton.mxfp4 (hopper.v3.5.w8.k4) for TRITON"))
      << convert(triton).out << convert(triton).err;
  std::vector<std::string> other = triton;
  other.insert(other.end(), {"--generation", "strided"});
  EXPECT_TRUE(has(convert(other).out, "triton.mxfp4 (strided)")) << convert(other).err;
  other.back() = "never";
  EXPECT_EQ(convert(other).status, 2);
  EXPECT_TRUE(has(convert(other).err, "layout.generation"));
}

// Layouts of release 0.33.0, with sizes that no tile divides.
TEST(ConvertVllm, ThereAndBackForEveryLayoutThatIsKnown) {
  const TemporaryFolder folder;
  const auto make = [&](const char* model, const char* hidden, const char* intermediate) {
    const std::string path = folder / model;
    EXPECT_EQ(run({"synth", "--model", model, "--experts", "2", "--layers", "1", "--hidden", hidden,
                   "--intermediate", intermediate, "-o", path})
                  .status,
              0);
    return path;
  };
  const std::string mxfp4 = make("gpt-oss-20b", "576", "608");
  const std::string nvfp4 = make("qwen3-30b-a3b", "320", "144");
  struct Case {
    const std::string& source;
    const char *backend, *device, *layout;
  };
  int number = 0;
  for (const Case& one :
       {Case{nvfp4, "FLASHINFER_CUTEDSL", "b200", "flashinfer_cutedsl.nvfp4 for"},
        Case{mxfp4, "CUTLASS_MXFP4_MXFP4", "b200", "vllm_cutlass.mxfp4 for"},
        Case{mxfp4, "AITER_TRITON_MXFP4_BF16", "mi300x", "aiter_triton.mxfp4 (strided)"},
        Case{mxfp4, "AITER_TRITON_MXFP4_BF16", "mi355x", "aiter_triton.mxfp4 (cdna4.v3.6)"},
        Case{mxfp4, "TRITON", "rtx5090", "triton.mxfp4 (blackwell.v3.6)"},
        Case{mxfp4, "TRITON", "thor", "triton.mxfp4 (blackwell.v3.6)"},
        Case{mxfp4, "CPU", "cpu-amx", "vllm_cpu.mxfp4 for"}}) {
    const std::string out = folder / std::to_string(number++);
    const Outcome result = run({"convert", one.source, "--backend", one.backend, "--device",
                                one.device, "--vllm", "0.33.0", "-o", out});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_TRUE(has(result.out, one.layout)) << result.out;
    EXPECT_EQ(run({"verify", out, "--deep"}).status, 0) << one.backend;
    const Outcome back = run({"unconvert", out, "-o", out + "-back", "--json"});
    ASSERT_EQ(back.status, 0) << back.err;
    EXPECT_EQ((*parse_json(back.out))["exact"], true) << one.backend;
  }
  for (const auto& [backend, device, id] :
       {std::tuple{"HUMMING", "h100", "layout.external"},
        std::tuple{"TRITON", "mi455x", "layout.unspecified"},
        std::tuple{"AITER_TRITON_MXFP4_MXFP4", "mi455x", "layout.unspecified"}}) {
    const Outcome refused = run({"convert", mxfp4, "--backend", backend, "--device", device,
                                 "--vllm", "0.33.0", "-o", folder / "never"});
    EXPECT_EQ(refused.status, 7) << backend;
    EXPECT_TRUE(has(refused.err, id)) << refused.err;
  }
}

TEST_F(ConvertCommand, RefusesWrongRequests) {
  const auto refused = [&](const std::vector<std::string>& words, int status, std::string_view id) {
    const Outcome outcome = convert(words);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_TRUE(has(outcome.err, id)) << outcome.err;
  };
  refused({}, 2, "convert.out");
  refused({"-o", out_, "--tp", "2/2"}, 2, "convert.rank");
  refused({"-o", out_, "--ep", "none"}, 2, "convert.rank");
  refused({"-o", out_, "--tp", "0/2/3"}, 2, "convert.rank");
  refused({"-o", out_, "--backend", "MARLIN", "--layout", "marlin.mxfp4"}, 2, "convert.layout");
  refused({"-o", out_, "--backend", "MARLIM", "--policy", "2026-04-24"}, 2, "did you mean MARLIN?");
  refused({"-o", out_, "--layout", "nothing.mxfp4"}, 2, "layout.unknown");
  refused({"-o", out_, "--layout", "marlin.nvfp4"}, 2, "layout.format");
  refused({"-o", out_, "--policy", "1999-01-01"}, 2, "policy.unknown");
  refused({"-o", out_, "--layout", "marlin.mxfp4", "--placement", "random"}, 2, "--placement");
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_NE(run({"convert", folder_ / "nothing", "-o", out_}).status, 0);
}

TEST_F(ConvertCommand, TakesASizeAndARankInEveryForm) {
  const auto dry = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{"--layout", "as_loaded.mxfp4", "--dry-run", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    return *parse_json(convert(all).out);
  };
  EXPECT_EQ(dry({"--tp", "1/2"}), dry({"--tp", "2", "--rank", "1"}));
  EXPECT_EQ(dry({"--ep", "0/2"})["ep"], "0/2");
  EXPECT_EQ(dry({"--ep", "2", "--placement", "round_robin"})["ranks"][1]["placement"],
            "round-robin");
  EXPECT_EQ(dry({"--tp", "2", "--ep", "2"})["error"]["id"], "convert.rank");
  EXPECT_EQ(dry({"--tp", "2", "--rank", "2"})["error"]["id"], "convert.rank");
  EXPECT_EQ(dry({"--rank", "1"})["error"]["id"], "convert.rank");
}

TEST_F(ConvertCommand, WritesEveryRankOfAGroup) {
  const Outcome result =
      convert({"-o", out_, "--layout", "as_loaded.mxfp4", "--tp", "2", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json json = *parse_json(result.out);
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][1]["tp"], "1/2");
  for (const char* rank : {"/rank-0", "/rank-1"})
    EXPECT_EQ(run({"verify", out_ + rank, "--deep"}).status, 0) << rank;
  const Outcome back =
      run({"unconvert", out_ + "/rank-0", out_ + "/rank-1", "-o", folder_ / "back", "--json"});
  EXPECT_EQ((*parse_json(back.out))["exact"], true) << back.err;
  // The folder that holds them stands for all of them.
  const Json verified = *parse_json(run({"verify", out_, "--deep", "--json"}).out);
  EXPECT_EQ(verified["files"].get<std::uint64_t>(),
            2 * (*parse_json(run({"verify", out_ + "/rank-1", "--json"}).out))["files"]
                    .get<std::uint64_t>());
  EXPECT_EQ(run({"unconvert", out_, "-o", folder_ / "back too"}).status, 0);
  // Existing folders stay, missing ones are created.
  fs::remove_all(out_ + "/rank-1");
  const Outcome again =
      convert({"-o", out_, "--layout", "as_loaded.mxfp4", "--tp", "2", "--resume"});
  EXPECT_TRUE(has(again.out, "rank-0: found finished")) << again.out << again.err;
  EXPECT_TRUE(fs::exists(out_ + "/rank-1/fp4moe.json"));
  EXPECT_TRUE(has(again.out, "fp4moe verify " + out_ + " --deep")) << again.out;
  EXPECT_TRUE(has(again.out, "fp4moe run " + out_ + "/rank-0 --check")) << again.out;
  const Outcome dry =
      convert({"-o", folder_ / "dry", "--layout", "as_loaded.mxfp4", "--tp", "2", "--dry-run"});
  EXPECT_TRUE(has(dry.out, "Next: the same without --dry-run")) << dry.out;
}

TEST_F(ConvertCommand, ARefusedGroupOfRanksLeavesNoFolder) {
  const std::vector<std::string> ranks{"-o", out_, "--layout", "as_loaded.mxfp4", "--tp", "2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ranks.begin(), ranks.end());
    return convert(more);
  };
  EXPECT_EQ(with({"--max-memory", "1MB"}).status, 6);
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_EQ(convert({"-o", out_, "--layout", "as_loaded.nvfp4", "--tp", "2"}).status, 2);
  EXPECT_FALSE(fs::exists(out_));
  fs::create_directory(out_);
  EXPECT_EQ(with({"--max-memory", "1MB"}).status, 6);
  EXPECT_TRUE(fs::exists(out_)) << "it was there before";
  fs::permissions(out_, fs::perms::all);
  const Outcome open = with({});
  EXPECT_EQ(open.status, 1);
  EXPECT_TRUE(has(open.err, "folder.foreign")) << open.err;
  EXPECT_TRUE(fs::is_empty(out_));
  fs::permissions(out_, fs::perms::owner_all);
  EXPECT_EQ(with({}).status, 0);
  const Outcome nowhere =
      convert({"-o", folder_ / "a/b", "--layout", "as_loaded.mxfp4", "--tp", "2"});
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_TRUE(has(nowhere.err, "No such file or directory")) << nowhere.err;
}

TEST_F(ConvertCommand, NamesTheBackendInAnySpelling) {
  for (const char* name : {"MARLIN", "marlin", "Marlin"})
    EXPECT_TRUE(
        has(convert({"--backend", name, "--policy", "2026-08-22", "--dry-run"}).out, "for MARLIN"))
        << name;
  EXPECT_TRUE(has(convert({"--backend", "flashinfer-trtllm", "--policy", "2026-08-22", "--device",
                           "b200", "--dry-run"})
                      .out,
                  "for FLASHINFER_TRTLLM_MXFP4_BF16"));
}

TEST_F(ConvertCommand, VerifyFindsDamageAndEndsWith5) {
  ASSERT_EQ(convert({"-o", out_, "--layout", "as_loaded.mxfp4"}).status, 0);
  const std::string file = out_ + "/experts-00000.safetensors";
  std::string bytes = tensor::testing::read_text(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  tensor::testing::write_text(file, bytes);
  const Outcome outcome = run({"verify", out_});
  EXPECT_EQ(outcome.status, 5);
  EXPECT_TRUE(has(outcome.out, "converted.checksum")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "1 finding\n")) << outcome.out;
  EXPECT_EQ(run({"verify", source_}).status, 3);
  EXPECT_EQ(run({"unconvert", out_, "-o", folder_ / "back"}).status, 5);
  EXPECT_EQ(run({"unconvert", source_, "-o", folder_ / "back"}).status, 3);
}

TEST_F(ConvertCommand, InspectSaysWhatAConvertedFolderIs) {
  ASSERT_EQ(convert({"-o", out_, "--layout", "as_loaded.mxfp4"}).status, 0);
  const Outcome outcome = run({"inspect", out_});
  EXPECT_TRUE(has(outcome.out, "dialect.converted")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "fp4moe unconvert")) << outcome.out;
}

TEST_F(ConvertCommand, ALayoutThatDependsOnTheDeviceNeedsOne) {
  const auto generation = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{"--dry-run", "--json", "--policy", "2026-08-22"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome said = convert(all);
    EXPECT_EQ(said.status, 0) << said.err;
    const auto json = parse_json(said.out);
    return json && said.status == 0 ? (*json)["generation"].string() : std::string();
  };
  const auto refused = [&](std::vector<std::string> words, int status, std::string_view id) {
    words.emplace_back("--dry-run");
    const Outcome said = convert(words);
    EXPECT_EQ(said.status, status) << said.out;
    EXPECT_TRUE(has(said.err, id)) << said.err;
  };
  EXPECT_EQ(generation({"--backend", "TRITON", "--device", "h100"}), "hopper.v3.5.w8.k4");
  EXPECT_EQ(generation({"--layout", "triton.mxfp4", "--device", "b200"}), "blackwell.v3.6");
  EXPECT_EQ(generation({"--layout", "triton.mxfp4", "--generation", "strided"}), "strided");
  if (platform::detect_device().kind == platform::PlatformKind::cpu) {
    refused({"--backend", "TRITON", "--policy", "2026-08-22"}, 2, "target.device");
    refused({"--layout", "triton.mxfp4"}, 2, "target.device");
  }
  refused({"--backend", "TRITON", "--policy", "2026-08-22", "--device", "rtx4090"}, 4,
          "target.backend");
  refused({"--layout", "triton.mxfp4", "--device", "rtx4090"}, 4, "target.backend");
}

TEST_F(ConvertCommand, ABackendThatDoesNotRunOnTheDeviceIsWarnedOf) {
  const Outcome said =
      convert({"--backend", "MARLIN", "--device", "mi300x", "--policy", "2026-08-22", "--dry-run"});
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_TRUE(has(said.out, "warning: MARLIN does not run on mi300x: it needs cuda; this is rocm"))
      << said.out;
  const Outcome fits =
      convert({"--backend", "MARLIN", "--device", "h100", "--policy", "2026-08-22", "--dry-run"});
  EXPECT_FALSE(has(fits.out, "warning")) << fits.out;
  const Outcome cut = convert({"--backend", "MARLIN", "--device", "h100", "--policy", "2026-08-22",
                               "--tp", "0/3", "--dry-run"});
  EXPECT_EQ(cut.status, 0) << cut.err;
  EXPECT_TRUE(has(cut.out, "warning: vLLM of 2026-08-22 does not load a share of 3 ranks: "))
      << cut.out;
  EXPECT_TRUE(has(cut.out, "; use --tp 2")) << cut.out;
}

}  // namespace
}  // namespace fp4moe::cli
