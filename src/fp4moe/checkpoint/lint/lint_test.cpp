#include "fp4moe/checkpoint/lint/lint.hpp"

#include <functional>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace lint_test {

using namespace testing;  // NOLINT: the test's own words
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;
using Tensors = std::vector<FileTensor>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::string kExpert = "model.layers.0.mlp.experts.1.";

Model small(WeightFormat format) {
  return {.format = format,
          .experts = 2,
          .hidden = 64,
          .intermediate = 64,
          .input_scale = format == WeightFormat::nvfp4};
}
Tensors modelopt(std::uint64_t layer = 0) {
  return tensors_of(small(WeightFormat::nvfp4), *find_row(Dialect::modelopt, WeightFormat::nvfp4),
                    layer);
}
LintReport lint_of(const Tensors& tensors, bool deep = false, std::string_view config = {}) {
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  if (!config.empty()) write_text(folder / "config.json", config);
  return lint(folder.path(), {.deep = deep, .threads = 2});
}
std::set<std::string> codes(const LintReport& report) {
  std::set<std::string> found;
  for (const auto& [code, count] : report.counts) found.insert(code);
  return found;
}
using Codes = std::set<std::string>;

TEST(Lint, FindsNothingInWholeCheckpointsOfEveryDialect) {
  for (const DialectRow& row : dialects()) {
    if (!is_told_by_names(row)) continue;
    Model model{.format = row.format};
    model.bias = !row.parts.bias.empty();
    model.input_scale = row.global_scale != GlobalScale::none;
    const TemporaryFolder folder;
    const LintReport report = lint(write_model(folder, model, row), {.deep = true, .threads = 2});
    EXPECT_EQ(codes(report), Codes{}) << row.name;
    EXPECT_EQ(report.errors + report.warnings + report.notes, 0u);
    EXPECT_EQ(report.layers, 1u);
    EXPECT_EQ(report.experts, 3u);
    EXPECT_GT(report.bytes_read, 0u);
    EXPECT_EQ(report.dialect, std::string(row.name) + " " + std::string(name(row.format)));
  }
}

struct Defect {
  std::string_view code;
  Severity severity;
  std::string tensor;
  std::function<void(Tensors&)> plant;
};

TEST(Lint, NamesEachDefectOfValuesOnce) {
  const std::string up = kExpert + "up_proj";
  const auto scalar = [](std::string name, float value) {
    return [name, value](Tensors& t) { find_tensor(t, name).bytes = f32({value}); };
  };
  std::vector<Defect> defects{
      {"scale.nan", Severity::error, up + ".weight_scale",
       [&](Tensors& t) { find_tensor(t, up + ".weight_scale").bytes[9] = std::byte{0x7F}; }},
      {"scale.nan", Severity::error, up + ".weight_scale",
       [&](Tensors& t) { find_tensor(t, up + ".weight_scale").bytes[9] = std::byte{0xFF}; }},
      {"scale.negative", Severity::warning, up + ".weight_scale",
       [&](Tensors& t) { find_tensor(t, up + ".weight_scale").bytes[9] = std::byte{0xB8}; }},
      {"scale.zero_row", Severity::warning, up + ".weight_scale",
       [&](Tensors& t) {
         Bytes& bytes = find_tensor(t, up + ".weight_scale").bytes;
         std::fill(bytes.begin() + 8, bytes.begin() + 12, std::byte{0});
       }},
      {"scale.zero_block", Severity::note, up + ".weight_scale",
       [&](Tensors& t) { find_tensor(t, up + ".weight_scale").bytes[9] = std::byte{0}; }},
      {"scale.input_missing", Severity::error, up + ".input_scale",
       [&](Tensors& t) { erase_tensor(t, up + ".input_scale"); }},
      {"scale.global_mismatch", Severity::warning, kExpert + "gate_proj.weight_scale_2",
       scalar(up + ".weight_scale_2", 0.001f)},
      {"scale.global_inverted", Severity::warning, kExpert + "down_proj.weight_scale_2",
       scalar(kExpert + "down_proj.weight_scale_2", 4096.0f)},
      {"tensor.extra", Severity::warning, up + ".observed",
       [&](Tensors& t) {
         t.push_back({up + ".observed", DType::u8, {1}, Bytes(1)});
       }},
  };
  for (const float bad : {0.0f, -1.0f, kInfinity, kNan}) {
    defects.push_back({"scale.global", Severity::error, kExpert + "down_proj.weight_scale_2",
                       scalar(kExpert + "down_proj.weight_scale_2", bad)});
    defects.push_back(
        {"scale.input", Severity::error, up + ".input_scale", scalar(up + ".input_scale", bad)});
  }
  for (const Defect& defect : defects) {
    Tensors tensors = modelopt();
    defect.plant(tensors);
    const LintReport report = lint_of(tensors);
    ASSERT_EQ(report.findings.size(), 1u) << defect.code;
    const Finding& finding = report.findings[0];
    EXPECT_EQ(finding.code, defect.code);
    EXPECT_EQ(finding.severity, defect.severity);
    EXPECT_EQ(finding.tensor, defect.tensor);
    EXPECT_FALSE(finding.fact.empty());
    EXPECT_TRUE(finding.file.ends_with(".safetensors")) << finding.file;
    EXPECT_FALSE(finding.remedy.empty());
    if (defect.code != "tensor.extra") {
      EXPECT_EQ(finding.layer, 0u);
      EXPECT_EQ(finding.expert, 1u);
    }
    EXPECT_EQ(report.errors, defect.severity == Severity::error ? 1u : 0u);
  }
}

// What looks inverted explains why gate and up differ; reconciling them would destroy one.
TEST(Lint, RecognizesAnInversionBeforeAMismatch) {
  const std::string gate = kExpert + "gate_proj.weight_scale_2",
                    up = kExpert + "up_proj.weight_scale_2";
  Tensors tensors = modelopt();
  find_tensor(tensors, gate).bytes = f32({1.0f / 3000.0f});
  find_tensor(tensors, up).bytes = f32({3000.0f});
  const LintReport inverted = lint_of(tensors);
  ASSERT_EQ(inverted.findings.size(), 1u);
  EXPECT_EQ(inverted.findings[0].code, "scale.global_inverted");
  EXPECT_EQ(inverted.findings[0].tensor, up);
  find_tensor(tensors, gate).bytes = f32({1.0f / 6000.0f});
  const LintReport both = lint_of(tensors);
  EXPECT_EQ(both.counts.at("scale.global_inverted"), 1u);
  ASSERT_EQ(both.counts.at("scale.global_mismatch"), 1u);
  EXPECT_NE(both.findings[1].fact.find("a factor of 2 once inverted ones are set right"),
            std::string::npos)
      << both.findings[1].fact;
}

TEST(Lint, LooksAtOneLayerOrAtScalarsAlone) {
  Tensors tensors = modelopt();
  find_tensor(tensors, kExpert + "up_proj.weight_scale").bytes[9] = std::byte{0x7F};
  find_tensor(tensors, kExpert + "up_proj.input_scale").bytes = f32({0});
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  EXPECT_EQ(lint(folder.path()).errors, 2u);
  EXPECT_EQ(lint(folder.path(), {.scalars_only = true}).counts,
            (std::map<std::string, std::uint64_t>{{"scale.input", 1}}));
  EXPECT_EQ(lint(folder.path(), {.layer = 0}).errors, 2u);
  EXPECT_EQ(lint(folder.path(), {.layer = 1}).errors, 0u);
}

TEST(Lint, CountsNanScalesAndSaysWhereTheFirstIs) {
  Tensors tensors =
      tensors_of(small(WeightFormat::mxfp4), *find_row(Dialect::gpt_oss, WeightFormat::mxfp4));
  Bytes& scales = find_tensor(tensors, "model.layers.0.mlp.experts.gate_up_proj_scales").bytes;
  // Expert 1, up rows 5 and 6: rows 2 * 5 + 1 and 2 * 6 + 1 of 128, two blocks each.
  scales[128 * 2 + 11 * 2 + 1] = scales[128 * 2 + 13 * 2] = std::byte{255};
  const LintReport report = lint_of(tensors);
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].expert, 1u);
  EXPECT_EQ(report.findings[0].fact, "2 NaN block scales, the first at row 5, block 1");
}

TEST(Lint, ReadsScalesInsideGgufBlocks) {
  const Model model = small(WeightFormat::nvfp4);
  Tensors tensors = gguf_tensors(model, "blk.0.");
  Bytes& blocks = find_tensor(tensors, "blk.0.ffn_up_exps.weight").bytes;
  blocks[36 * 3 + 1] = std::byte{0x7F};
  blocks[36 * 5 + 2] = std::byte{0xC0};
  const TemporaryFolder folder;
  write_gguf(folder / "model.gguf", tensors, {});
  const LintReport report = lint(folder / "model.gguf");
  EXPECT_EQ(codes(report), (Codes{"scale.nan", "scale.negative_gguf"}));
  EXPECT_EQ(report.errors, 2u);
}

TEST(Lint, ReportsAllProblemsOfOpeningNotOnlyTheFirst) {
  Tensors tensors = modelopt();
  erase_tensor(tensors, kExpert + "up_proj.weight_scale");
  find_tensor(tensors, kExpert + "down_proj.weight_scale").dtype = DType::i8;
  find_tensor(tensors, "model.layers.0.mlp.experts.0.up_proj.weight_scale").bytes[0] =
      std::byte{0x7F};
  const LintReport report = lint_of(tensors, false, R"({"hidden_size": 32})");
  EXPECT_EQ(codes(report),
            (Codes{"config.mismatch", "scale.nan", "tensor.dtype", "tensor.missing"}));
  EXPECT_EQ(report.counts.at("tensor.missing"), 1u);  // a wrong type is not missing, too
  EXPECT_GE(report.errors, 4u);
  EXPECT_EQ(report.findings.front().severity, Severity::error);
}

TEST(Lint, SurvivesBrokenLayers) {
  for (const std::string part : {".weight", ".weight_scale", ".weight_scale_2", ".input_scale"}) {
    Tensors tensors = modelopt();
    FileTensor& broken = find_tensor(tensors, kExpert + "up_proj" + part);
    broken.shape = {1, 3, 4};
    broken.bytes.resize(12 * tensor::row(broken.dtype).block_bytes);
    EXPECT_GE(lint_of(tensors, true).errors, 1u) << part;
  }
  Tensors tensors = modelopt();
  std::erase_if(tensors,
                [](const FileTensor& t) { return t.name.find("experts.0.") != std::string::npos; });
  EXPECT_EQ(codes(lint_of(tensors, true)), Codes{"layer.missing_expert"});
}

TEST(Lint, TurnsOpeningErrorsIntoFindings) {
  const LintReport missing = lint("/does/not/exist");
  EXPECT_EQ(missing.errors, 1u);
  EXPECT_EQ(missing.findings.size(), 1u);
  const TemporaryFolder folder;
  write_text(folder / "model.safetensors", "short");
  EXPECT_EQ(lint(folder.path()).errors, 1u);
}

TEST(Lint, ChecksTheIndex) {
  const TemporaryFolder folder;
  const Tensors tensors = modelopt();
  write_safetensors(folder / "a.safetensors", tensors);
  std::uint64_t bytes = 0;
  std::string map;
  for (const FileTensor& tensor : tensors) {
    bytes += tensor.bytes.size();
    map += (map.empty() ? "\"" : ", \"") + tensor.name + "\": \"a.safetensors\"";
  }
  const auto write_index = [&](const std::string& total) {
    write_text(folder / "model.safetensors.index.json",
               R"({"metadata": {"total_size": )" + total + R"(}, "weight_map": {)" + map + "}}");
  };
  write_index(std::to_string(bytes));
  EXPECT_EQ(codes(lint(folder.path())), Codes{});
  write_index(std::to_string(bytes) + ".0");
  EXPECT_EQ(codes(lint(folder.path())), Codes{});
  for (const std::string wrong : {"12", "\"12\"", "-1"}) {
    write_index(wrong);
    const LintReport report = lint(folder.path());
    EXPECT_EQ(codes(report), Codes{"index.total_size"}) << wrong;
    EXPECT_EQ(report.findings[0].fix, "total-size");
  }
}

TEST(Lint, ComparesExclusionsWithTheTensors) {
  const std::string head =
      R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": [)";
  EXPECT_EQ(codes(lint_of(modelopt(), false, head + R"("lm_head", "*.mlp.gate"]}})")), Codes{});
  const LintReport listed = lint_of(modelopt(), false, head + R"("model.layers.0.mlp*"]}})");
  EXPECT_EQ(codes(listed), Codes{"config.excluded"});
  Tensors tensors = modelopt();
  const std::string other = "model.layers.1.mlp.experts.0.";
  for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
    tensors.push_back({other + projection + ".weight", DType::bf16, {64, 64}, Bytes(8192)});
  }
  EXPECT_EQ(codes(lint_of(tensors, false, head + R"("model.layers.1.*"]}})")), Codes{});
  EXPECT_EQ(codes(lint_of(tensors, false, head + "]}}")), Codes{"config.not_excluded"});
}

TEST(Lint, NoticesGapsAndOddShapesAmongLayers) {
  const auto layers = [](std::initializer_list<std::uint64_t> numbers) {
    Tensors tensors;
    for (const std::uint64_t number : numbers) {
      for (FileTensor& tensor : modelopt(number)) tensors.push_back(std::move(tensor));
    }
    return tensors;
  };
  EXPECT_EQ(codes(lint_of(layers({1, 2, 3}))), Codes{});
  EXPECT_EQ(codes(lint_of(layers({1, 3, 5}))), Codes{});  // every second layer is dense
  EXPECT_EQ(codes(lint_of(layers({1, 2, 4}))), Codes{"layer.gap"});
  Tensors hybrid = layers({1, 2, 4});
  hybrid.push_back({"model.layers.3.mamba.weight", DType::bf16, {1}, Bytes(2)});
  EXPECT_EQ(codes(lint_of(hybrid)), Codes{});
  Tensors odd = layers({1});
  Model wide = small(WeightFormat::nvfp4);
  wide.intermediate = 128;
  for (FileTensor& tensor :
       tensors_of(wide, *find_row(Dialect::modelopt, WeightFormat::nvfp4), 2)) {
    odd.push_back(std::move(tensor));
  }
  EXPECT_EQ(codes(lint_of(odd)), Codes{"layer.shape"});
}

TEST(Lint, LooksAtCodesWhenAskedTo) {
  Tensors dead = modelopt();
  for (const std::string projection : {"gate_proj", "up_proj", "down_proj"}) {
    for (std::byte& byte : find_tensor(dead, kExpert + projection + ".weight").bytes) {
      byte = std::byte{0x80};  // minus zero, zero
    }
  }
  EXPECT_EQ(codes(lint_of(dead, false)), Codes{});
  EXPECT_EQ(codes(lint_of(dead, true)), Codes{"expert.zero"});
  EXPECT_EQ(codes(lint_of(modelopt(), true, R"({"moe_intermediate_size": 48})")),
            (Codes{"config.mismatch", "padding.not_zero"}));
}

TEST(Lint, FindsBiasesThatAreNotFinite) {
  Model model = small(WeightFormat::mxfp4);
  model.bias = true;
  Tensors tensors = tensors_of(model, *find_row(Dialect::gpt_oss, model.format));
  Bytes& bias = find_tensor(tensors, "model.layers.0.mlp.experts.down_proj_bias").bytes;
  bias[2 * (64 + 7) + 1] = std::byte{0x7F};
  bias[2 * (64 + 7)] = std::byte{0x80};
  const LintReport report = lint_of(tensors);
  EXPECT_EQ(codes(report), Codes{"bias.not_finite"});
  EXPECT_EQ(report.findings[0].expert, 1u);
  EXPECT_EQ(report.findings[0].fact, "inf at row 7");
}

TEST(Lint, NotesWeightOnlyCheckpoints) {
  Tensors tensors = modelopt();
  std::erase_if(tensors, [](const FileTensor& t) { return t.name.ends_with("input_scale"); });
  const LintReport report = lint_of(tensors);
  EXPECT_EQ(codes(report), Codes{"scale.input_none"});
  EXPECT_EQ(report.notes, 1u);
}

TEST(Lint, TellsInvertedScalesFromUnusualOnes) {
  EXPECT_FALSE(looks_inverted(0.001f / 2688));
  EXPECT_FALSE(looks_inverted(100.0f / 2688));
  EXPECT_FALSE(looks_inverted(1.0f));
  EXPECT_TRUE(looks_inverted(2688 / 0.01f));
  EXPECT_TRUE(looks_inverted(2688 / 100.0f));
  EXPECT_FALSE(looks_inverted(1e30f));
}

TEST(Lint, KeepsALimitedNumberOfFindingsAndCountsTheRest) {
  Tensors tensors = modelopt();
  for (int i = 0; i < 1100; ++i) {
    tensors.push_back({kExpert + "up_proj.extra" + std::to_string(i), DType::u8, {1}, Bytes(1)});
  }
  const LintReport report = lint_of(tensors);
  EXPECT_EQ(report.counts.at("tensor.extra"), 1100u);
  EXPECT_EQ(report.warnings, 1100u);
  EXPECT_EQ(report.findings.size(), LintReport::kMaxFindings);
}

TEST(Lint, HasOneRuleForEachCode) {
  std::set<std::string_view> seen;
  for (const LintRule& rule : lint_rules()) {
    EXPECT_TRUE(seen.insert(rule.code).second) << rule.code;
    EXPECT_FALSE(rule.what.empty());
    EXPECT_FALSE(rule.remedy.empty());
  }
}

TEST(Lint, IsDocumentedRuleByRule) {
  const std::string page =
      tensor::testing::read_text(std::string(FP4MOE_TESTDATA) + "/../docs/lint.md");
  for (const LintRule& rule : lint_rules()) {
    const std::string row =
        "| `" + std::string(rule.code) + "` | " + std::string(name(rule.severity)) + " |";
    const std::size_t at = page.find(row);
    ASSERT_NE(at, std::string::npos) << row;
    const std::string line = page.substr(at, page.find('\n', at) - at);
    const std::string fix = rule.fix.empty() ? "| |" : "| `" + std::string(rule.fix) + "` |";
    EXPECT_TRUE(line.ends_with(fix)) << line;
  }
}

}  // namespace lint_test
}  // namespace fp4moe::checkpoint
