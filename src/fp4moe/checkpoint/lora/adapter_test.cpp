// Adapters of every form against PEFT's own definition of the change; slices.
#include "fp4moe/checkpoint/lora/adapter.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "fp4moe/checkpoint/synth/synth_adapter.hpp"
#include "support/tiny_adapter.hpp"

namespace fp4moe::checkpoint {
namespace adapter_test {

using namespace testing;  // NOLINT(google-build-using-namespace): helpers of this test alone

TEST(Adapter, ReadsAModuleForEachExpertInThreeTypes) {
  for (const auto& words :
       {std::array{"gate_proj", "up_proj", "down_proj"}, std::array{"w1", "w3", "w2"}}) {
    Files files;
    for (std::uint64_t e = 0; e < kExperts; ++e) {
      const std::string stem = fmt::format("{}experts.{}.", kPrefix, e);
      files.pair(stem + words[0], {kRank, kHidden}, {kInner, kRank});
      files.pair(stem + words[1], {kRank, kHidden}, {kInner, kRank});
      files.pair(stem + words[2], {kRank, kInner}, {kHidden, kRank});
      files.types[kRoot + stem + words[0] + ".lora_A.weight"] = DType::f32;
      files.types[kRoot + stem + words[1] + ".lora_B.weight"] = DType::f16;
    }
    const auto adapter = files.open();
    ASSERT_TRUE(adapter) << text(adapter.why());
    expect_change(
        *adapter,
        [&](std::uint64_t e, Projection which, std::uint64_t n, std::uint64_t c) {
          const std::string module =
              fmt::format("{}experts.{}.{}", kPrefix, e, words[static_cast<std::size_t>(which)]);
          const TestFactor &a = files.a(module), &b = files.b(module);
          double sum = 0;
          for (std::uint64_t k = 0; k < kRank; ++k)
            sum += b.at(n * kRank + k) * a.at(k * a.shape[1] + c);
          return sum;
        },
        2);
  }
}

// torch.einsum("o r e, e r i -> e o i", B.reshape(out, r, E), A.reshape(E, r, in)) for a weight
// [E, out, in], and "-> e i o" for [E, in, out].
double folded(const TestFactor& a, const TestFactor& b, std::uint64_t e, std::uint64_t o,
              std::uint64_t i) {
  double sum = 0;
  for (std::uint64_t k = 0; k < kRank; ++k)
    sum += b.at((o * kRank + k) * kExperts + e) * a.at((e * kRank + k) * a.shape[1] + i);
  return sum;
}

void check_wrapped(bool swapped, RowOrder order) {
  SCOPED_TRACE(fmt::format("swapped {} {}", swapped, name(order)));
  Files files;
  const std::string outer = kPrefix + "experts", inner = outer + ".base_layer";
  constexpr std::uint64_t kRanks = kRank * kExperts;
  if (swapped) {
    files.pair(inner, {kRanks, 2 * kInner}, {kHidden, kRanks});
    files.pair(outer, {kRanks, kHidden}, {kInner, kRanks});
  } else {
    files.pair(inner, {kRanks, kHidden}, {2 * kInner, kRanks});
    files.pair(outer, {kRanks, kInner}, {kHidden, kRanks});
  }
  const auto adapter = files.open(target_of(order));
  ASSERT_TRUE(adapter) << text(adapter.why());
  expect_change(
      *adapter,
      [&](std::uint64_t e, Projection which, std::uint64_t n, std::uint64_t c) {
        const bool down = which == Projection::down;
        const std::string& module = down ? outer : inner;
        std::uint64_t row = n;
        if (!down && order == RowOrder::interleaved) row = 2 * n + (which == Projection::up);
        if (!down && order == RowOrder::halves) row = n + (which == Projection::up ? kInner : 0);
        return swapped ? folded(files.a(module), files.b(module), e, c, row)
                       : folded(files.a(module), files.b(module), e, row, c);
      },
      2);
}

TEST(Adapter, UnfoldsWrappedParametersAsPeftDoes) {
  for (const bool swapped : {false, true})
    for (const RowOrder order : {RowOrder::interleaved, RowOrder::halves})
      check_wrapped(swapped, order);
}

TEST(Adapter, ASquareDownMatrixFollowsItsGateAndUp) {
  // gpt-oss: hidden and intermediate sizes are equal, so that only gate_up shows the order.
  for (const bool swapped : {false, true}) {
    Files files;
    AdapterTarget target = target_of();
    target.shape.intermediate = kHidden;
    const std::string outer = kPrefix + "experts";
    constexpr std::uint64_t kRanks = kRank * kExperts;
    if (swapped) {
      files.pair(outer + ".base_layer", {kRanks, 2 * kHidden}, {kHidden, kRanks});
    } else {
      files.pair(outer + ".base_layer", {kRanks, kHidden}, {2 * kHidden, kRanks});
    }
    files.pair(outer, {kRanks, kHidden}, {kHidden, kRanks});
    const auto adapter = files.open(target);
    ASSERT_TRUE(adapter) << text(adapter.why());
    const LowRankPlace& down = adapter->place(0, Projection::down, 1);
    EXPECT_TRUE(down.a.tensor->entry.name.ends_with(swapped ? "lora_B.weight" : "lora_A.weight"));
  }
}

TEST(Adapter, WithoutAGateTheWrappersNestingDecides) {
  Files files;
  AdapterTarget target = target_of(RowOrder::single);
  constexpr std::uint64_t kRanks = kRank * kExperts;
  files.pair(kPrefix + "experts.base_layer", {kRanks, kHidden}, {kInner, kRanks});
  files.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
  const auto adapter = files.open(target);
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_NE(adapter->place(0, Projection::up, 2).a.tensor->entry.name.find("base_layer"),
            std::string::npos);
  EXPECT_EQ(adapter->place(0, Projection::down, 2).a.columns, kInner);

  Files alone;
  alone.config["target_parameters"] = {"experts.down_proj"};
  alone.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
  const auto one = alone.open(target);
  ASSERT_TRUE(one) << text(one.why());
  EXPECT_TRUE(one->place(0, Projection::up, 0).empty());
  EXPECT_FALSE(one->place(0, Projection::down, 0).empty());
}

TEST(Adapter, ReadsStackedTensorsAndFactorsThatAllExpertsShare) {
  for (const std::uint64_t common : {std::uint64_t{1}, kExperts}) {
    Files files;
    const std::string w13 = kPrefix + "experts.gate_up_proj", w2 = kPrefix + "experts.w2";
    files.pair(w13, {common, kRank, kHidden}, {kExperts, 2 * kInner, kRank});
    files.pair(w2, {kExperts, kRank, kInner}, {common, kHidden, kRank});
    const auto adapter = files.open();
    ASSERT_TRUE(adapter) << text(adapter.why());
    expect_change(
        *adapter,
        [&](std::uint64_t e, Projection which, std::uint64_t n, std::uint64_t c) {
          const bool down = which == Projection::down;
          const TestFactor &a = files.a(down ? w2 : w13), &b = files.b(down ? w2 : w13);
          const std::uint64_t row = down ? n : 2 * n + (which == Projection::up);
          double sum = 0;
          for (std::uint64_t k = 0; k < kRank; ++k)
            sum += b.at(((b.shape[0] == 1 ? 0 : e) * b.shape[1] + row) * kRank + k) *
                   a.at(((a.shape[0] == 1 ? 0 : e) * kRank + k) * a.shape[2] + c);
          return sum;
        },
        2);
    const auto loaded = LoraAdapter::load(*adapter, 0, {});
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->at(Projection::gate, 0).a.data, loaded->at(Projection::up, 0).a.data);
    EXPECT_EQ(loaded->at(Projection::down, 0).b.data == loaded->at(Projection::down, 2).b.data,
              common == 1);
  }
}

TEST(Adapter, ReadsLinearModulesInListsAndPartsOfALayer) {
  Files files;
  files.pair(kPrefix + "experts.gate_up_projs.1", {kRank, kHidden}, {2 * kInner, kRank});
  files.pair("model.layers.5.self_attn.q_proj", {kRank, 8}, {8, kRank});
  const auto adapter = files.open();
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_FALSE(adapter->touches(0, 0));
  EXPECT_TRUE(adapter->touches(0, 1));
  EXPECT_EQ(adapter->place(0, Projection::up, 1).b.first, kRank);  // interleaved rows
  EXPECT_TRUE(adapter->place(0, Projection::down, 1).empty());
  ASSERT_EQ(adapter->other_modules().size(), 1u);
  EXPECT_EQ(adapter->other_modules()[0], "model.layers.5.self_attn.q_proj");
}

TEST(Adapter, ScalesByAlphaAndRankOncePerModule) {
  Files files;
  const std::string gate = kPrefix + "experts.0.gate_proj", up = kPrefix + "experts.0.up_proj";
  files.pair(gate, {kRank, kHidden}, {kInner, kRank});
  files.pair(up, {16, kHidden}, {kInner, 16});
  files.config["rank_pattern"] = {{"experts.\\d+.up_proj", 16}};
  files.config["alpha_pattern"] = {{"up_proj", 32}, {"gate", 99}};
  auto adapter = files.open();
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_EQ(adapter->place(0, Projection::gate, 0).scale, 2.0f);
  EXPECT_EQ(adapter->place(0, Projection::up, 0).scale, 2.0f);
  files.config["use_rslora"] = true;
  adapter = files.open();
  ASSERT_TRUE(adapter) << text(adapter.why());
  EXPECT_EQ(adapter->place(0, Projection::gate, 0).scale, 4.0f);
  EXPECT_EQ(adapter->place(0, Projection::up, 0).scale, 8.0f);
}

TEST(Adapter, FindsLayersByPrefixThenByNumber) {
  Files files;
  files.pair("language_model.model.layers.5.mlp.experts.0.up_proj", {kRank, kHidden},
             {kInner, kRank});
  EXPECT_TRUE(files.open());
  files.write();
  AdapterTarget other = target_of();
  other.prefix = "mtp.layers.5.mlp.";
  const auto two = Adapter::open(files.folder.path(), {target_of(), other});
  ASSERT_FALSE(two);
  EXPECT_EQ(two.why().id, "adapter.layer");
  other.prefix = "language_model.model.layers.5.mlp.";
  const auto exact = Adapter::open(files.folder.path(), {target_of(), other});
  ASSERT_TRUE(exact) << text(exact.why());
  EXPECT_FALSE(exact->touches(0));
  EXPECT_TRUE(exact->touches(1));
}

// Slices put together give the whole.
void check_slices(const Adapter& adapter, std::uint64_t tensor_ranks, std::uint64_t expert_ranks,
                  bool fully_sharded) {
  SCOPED_TRACE(fmt::format("tp {} ep {} {}", tensor_ranks, expert_ranks, fully_sharded));
  const auto whole = LoraAdapter::load(adapter, 0, {});
  ASSERT_TRUE(whole);
  const AdapterTarget& target = adapter.targets()[0];
  std::vector<std::uint64_t> seen;
  for (std::uint64_t ep = 0; ep < expert_ranks; ++ep) {
    std::uint64_t row = 0;
    for (std::uint64_t tp = 0; tp < tensor_ranks; ++tp) {
      const LoraCut cut{.slice = {.tensor_parallel = {tp, tensor_ranks},
                                  .expert_parallel = {ep, expert_ranks},
                                  .placement = Placement::round_robin},
                        .fully_sharded = fully_sharded};
      const auto part = LoraAdapter::load(adapter, 0, cut);
      ASSERT_TRUE(part) << text(part.why());
      std::uint64_t rows = 0;
      for (std::size_t i = 0; i < part->experts().size(); ++i) {
        if (tp == 0) seen.push_back(part->experts()[i]);
        const std::uint64_t e = part->experts()[i];
        const LoraPair &w1 = part->at(Projection::gate, i), &w2 = part->at(Projection::down, i);
        const LoraPair &all1 = whole->at(Projection::gate, e),
                       &all2 = whole->at(Projection::down, e);
        rows = w1.b.rows;
        for (std::uint64_t j = 0; j < rows * kRank; ++j)
          ASSERT_EQ(w1.b.data[j], all1.b.data[row * kRank + j]);
        ASSERT_EQ(w2.a.columns, rows);
        for (std::uint64_t k = 0; k < kRank; ++k)
          for (std::uint64_t c = 0; c < rows; ++c)
            ASSERT_EQ(w2.a.data[k * rows + c],
                      all2.a.data[k * target.shape.intermediate + row + c]);
        const std::uint64_t share = fully_sharded ? tensor_ranks : 1;
        ASSERT_EQ(w1.a.rows, kRank / share);
        ASSERT_EQ(w2.b.rows, kHidden / share);
        const std::uint64_t shift = fully_sharded ? tp : 0;
        EXPECT_EQ(w1.a.data[0], all1.a.data[shift * w1.a.rows * kHidden]);
        EXPECT_EQ(w2.b.data[0], all2.b.data[shift * w2.b.rows * kRank]);
      }
      row += rows;
    }
    EXPECT_EQ(row, target.shape.intermediate);
  }
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{0, 1, 2}));
}

TEST(LoraAdapter, SlicesReassembleToTheWhole) {
  Files files;
  constexpr std::uint64_t kRanks = kRank * kExperts;
  files.pair(kPrefix + "experts.base_layer", {kRanks, kHidden}, {2 * kInner, kRanks});
  files.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
  const auto adapter = files.open();  // 3 blocks of 32: 2 + 1 on two ranks
  ASSERT_TRUE(adapter) << text(adapter.why());
  check_slices(*adapter, 1, 2, false);
  check_slices(*adapter, 2, 1, false);
  check_slices(*adapter, 3, 2, false);
  check_slices(*adapter, 2, 2, true);
  const auto empty = LoraAdapter::load(*adapter, 0, {.slice = {.tensor_parallel = {3, 4}}});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.why().id, "slice.empty");
  const auto uneven =
      LoraAdapter::load(*adapter, 0, {.slice = {.tensor_parallel = {0, 3}}, .fully_sharded = true});
  ASSERT_FALSE(uneven);
  EXPECT_EQ(uneven.why().id, "adapter.sharding");
}

TEST(LoraAdapter, RefusesNumbersThatAreNotFinite) {
  Files files;
  files.pair(kPrefix + "experts.0.up_proj", {kRank, kHidden}, {kInner, kRank});
  files.config["lora_alpha"] = 1e38;
  files.config["r"] = kRank;
  files.write();
  std::string bytes = tensor::testing::read_text(files.folder / "adapter_model.safetensors");
  bytes[bytes.size() - 1] = static_cast<char>(0x7F);  // the last bfloat16 becomes NaN
  bytes[bytes.size() - 2] = static_cast<char>(0xFF);
  write_text(files.folder / "adapter_model.safetensors", bytes);
  const auto adapter = Adapter::open(files.folder.path(), {target_of()});
  ASSERT_TRUE(adapter) << text(adapter.why());
  const auto loaded = LoraAdapter::load(*adapter, 0, {});
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.why().id, "adapter.not_finite");
  EXPECT_FALSE(loaded.why().tensor.empty());
}

TEST(SynthAdapter, EveryFormOpensWithTheChangeAskedFor) {
  for (const AdapterFormRow& row : kAdapterForms)
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      SCOPED_TRACE(fmt::format("{} {}", row.name, tensor::name(dtype)));
      const TemporaryFolder folder;
      const SynthAdapterOptions options{
          .form = row.form, .rank = 6, .rslora = true, .dtype = dtype, .change = 0.01};
      const std::vector<AdapterTarget> targets{target_of()};
      const auto result = synth_adapter(targets, options, folder / "adapter");
      ASSERT_TRUE(result) << text(result.why());
      const auto adapter = Adapter::open(folder / "adapter", targets);
      ASSERT_TRUE(adapter) << text(adapter.why());
      const auto loaded = LoraAdapter::load(*adapter, 0, {});
      ASSERT_TRUE(loaded);
      for (const Projection which : kEach) {
        double squared = 0;
        for (std::uint64_t n = 0; n < 64; ++n)
          for (std::uint64_t c = 0; c < 64; ++c)
            squared += std::pow(change_by(*loaded, 1, which, n, c), 2);
        EXPECT_NEAR(std::sqrt(squared / 4096), 0.01, 0.004);
      }
    }
  const TemporaryFolder folder;
  const std::vector<AdapterTarget> targets{target_of()};
  EXPECT_EQ(synth_adapter(targets, {.rank = 0}, folder / "x").why().id, "synth.adapter");
  EXPECT_EQ(synth_adapter({}, {}, folder / "x").why().id, "synth.adapter");
  EXPECT_TRUE(folder.names().empty());
  EXPECT_EQ(adapter_form_from_name("shared"), AdapterForm::shared);
  EXPECT_FALSE(adapter_form_from_name("x"));
}

}  // namespace adapter_test
}  // namespace fp4moe::checkpoint
