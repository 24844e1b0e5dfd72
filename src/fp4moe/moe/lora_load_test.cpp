#include "fp4moe/moe/lora_load.hpp"

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/synth/synth_adapter.hpp"
#include "support/files.hpp"

namespace fp4moe::moe {
namespace lora_load_test {

using tensor::testing::TemporaryFolder;

std::vector<checkpoint::AdapterTarget> targets() {
  return {{.index = 0,
           .prefix = "model.layers.0.mlp.",
           .shape = {.experts = 4, .hidden = 64, .intermediate = 96},
           .is_gpt_oss = true}};
}

Result<checkpoint::Adapter> make(const std::string& folder,
                                 const checkpoint::SynthAdapterOptions& how) {
  const auto result = checkpoint::synth_adapter(targets(), how, folder);
  if (!result) return result.why();
  return checkpoint::Adapter::open(folder, targets());
}

TEST(LoraSet, HoldsAdaptersOfDifferentRanksForTheRanksExperts) {
  const TemporaryFolder folder;
  const auto one =
      make(folder / "one", {.form = checkpoint::AdapterForm::wrapped, .rank = 3, .seed = 1});
  const auto two = make(folder / "two", {.rank = 8, .alpha = 8, .seed = 2});
  ASSERT_TRUE(one && two);
  const checkpoint::Adapter* both[] = {&*one, &*two};
  const checkpoint::LoraCut cut{.slice = {.tensor_parallel = {1, 2}, .expert_parallel = {1, 2}}};

  auto loaded = LoraSet::load(both, 0, cut);
  ASSERT_TRUE(loaded) << text(loaded.why());
  const LoraSet set = *std::move(loaded);
  const LoraView view = set.view();

  EXPECT_EQ(view.adapters(), 2u);
  EXPECT_EQ(view.experts, 2u);
  for (std::size_t a = 0; a < 2; ++a)
    for (std::size_t e = 0; e < 2; ++e) {
      const LoraExpert& expert = view.at(a, e);
      const std::uint64_t rank = a == 0 ? 3 : 8;
      EXPECT_EQ(expert.gate.a.rows, rank);
      EXPECT_EQ(expert.gate.a.columns, 64u);
      EXPECT_EQ(expert.up.b.rows, 32u);  // the last of three blocks
      EXPECT_EQ(expert.up.b.columns, rank);
      EXPECT_EQ(expert.down.a.columns, 32u);
      EXPECT_EQ(expert.down.b.rows, 64u);
      // Row by row what the adapter's owner holds for global expert 2 + e.
      const checkpoint::LoraPair& down = set.adapters()[a].at(checkpoint::Projection::down, e);
      EXPECT_EQ(set.adapters()[a].experts()[e], 2 + e);
      for (std::uint64_t row = 0; row < 64; ++row)
        for (std::uint64_t k = 0; k < rank; ++k)
          ASSERT_EQ(expert.down.b.row(row)[k], down.b.data[row * rank + k]);
    }
}

TEST(LoraSet, NoAdapterIsAnEmptyViewAndAnUntouchedMatrixAnEmptyPair) {
  const auto none = LoraSet::load({}, 0, {});
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->view().empty());

  const TemporaryFolder folder;
  ASSERT_TRUE(checkpoint::synth_adapter(targets(), {}, folder / "whole"));
  auto more = targets();
  more.push_back(more[0]);
  more[1].index = 1;
  more[1].prefix = "model.layers.1.mlp.";
  const auto adapter = checkpoint::Adapter::open(folder / "whole", more);
  ASSERT_TRUE(adapter) << text(adapter.why());
  const checkpoint::Adapter* all[] = {&*adapter};
  const auto untouched = LoraSet::load(all, 1, {});
  ASSERT_TRUE(untouched);
  EXPECT_EQ(untouched->view().experts, 4u);
  EXPECT_TRUE(untouched->view().at(0, 3).gate.empty());
}

TEST(LoraSet, RefusesAdaptersForOtherLayersAndHandsErrorsOn) {
  const TemporaryFolder folder;
  const auto one = make(folder / "one", {});
  auto others = targets();
  others[0].shape.experts = 5;
  ASSERT_TRUE(checkpoint::synth_adapter(others, {}, folder / "two"));
  const auto two = checkpoint::Adapter::open(folder / "two", others);
  ASSERT_TRUE(one && two);
  const checkpoint::Adapter* both[] = {&*one, &*two};
  const auto mixed = LoraSet::load(both, 0, {});
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.why().id, "lora.experts");
  const checkpoint::Adapter* first[] = {&*one};
  const auto empty = LoraSet::load(first, 0, {.slice = {.tensor_parallel = {3, 4}}});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.why().id, "slice.empty");
}

}  // namespace lora_load_test
}  // namespace fp4moe::moe
