#include "fp4moe/checkpoint/edit/fix.hpp"

#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/edit/rescale.hpp"
#include "fp4moe/checkpoint/lint/lint.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace fix_test {

using namespace testing;  // NOLINT: the test's own words
using tensor::testing::read_text;
using tensor::testing::TemporaryFolder;
using tensor::testing::write_text;
using Tensors = std::vector<FileTensor>;

const std::string kExpert = "model.layers.0.mlp.experts.1.";

Model small() {
  return {.format = WeightFormat::nvfp4,
          .experts = 3,
          .hidden = 64,
          .intermediate = 64,
          .input_scale = true};
}
const DialectRow& row_of(Dialect dialect) { return *find_row(dialect, WeightFormat::nvfp4); }

class Fix : public ::testing::Test {
 protected:
  void write(const Tensors& tensors) {
    std::filesystem::create_directory(folder_ / "in");
    write_safetensors(folder_ / "in/model.safetensors", tensors);
  }
  Result<FixReport> run(std::vector<FixPolicy> policies) {
    return fix(folder_ / "in", folder_ / "out", {.policies = std::move(policies)});
  }
  // The expert as the repaired checkpoint gives it.
  void with_expert(std::uint64_t expert, const std::function<void(const ExpertView&)>& look) {
    const auto checkpoint = Checkpoint::open(folder_ / "out");
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    ExpertReader reader(*checkpoint, {});
    const auto view = reader.read(0, expert);
    ASSERT_TRUE(view) << text(view.why());
    look(*view);
  }
  TemporaryFolder folder_{};
};

TEST_F(Fix, FillsInputScalesWithTheLargestOfTheSameInput) {
  const Model model = small();
  for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors}) {
    const std::string part(row_of(dialect).parts.input_scale);
    Tensors tensors = tensors_of(model, row_of(dialect));
    erase_tensor(tensors, kExpert + "up_proj" + part);
    find_tensor(tensors, kExpert + "gate_proj" + part).bytes = f32({0});
    find_tensor(tensors, kExpert + "down_proj" + part).bytes =
        f32({std::numeric_limits<float>::quiet_NaN()});
    write(tensors);
    EXPECT_EQ(lint(folder_ / "in").errors, 3u);
    const auto report = run({FixPolicy::fill_input_scale});
    ASSERT_TRUE(report) << text(report.why());
    EXPECT_EQ(report->changes.size(), 3u);
    EXPECT_EQ(lint(folder_ / "out").findings.size(), 0u);
    with_expert(1, [&](const ExpertView& view) {
      EXPECT_EQ(view.gate.input_scale, model.input(2, Projection::gate));
      EXPECT_EQ(view.up.input_scale, model.input(2, Projection::up));
      EXPECT_EQ(view.down.input_scale, model.input(2, Projection::down));
    });
    with_expert(0, [&](const ExpertView& view) {
      EXPECT_EQ(view.up.input_scale, model.input(0, Projection::up));
    });
    std::filesystem::remove_all(folder_ / "out");
  }
}

TEST_F(Fix, RefusesToInventAnInputScale) {
  Tensors tensors = tensors_of(small(), row_of(Dialect::modelopt));
  for (int expert = 0; expert < 3; ++expert) {
    find_tensor(tensors,
                "model.layers.0.mlp.experts." + std::to_string(expert) + ".down_proj.input_scale")
        .bytes = f32({0});
  }
  write(tensors);
  EXPECT_EQ(run({FixPolicy::fill_input_scale}).why().id, "fix.source");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(Fix, FillsInputScalesOfGguf) {
  const Model model = small();
  Tensors tensors = gguf_tensors(model, "blk.0.");
  find_tensor(tensors, "blk.0.ffn_up_exps.input_scale").bytes = f32({0.5f, 0, 0.25f});
  write_gguf(folder_ / "in.gguf", tensors, {});
  const auto report =
      fix(folder_ / "in.gguf", folder_ / "out.gguf", {.policies = {FixPolicy::fill_input_scale}});
  ASSERT_TRUE(report) << text(report.why());
  const auto checkpoint = Checkpoint::open(folder_ / "out.gguf");
  ASSERT_TRUE(checkpoint) << text(checkpoint.why());
  ExpertReader reader(*checkpoint, {});
  EXPECT_EQ(reader.read(0, 1)->up.input_scale, 0.5f);
  EXPECT_EQ(reader.read(0, 2)->up.input_scale, 0.25f);
}

TEST_F(Fix, DropsInputScalesAndTellsTheConfiguration) {
  write(tensors_of(small(), row_of(Dialect::modelopt)));
  write_text(folder_ / "in/config.json",
             R"({"hidden_size": 64, "quantization_config": {"quant_method": "modelopt",
                 "quant_algo": "NVFP4", "config_groups": {"group_0": {"input_activations":
                 {"num_bits": 4}, "weights": {"num_bits": 4}}}}})");
  const auto report = run({FixPolicy::drop_input_scale});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->changes.size(), 10u);  // nine scales and the configuration
  const LintReport after = lint(folder_ / "out");
  EXPECT_EQ(after.errors + after.warnings, 0u);
  EXPECT_EQ(after.counts.count("scale.input_none"), 1u);
  const auto config = parse_json(read_text(folder_ / "out/config.json"));
  ASSERT_TRUE(config);
  const Json& quantization = (*config)["quantization_config"];
  EXPECT_EQ(quantization["quant_algo"], "W4A16_NVFP4");
  EXPECT_TRUE(quantization["config_groups"]["group_0"]["input_activations"].is_null());
  EXPECT_TRUE(quantization["config_groups"]["group_0"]["weights"].is_object());
}

TEST_F(Fix, DoesNotRewriteAConfigurationItWouldDamage) {
  write(tensors_of(small(), row_of(Dialect::modelopt)));
  write_text(folder_ / "in/config.json", R"({"time_step_limit": [0.0, Infinity],
      "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}})");
  EXPECT_EQ(run({FixPolicy::drop_input_scale}).why().id, "config.python_numbers");
}

TEST_F(Fix, DestroysNoWeightsUnlessForced) {
  Tensors tensors = tensors_of(small(), row_of(Dialect::modelopt));
  find_tensor(tensors, kExpert + "up_proj.weight_scale_2").bytes = f32({3000.0f});
  write(tensors);
  const auto refused = run({FixPolicy::reconcile_global_scale});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "fix.harm");
  EXPECT_NE(refused.why().remedy.find("invert-global-scale"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  const auto forced = fix(folder_ / "in", folder_ / "out",
                          {.policies = {FixPolicy::reconcile_global_scale}, .force = true});
  ASSERT_TRUE(forced) << text(forced.why());
  EXPECT_GT(forced->worst_relative_change, kMaxRelativeChange);
}

TEST_F(Fix, ReconcilesExactlyWhereTheRatioIsAPowerOfTwo) {
  const Model model = small();
  for (const Dialect dialect : {Dialect::modelopt, Dialect::compressed_tensors}) {
    const DialectRow& row = row_of(dialect);
    const bool divides = row.global_scale == GlobalScale::divides;
    Tensors tensors = tensors_of(model, row);
    const float larger = 4 * model.global(1, Projection::gate);
    find_tensor(tensors, kExpert + "up_proj" + std::string(row.parts.global_scale)).bytes =
        f32({divides ? 1 / larger : larger});
    write(tensors);
    const auto report = run({FixPolicy::reconcile_global_scale});
    ASSERT_TRUE(report) << text(report.why());
    EXPECT_EQ(report->changes.size(), 2u);
    EXPECT_EQ(report->rescaled_scales, 64u * 4);
    EXPECT_EQ(report->rounded_scales, 0u);
    EXPECT_EQ(report->worst_relative_change, 0.0);
    EXPECT_EQ(lint(folder_ / "out").findings.size(), 0u);
    with_expert(1, [&](const ExpertView& view) {
      EXPECT_EQ(view.gate.global_scale, larger);
      EXPECT_EQ(view.up.global_scale, larger);
      for (std::uint64_t r = 0; r < 64; ++r) {
        for (std::uint64_t b = 0; b < 4; ++b) {
          const auto code = [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); };
          EXPECT_EQ(formats::E4m3fn::decode(code(view.gate.scales.row(r)[b])) * 4,
                    formats::E4m3fn::decode(code(model.scale(1, Projection::gate, r, b))));
          EXPECT_EQ(view.up.scales.row(r)[b], model.scale(1, Projection::up, r, b));
        }
      }
    });
    std::filesystem::remove_all(folder_ / "out");
  }
}

TEST_F(Fix, ReportsTheWorstRoundingWhenTheRatioIsOdd) {
  Tensors tensors = tensors_of(small(), row_of(Dialect::modelopt));
  const float gate = small().global(1, Projection::gate);
  find_tensor(tensors, kExpert + "up_proj.weight_scale_2").bytes = f32({1.37f * gate});
  write(tensors);
  const auto report = run({FixPolicy::reconcile_global_scale});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_GT(report->rounded_scales, 0u);
  EXPECT_GT(report->worst_relative_change, 0.0);
  EXPECT_LE(report->worst_relative_change, 1.0 / 16);  // half a step of E4M3's normal range
  EXPECT_NE(report->changes[1].what.find("rounded"), std::string::npos);
}

TEST_F(Fix, InvertsBeforeItReconciles) {
  Tensors tensors = tensors_of(small(), row_of(Dialect::modelopt));
  const float gate = small().global(1, Projection::gate);
  find_tensor(tensors, kExpert + "gate_proj.weight_scale_2").bytes = f32({1 / gate});
  write(tensors);
  EXPECT_EQ(lint(folder_ / "in").counts.count("scale.global_inverted"), 1u);
  const auto report = run({FixPolicy::reconcile_global_scale, FixPolicy::invert_global_scale});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(report->changes.size(), 1u);
  EXPECT_EQ(lint(folder_ / "out").findings.size(), 0u);
  with_expert(1, [&](const ExpertView& view) { EXPECT_EQ(view.gate.global_scale, gate); });
}

TEST_F(Fix, WritesTheIndexAgain) {
  write(tensors_of(small(), row_of(Dialect::modelopt)));
  const auto report = run({FixPolicy::total_size});
  ASSERT_TRUE(report) << text(report.why());
  EXPECT_EQ(lint(folder_ / "out").findings.size(), 0u);
}

TEST_F(Fix, RefusesWhatMakesNoSense) {
  write(tensors_of(small(), row_of(Dialect::modelopt)));
  EXPECT_EQ(run({FixPolicy::fill_input_scale, FixPolicy::drop_input_scale}).why().id,
            "fix.policies");
  EXPECT_EQ(run({FixPolicy::fill_input_scale}).why().id, "fix.nothing");
  EXPECT_EQ(run({FixPolicy::invert_global_scale}).why().id, "fix.nothing");
  EXPECT_FALSE(fix("/does/not/exist", folder_ / "out", {.policies = {FixPolicy::total_size}}));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));

  Model model = small();
  model.format = WeightFormat::mxfp4;
  model.input_scale = false;
  write(tensors_of(model, *find_row(Dialect::quark, model.format)));
  EXPECT_EQ(run({FixPolicy::reconcile_global_scale}).why().id, "fix.dialect");
  EXPECT_EQ(run({FixPolicy::invert_global_scale}).why().id, "fix.dialect");
  write_gguf(folder_ / "a.gguf", gguf_tensors(small(), "blk.0."), {});
  for (const FixPolicy policy : {FixPolicy::reconcile_global_scale, FixPolicy::total_size}) {
    EXPECT_EQ(fix(folder_ / "a.gguf", folder_ / "b.gguf", {.policies = {policy}}).why().id,
              "fix.dialect");
  }
}

TEST(FixPolicies, HaveNames) {
  for (const FixPolicyRow& row : fix_policies()) {
    EXPECT_EQ(fix_policy_from_name(row.name), row.policy);
    EXPECT_EQ(name(row.policy), row.name);
  }
  EXPECT_EQ(fix_policy_from_name("everything"), std::nullopt);
}

TEST(Rescale, RoundsToTheNearestScaleAndCountsWhatItRounds) {
  for (unsigned code = 0; code < 0x7F; ++code) {
    for (const double ratio : {1.0, 0.5, 0.3, 0x1p-20}) {
      std::byte scale{static_cast<unsigned char>(code)};
      const Rescaled result = rescale_e4m3({&scale, 1}, ratio);
      const double wanted =
          static_cast<double>(formats::E4m3fn::decode(static_cast<std::uint8_t>(code))) * ratio;
      const double got =
          static_cast<double>(formats::E4m3fn::decode(std::to_integer<std::uint8_t>(scale)));
      EXPECT_EQ(result.rounded, got == wanted ? 0u : 1u);
      for (unsigned other = 0; other < 0x7F; ++other) {
        const double there =
            static_cast<double>(formats::E4m3fn::decode(static_cast<std::uint8_t>(other)));
        EXPECT_LE(std::abs(got - wanted), std::abs(there - wanted) * (1 + 1e-6));
      }
    }
  }
}

}  // namespace fix_test
}  // namespace fp4moe::checkpoint
