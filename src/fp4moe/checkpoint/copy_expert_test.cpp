#include "fp4moe/checkpoint/copy_expert.hpp"

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "support/canonical_expert.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace copy_expert_test {

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

void expect_expert(const CanonicalExpert& expert, const Model& model, std::uint64_t e,
                   Range range) {
  const std::uint64_t code_row = model.hidden / 2, scale_row = model.hidden / model.block();
  for (std::uint64_t row = 0; row < expert.view.shape.w13_rows(); ++row) {
    const auto [which, own] = source_row(expert.order, row, range.size());
    const std::uint64_t source = range.begin + own;
    ASSERT_EQ(to_bytes(std::span(expert.w13_codes).subspan(row * code_row, code_row)),
              model.code_row(e, which, source));
    ASSERT_EQ(to_bytes(std::span(expert.w13_scales).subspan(row * scale_row, scale_row)),
              model.scale_row(e, which, source));
    if (model.bias) {
      EXPECT_EQ(expert.w13_bias[row], model.bias_value(e, which, source));
    }
  }
  for (std::uint64_t row = 0; row < model.hidden; ++row) {
    const Bytes whole = model.code_row(e, Projection::down, row);
    const std::uint64_t bytes = range.size() / 2;
    ASSERT_EQ(to_bytes(std::span(expert.w2_codes).subspan(row * bytes, bytes)),
              Bytes(whole.begin() + static_cast<std::ptrdiff_t>(range.begin / 2),
                    whole.begin() + static_cast<std::ptrdiff_t>(range.end / 2)));
    if (model.bias) {
      EXPECT_EQ(expert.w2_bias[row],
                range.begin == 0 ? model.bias_value(e, Projection::down, row) : 0.0f);
    }
  }
}

TEST(CopyExpert, GivesTheSameFromEveryDialectInEitherOrder) {
  for (const DialectRow& row : dialects()) {
    if (!is_told_by_names(row)) continue;
    Model model{.format = row.format};
    model.bias = !row.parts.bias.empty();
    const TemporaryFolder folder;
    const auto checkpoint = Checkpoint::open(write_model(folder, model, row));
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    ExpertReader whole(*checkpoint, {}), part(*checkpoint, {.tensor_parallel = {1, 3}});
    for (const RowOrder order : {RowOrder::interleaved, RowOrder::halves}) {
      for (std::uint64_t e = 0; e < 3; ++e) {
        const auto expert = read_canonical(whole, 0, e, order);
        ASSERT_TRUE(expert) << text(expert.why());
        expect_expert(*expert, model, e, {0, 192});
      }
      const auto slice = read_canonical(part, 0, 2, order);
      ASSERT_TRUE(slice) << text(slice.why());
      EXPECT_EQ(slice->view.shape.intermediate, 64u);
      expect_expert(*slice, model, 2, {64, 128});
    }
  }
}

TEST(CopyExpert, HasOneOrderWithoutAGate) {
  const Model model{.format = WeightFormat::nvfp4, .gated = false};
  const TemporaryFolder folder;
  const auto checkpoint =
      Checkpoint::open(write_model(folder, model, *find_row(Dialect::modelopt, model.format)));
  ASSERT_TRUE(checkpoint);
  ExpertReader reader(*checkpoint, {});
  EXPECT_EQ(read_canonical(reader, 0, 0, RowOrder::halves).why().id, "moe_weights.order");
  const auto expert = read_canonical(reader, 0, 1, RowOrder::single);
  ASSERT_TRUE(expert);
  expect_expert(*expert, model, 1, {0, 192});
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

}  // namespace copy_expert_test
}  // namespace fp4moe::checkpoint
