#include "fp4moe/checkpoint/moe_weights.hpp"

#include <cmath>

#include <gtest/gtest.h>

#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace moe_weights_test {

using namespace testing;  // NOLINT: the test's own words
using tensor::testing::TemporaryFolder;

Bytes to_bytes(std::span<const std::byte> view) { return {view.begin(), view.end()}; }

// Row `row` of w13 in an order: which projection it is and which of its rows.
std::pair<Projection, std::uint64_t> source_row(RowOrder order, std::uint64_t row,
                                                std::uint64_t intermediate) {
  if (order == RowOrder::single) return {Projection::up, row};
  if (order == RowOrder::interleaved) {
    return {row % 2 == 0 ? Projection::gate : Projection::up, row / 2};
  }
  return {row < intermediate ? Projection::gate : Projection::up, row % intermediate};
}

void expect_weights(MoeWeights& weights, const Model& model, RowOrder order, Range range) {
  const std::uint64_t code_row = model.hidden / 2, scale_row = model.hidden / model.block();
  for (std::size_t i = 0; i < weights.experts.size(); ++i) {
    const ExpertTarget at = weights.expert(i);
    const std::uint64_t e = weights.experts[i];
    for (std::uint64_t row = 0; row < weights.shape.w13_rows(); ++row) {
      const auto [which, own] = source_row(order, row, range.size());
      const std::uint64_t source = range.begin + own;
      ASSERT_EQ(to_bytes(at.w13_codes.subspan(row * code_row, code_row)),
                model.code_row(e, which, source));
      ASSERT_EQ(to_bytes(at.w13_scales.subspan(row * scale_row, scale_row)),
                model.scale_row(e, which, source));
      if (model.bias) {
        EXPECT_EQ(at.w13_bias[row], model.bias_value(e, which, source));
      }
    }
    for (std::uint64_t row = 0; row < model.hidden; ++row) {
      const Bytes whole = model.code_row(e, Projection::down, row);
      const std::uint64_t bytes = range.size() / 2;
      ASSERT_EQ(to_bytes(at.w2_codes.subspan(row * bytes, bytes)),
                Bytes(whole.begin() + static_cast<std::ptrdiff_t>(range.begin / 2),
                      whole.begin() + static_cast<std::ptrdiff_t>(range.end / 2)));
      if (model.bias) {
        EXPECT_EQ(at.w2_bias[row],
                  range.begin == 0 ? model.bias_value(e, Projection::down, row) : 0.0f);
      }
    }
  }
}

TEST(MoeWeights, AreTheSameFromEveryDialectInEitherOrder) {
  for (const DialectRow& row : dialects()) {
    if (!is_told_by_names(row)) continue;
    Model model{.format = row.format};
    model.bias = !row.parts.bias.empty();
    const TemporaryFolder folder;
    const auto checkpoint = Checkpoint::open(write_model(folder, model, row));
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    for (const RowOrder order : {RowOrder::interleaved, RowOrder::halves}) {
      for (const std::size_t threads : {1u, 3u}) {
        auto whole = load_layer(*checkpoint, 0, {}, order, threads);
        ASSERT_TRUE(whole) << text(whole.why());
        EXPECT_EQ(whole->experts, (std::vector<std::uint64_t>{0, 1, 2}));
        expect_weights(*whole, model, order, {0, 192});
      }
      auto part = load_layer(*checkpoint, 0, {.tensor_parallel = {1, 3}, .expert_parallel = {1, 2}},
                             order, 2);
      ASSERT_TRUE(part) << text(part.why());
      EXPECT_EQ(part->experts, (std::vector<std::uint64_t>{2}));
      EXPECT_EQ(part->shape.intermediate, 64u);
      expect_weights(*part, model, order, {64, 128});
    }
  }
}

TEST(MoeWeights, CarryScalesOfEveryProjection) {
  const Model model{.format = WeightFormat::nvfp4, .input_scale = true};
  const TemporaryFolder folder;
  const auto checkpoint =
      Checkpoint::open(write_model(folder, model, *find_row(Dialect::modelopt, model.format)));
  ASSERT_TRUE(checkpoint);
  const auto weights = load_layer(*checkpoint, 0, {}, RowOrder::halves, 1);
  ASSERT_TRUE(weights);
  for (std::uint64_t e = 0; e < 3; ++e) {
    EXPECT_EQ(weights->w13_global_scales[2 * e], model.global(e, Projection::gate));
    EXPECT_EQ(weights->w13_global_scales[2 * e + 1], model.global(e, Projection::up));
    EXPECT_EQ(weights->w2_global_scales[e], model.global(e, Projection::down));
    EXPECT_EQ(weights->w13_input_scales[2 * e + 1], model.input(e, Projection::up));
    EXPECT_EQ(weights->w2_input_scales[e], model.input(e, Projection::down));
  }
  EXPECT_EQ(weights->bad_input_scales, 0u);
}

TEST(MoeWeights, MarkMissingInputScalesSoThatNobodyUsesThem) {
  const Model model{.format = WeightFormat::nvfp4, .input_scale = true};
  auto tensors = tensors_of(model, *find_row(Dialect::modelopt, model.format));
  erase_tensor(tensors, "model.layers.0.mlp.experts.1.up_proj.input_scale");
  find_tensor(tensors, "model.layers.0.mlp.experts.2.down_proj.input_scale").bytes = f32({0});
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint);
  const auto weights = load_layer(*checkpoint, 0, {}, RowOrder::halves, 1);
  ASSERT_TRUE(weights);
  EXPECT_EQ(weights->bad_input_scales, 2u);
  EXPECT_TRUE(std::isnan(weights->w13_input_scales[3]));
}

TEST(MoeWeights, WithoutAGateHaveOneOrder) {
  const Model model{.format = WeightFormat::nvfp4, .gated = false};
  const TemporaryFolder folder;
  const auto checkpoint =
      Checkpoint::open(write_model(folder, model, *find_row(Dialect::modelopt, model.format)));
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(load_layer(*checkpoint, 0, {}, RowOrder::halves, 1).why().id, "moe_weights.order");
  EXPECT_EQ(load_layer(*checkpoint, 1, {}, RowOrder::single, 1).why().id, "slice.layer");
  auto weights = load_layer(*checkpoint, 0, {}, RowOrder::single, 1);
  ASSERT_TRUE(weights);
  EXPECT_EQ(weights->w13_global_scales.size(), 3u);
  expect_weights(*weights, model, RowOrder::single, {0, 192});
}

TEST(MoeWeights, PassOnWhatTheReaderRefuses) {
  const Model model;
  auto tensors = tensors_of(model, *find_row(Dialect::gpt_oss, model.format));
  find_tensor(tensors, "model.layers.0.mlp.experts.down_proj_scales").bytes.back() = std::byte{255};
  const TemporaryFolder folder;
  write_safetensors(folder / "model.safetensors", tensors);
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint);
  EXPECT_EQ(load_layer(*checkpoint, 0, {}, RowOrder::halves, 2).why().id, "scale.nan");
  // The experts of another rank are whole.
  EXPECT_TRUE(load_layer(*checkpoint, 0, {.expert_parallel = {0, 2}}, RowOrder::halves, 2));
  EXPECT_EQ(load_layer(*checkpoint, 0, {.tensor_parallel = {5, 2}}, RowOrder::halves, 1).why().id,
            "slice.rank");
}

TEST(CopyExpert, ChecksTheMemoryItIsGiven) {
  const Model model;
  const TemporaryFolder folder;
  const auto checkpoint =
      Checkpoint::open(write_model(folder, model, *find_row(Dialect::gpt_oss, model.format)));
  ASSERT_TRUE(checkpoint);
  ExpertReader reader(*checkpoint, {});
  const auto view = reader.read(0, 0);
  ASSERT_TRUE(view);
  Bytes memory(100);
  EXPECT_EQ(copy_expert(*view, RowOrder::halves, {.w13_codes = memory}).why().id,
            "moe_weights.size");
  EXPECT_EQ(copy_expert(*view, RowOrder::single, {}).why().id, "moe_weights.order");
  // Parts that are not wanted are left out, and a second copy is the same.
  Bytes first(128 * 192 / 2), second(128 * 192 / 2);
  ASSERT_TRUE(copy_expert(*view, RowOrder::halves, {.w2_codes = first}));
  ASSERT_TRUE(copy_expert(*view, RowOrder::halves, {.w2_codes = second}));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, Bytes(128 * 192 / 2));
}

}  // namespace moe_weights_test
}  // namespace fp4moe::checkpoint
