// Experts in memory are the experts of the file, however they lie; what cannot be experts is
// refused.
#include "fp4moe/checkpoint/layer_weights_view.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/stacked_weights.hpp"
#include "support/tiny_model.hpp"

namespace fp4moe::checkpoint {
namespace layer_weights_view_test {

using tensor::testing::TemporaryFolder;
using testing::Arrangement;
using testing::kArrangements;
using testing::Model;
using testing::StackedWeights;

constexpr Projection kEach[] = {Projection::gate, Projection::up, Projection::down};

// gpt-oss with biases, and ModelOpt with input scales.
struct Source {
  TemporaryFolder folder{};
  Checkpoint checkpoint;

  explicit Source(WeightFormat format) : checkpoint(open(folder, format)) {}
  static Checkpoint open(const TemporaryFolder& folder, WeightFormat format) {
    const bool mxfp4 = format == WeightFormat::mxfp4;
    const Model model{.format = format, .bias = mxfp4, .input_scale = !mxfp4};
    const DialectRow& row = mxfp4
                                ? testing::row_for(Dialect::gpt_oss, format, Grouping::fused)
                                : testing::row_for(Dialect::modelopt, format, Grouping::per_expert);
    auto opened = Checkpoint::open(testing::write_model(folder, model, row));
    EXPECT_TRUE(opened) << text(opened.why());
    return std::move(*opened);
  }
};

void expect_same_rows(const RowsView& a, const RowsView& b) {
  ASSERT_EQ(a.rows, b.rows);
  ASSERT_EQ(a.row_bytes, b.row_bytes);
  for (std::uint64_t row = 0; row < a.rows; ++row)
    ASSERT_TRUE(std::ranges::equal(a.row(row), b.row(row))) << row;
}

void expect_same(const ExpertView& a, const ExpertView& b) {
  EXPECT_EQ(a.shape.intermediate, b.shape.intermediate);
  EXPECT_EQ(a.shape.has_bias, b.shape.has_bias);
  EXPECT_EQ(a.shape.has_input_scale, b.shape.has_input_scale);
  for (const Projection which : kEach) {
    SCOPED_TRACE(static_cast<int>(which));
    expect_same_rows(a.at(which).codes, b.at(which).codes);
    expect_same_rows(a.at(which).scales, b.at(which).scales);
    EXPECT_EQ(a.at(which).global_scale, b.at(which).global_scale);
    EXPECT_EQ(a.at(which).input_scale, b.at(which).input_scale);
    const BiasView &one = a.at(which).bias, &other = b.at(which).bias;
    ASSERT_EQ(one.size, other.size);
    for (std::uint64_t i = 0; i < one.size; ++i)
      ASSERT_EQ(std::memcmp(one.data + i * one.stride, other.data + i * other.stride, 2), 0) << i;
  }
}

TEST(LayerWeightsView, GivesTheExpertsOfTheFileHoweverTheyLie) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const Source source(format);
    for (const Arrangement arrangement : kArrangements)
      for (const std::uint64_t gap : {0, 5}) {
        const StackedWeights memory(source.checkpoint, arrangement, gap);
        const LayerWeightsView view = memory.view();
        ExpertReader reader(source.checkpoint, {});
        for (std::uint64_t e = 0; e < view.shape().experts; ++e) {
          const auto mine = view.expert(e);
          const auto theirs = reader.read(0, e);
          ASSERT_TRUE(mine && theirs);
          expect_same(*mine, *theirs);
          EXPECT_EQ(view.input_scale(Projection::down, e), theirs->down.input_scale);
        }
      }
  }
}

TEST(LayerWeightsView, IsCutForRanksAsTheFileIs) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const Source source(format);
    const auto rule = split_rule(source.checkpoint, source.checkpoint.layers()[0]);
    for (const Arrangement arrangement : kArrangements)
      for (const std::uint64_t rank : {0u, 1u}) {
        const Slice slice{.tensor_parallel = {rank, 2}};
        const StackedWeights all(source.checkpoint, arrangement, 5);
        const StackedWeights part(source.checkpoint, arrangement, 0, slice);
        const auto cut = all.view().slice(slice.tensor_parallel, rule, 192);
        const auto kept = part.view().slice(slice.tensor_parallel, rule, 192);
        ASSERT_TRUE(cut && kept);
        ExpertReader reader(source.checkpoint, slice);
        const auto expected = reader.read(0, 2);
        ASSERT_TRUE(expected);
        EXPECT_EQ(cut->shape().intermediate, 96u);
        expect_same(*cut->expert(2), *expected);
        expect_same(*kept->expert(2), *expected);
      }
  }
}

TEST(LayerWeightsView, RefusesASliceThatIsNeitherTheLayerNorTheRanks) {
  const Source source(WeightFormat::mxfp4);
  const StackedWeights memory(source.checkpoint, Arrangement::halves);
  const LayerWeightsView view = memory.view();
  EXPECT_EQ(view.slice({0, 4}, SplitRule::equal, 1024).why().id, "weights.slice");
  EXPECT_EQ(view.slice({6, 7}, SplitRule::ceil_blocks, 192).why().id, "slice.empty");
  EXPECT_EQ(view.slice({0, 5}, SplitRule::equal, 192).why().id, "slice.uneven");
  EXPECT_EQ(view.slice({5, 5}, SplitRule::equal, 192).why().id, "slice.rank");
}

TEST(LayerWeightsView, WithoutAGateW13AndUpAreTheSame) {
  const std::vector<std::byte> codes(2 * 32 * 32, std::byte{0x21}), scales(2 * 32 * 2);
  const std::vector<std::byte> w2(2 * 64 * 16, std::byte{0x43}), w2_scales(2 * 64);
  LayerWeights given{.shape = {.experts = 2, .hidden = 64, .intermediate = 32}};
  given.shape.order = RowOrder::single;
  given.w2 = {.codes = {w2}, .scales = {w2_scales}};
  for (MatrixWeights LayerWeights::*const place : {&LayerWeights::w13, &LayerWeights::up}) {
    LayerWeights one = given;
    one.*place = {.codes = {codes}, .scales = {scales}};
    const auto view = LayerWeightsView::make(one);
    ASSERT_TRUE(view) << text(view.why());
    EXPECT_FALSE(view->shape().has_bias);
    const auto expert = view->expert(1);
    ASSERT_TRUE(expert);
    EXPECT_EQ(expert->up.codes.data, codes.data() + 32 * 32);
    EXPECT_EQ(expert->gate.codes.data, nullptr);
    EXPECT_EQ(expert->down.codes.row_bytes, 16u);
    EXPECT_EQ(view->expert(2).why().id, "slice.expert");
    one.gate = one.*place;
    EXPECT_EQ(LayerWeightsView::make(one).why().id, "weights.given");
  }
  EXPECT_EQ(LayerWeightsView::make(given).why().id, "weights.missing");
}

TEST(LayerWeightsView, ReadsOneScaleForAllOneForEachOrTwo) {
  const Source source(WeightFormat::nvfp4);
  StackedWeights memory(source.checkpoint, Arrangement::halves);
  const auto globals = [&](std::vector<float> numbers) {
    memory.w13.globals = std::move(numbers);
    const auto expert = memory.view().expert(1);
    EXPECT_TRUE(expert) << text(expert.why());
    return std::vector<float>{expert->gate.global_scale, expert->up.global_scale};
  };
  using Floats = std::vector<float>;
  EXPECT_EQ(globals({5}), (Floats{5, 5}));
  EXPECT_EQ(globals({1, 2, 3}), (Floats{2, 2}));
  EXPECT_EQ(globals({1, 2, 3, 4, 5, 6}), (Floats{3, 4}));
  memory.w13.inputs = {7};
  EXPECT_EQ(memory.view().input_scale(Projection::up, 2), 7.0f);
}

class WrongWeights : public ::testing::Test {
 protected:
  Source source{WeightFormat::nvfp4};
  StackedWeights memory{source.checkpoint, Arrangement::interleaved};
  LayerWeights given = memory.given();

  std::string id() const {
    const auto view = LayerWeightsView::make(given);
    return view ? "ok" : view.why().id;
  }
};

TEST_F(WrongWeights, HaveShapesThatNoLayerHas) {
  EXPECT_EQ(id(), "ok");
  given.shape.experts = 0;
  EXPECT_EQ(id(), "weights.shape");
  given = memory.given();
  given.shape.hidden = 0;
  EXPECT_EQ(id(), "weights.shape");
  given.shape.hidden = 24;  // not whole blocks
  EXPECT_EQ(id(), "weights.shape");
  given = memory.given();
  given.shape.intermediate = std::uint64_t{1} << 60;
  given.shape.experts = std::uint64_t{1} << 60;
  EXPECT_EQ(id(), "weights.shape");
}

TEST_F(WrongWeights, AreMissingOrTooMany) {
  given.w2.codes = {};
  EXPECT_EQ(id(), "weights.missing");
  given = memory.given();
  given.w13 = {};
  EXPECT_EQ(id(), "weights.missing");
  given = memory.given();
  given.w13.scales.bytes = {static_cast<const std::byte*>(nullptr), given.w13.scales.bytes.size()};
  EXPECT_EQ(id(), "weights.missing");
  given = memory.given();
  given.w13.global_scales = {};
  EXPECT_EQ(id(), "weights.missing");
  given = memory.given();
  given.up = given.w13;
  EXPECT_EQ(id(), "weights.given");
  given = memory.given();
  given.gate.input_scales = given.w13.input_scales;
  EXPECT_EQ(id(), "weights.given") << "a part of a part";
  given = memory.given();
  given.gate = given.w13;
  given.w13 = {};
  EXPECT_EQ(id(), "weights.size") << "w13 is twice a gate";
  const Source other(WeightFormat::mxfp4);
  const StackedWeights mxfp4(other.checkpoint, Arrangement::interleaved);
  given = mxfp4.given();
  given.w2.global_scales = memory.w2.globals;
  EXPECT_EQ(id(), "weights.given");
}

TEST_F(WrongWeights, HaveOtherSizes) {
  for (StackedRows MatrixWeights::*const part : {&MatrixWeights::codes, &MatrixWeights::scales})
    for (MatrixWeights LayerWeights::*const matrix : {&LayerWeights::w13, &LayerWeights::w2}) {
      given = memory.given();
      auto& bytes = (given.*matrix.*part).bytes;
      bytes = bytes.first(bytes.size() - 1);
      EXPECT_EQ(id(), "weights.size");
    }
  given = memory.given();
  given.shape.experts = 2;  // memory of more
  EXPECT_EQ(id(), "weights.size");
  given = memory.given();
  given.w13.global_scales = given.w13.global_scales.first(4);
  EXPECT_EQ(id(), "weights.size");
  given = memory.given();
  given.w2.input_scales = given.w2.input_scales.first(2);
  EXPECT_EQ(id(), "weights.size");
}

TEST_F(WrongWeights, HaveStridesThatDoNotFit) {
  given.w2.codes.row_stride = 96;
  EXPECT_EQ(id(), "ok") << "the dense distance, said aloud";
  given.w2.codes.row_stride = 95;
  EXPECT_EQ(id(), "weights.stride");
  given.w2.codes.row_stride = 97;
  EXPECT_EQ(id(), "weights.size");
  given.w2.codes.row_stride = std::numeric_limits<std::uint64_t>::max() / 2;
  EXPECT_EQ(id(), "weights.stride");
  given.w2.codes.row_stride = 96;
  given.w2.codes.expert_stride = 1;
  EXPECT_EQ(id(), "weights.stride");
  given.w2.codes.expert_stride = std::numeric_limits<std::uint64_t>::max() - 7;
  EXPECT_EQ(id(), "weights.size");
}

TEST_F(WrongWeights, HaveBiasesOfOtherTypes) {
  const std::vector<float> bias(3 * 384);
  given.w13.bias = {std::as_bytes(std::span(bias)), tensor::DType::f32};
  EXPECT_EQ(id(), "ok") << "w2 may be without";
  given.w13.bias.dtype = tensor::DType::f64;
  EXPECT_EQ(id(), "weights.bias");
  given.w13.bias.dtype = tensor::DType::bf16;
  EXPECT_EQ(id(), "weights.size");
  given.w13.bias.dtype = tensor::DType::f32;
  given.w2.bias = {std::as_bytes(std::span(bias)).first(3 * 128 * 2), tensor::DType::f16};
  EXPECT_EQ(id(), "weights.bias") << "two types";
}

TEST_F(WrongWeights, HaveScalesThatScaleNothing) {
  memory.w13.scales[1] = std::byte{0x7F};
  const auto nan = memory.view().expert(0);
  ASSERT_FALSE(nan);
  EXPECT_EQ(nan.why().id, "scale.nan");
  EXPECT_NE(nan.why().found.find("row 0, block 1"), std::string::npos) << nan.why().found;
  EXPECT_TRUE(memory.view().expert(1)) << "another expert's";
  for (const float bad : {0.0f, -1.0f, std::nanf(""), INFINITY}) {
    memory.w2.globals[1] = bad;
    EXPECT_EQ(memory.view().expert(1).why().id, "scale.global") << bad;
  }
}

}  // namespace layer_weights_view_test
}  // namespace fp4moe::checkpoint
