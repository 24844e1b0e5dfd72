// Adapters from memory: the numbers of the folder's, cut for ranks as those are.
#include "fp4moe/checkpoint/lora/lora_adapter.hpp"

#include <array>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "support/tiny_adapter.hpp"

namespace fp4moe::checkpoint {
namespace lora_adapter_test {

using namespace testing;

// A folder's adapter, and its numbers in memory, B scaled already.
struct FromMemory {
  Files files{};
  Result<Adapter> adapter;
  std::array<std::vector<float>, 3> a{}, b{};

  static Result<Adapter> open(Files& files) {
    constexpr std::uint64_t kRanks = kRank * kExperts;
    files.pair(kPrefix + "experts.base_layer", {kRanks, kHidden}, {2 * kInner, kRanks});
    files.pair(kPrefix + "experts", {kRanks, kInner}, {kHidden, kRanks});
    return files.open();
  }
  FromMemory() : adapter(open(files)) {
    EXPECT_TRUE(adapter) << text(adapter.why());
    const auto whole = LoraAdapter::load(*adapter, 0, {});
    EXPECT_TRUE(whole) << text(whole.why());
    for (std::size_t e = 0; e < kExperts; ++e)
      for (const Projection which : kEach) {
        const auto add = [](const LoraMatrix& from, std::vector<float>& to) {
          to.insert(to.end(), from.data, from.data + from.rows * from.columns);
        };
        add(whole->at(which, e).a, a[static_cast<std::size_t>(which)]);
        add(whole->at(which, e).b, b[static_cast<std::size_t>(which)]);
      }
  }
  static StackedFactor factor(const std::vector<float>& values) {
    return {std::as_bytes(std::span(values)), DType::f32};
  }
  LoraWeights apart() const {
    LoraWeights result{.rank = kRank};
    result.gate = {factor(a[0]), factor(b[0])};
    result.up = {factor(a[1]), factor(b[1])};
    result.down = {factor(a[2]), factor(b[2])};
    return result;
  }
};

void expect_same(const LoraMatrix& one, const LoraMatrix& other) {
  ASSERT_EQ(one.rows, other.rows);
  ASSERT_EQ(one.columns, other.columns);
  for (std::uint64_t i = 0; i < one.rows * one.columns; ++i)
    ASSERT_EQ(one.data[i], other.data[i]) << i;
}

TEST(LoraFromMemory, IsCutAsAFoldersIs) {
  const FromMemory memory;
  const LoraLayer layer{target_of().shape, SplitRule::ceil_blocks};
  const LoraCut cuts[] = {{},
                          {.slice = {.tensor_parallel = {0, 2}}},
                          {.slice = {.tensor_parallel = {1, 2}}},
                          {.slice = {.tensor_parallel = {1, 2}}, .fully_sharded = true},
                          {.slice = {.expert_parallel = {1, 2}}}};
  // gpt-oss interleaves the rows of B, and has one A for gate and up.
  std::vector<float> interleaved;
  for (std::size_t row = 0; row < kExperts * kInner; ++row)
    for (const std::size_t part : {0, 1})
      interleaved.insert(interleaved.end(), memory.b[part].begin() + static_cast<long>(row * kRank),
                         memory.b[part].begin() + static_cast<long>((row + 1) * kRank));
  LoraWeights fused{.rank = kRank};
  fused.w13 = {FromMemory::factor(memory.a[0]), FromMemory::factor(interleaved)};
  fused.down = memory.apart().down;
  for (const LoraCut& cut : cuts) {
    const auto expected = LoraAdapter::load(*memory.adapter, 0, cut);
    ASSERT_TRUE(expected) << text(expected.why());
    for (const LoraWeights& given : {memory.apart(), fused}) {
      const auto found = LoraAdapter::of(given, layer, cut);
      ASSERT_TRUE(found) << text(found.why());
      ASSERT_EQ(found->experts().size(), expected->experts().size());
      for (std::size_t i = 0; i < found->experts().size(); ++i)
        for (const Projection which : kEach) {
          expect_same(found->at(which, i).a, expected->at(which, i).a);
          expect_same(found->at(which, i).b, expected->at(which, i).b);
        }
      EXPECT_LE(found->bytes(), LoraAdapter::of(memory.apart(), layer, cut)->bytes());
    }
  }
}

TEST(LoraFromMemory, HoldsWhatExpertsHaveInCommonOnce) {
  const FromMemory memory;
  const LoraLayer layer{target_of().shape, SplitRule::ceil_blocks};
  const std::vector<float> common(memory.a[0].begin(), memory.a[0].begin() + kRank * kHidden);
  LoraWeights given{.rank = kRank, .scale = 0.5f};
  given.up = {FromMemory::factor(common), FromMemory::factor(memory.b[1])};
  const auto found = LoraAdapter::of(given, layer, {});
  ASSERT_TRUE(found) << text(found.why());
  EXPECT_EQ(found->at(Projection::up, 0).a.data, found->at(Projection::up, 2).a.data);
  EXPECT_TRUE(found->at(Projection::gate, 1).empty());
  EXPECT_EQ(found->at(Projection::up, 1).b.data[3], 0.5f * memory.b[1][kInner * kRank + 3]);
  EXPECT_EQ(found->bytes(), (common.size() + memory.b[1].size()) * sizeof(float));
}

TEST(LoraFromMemory, RefusesAGateWhereThereIsNone) {
  const FromMemory memory;
  const LoraLayer layer{target_of(RowOrder::single).shape, SplitRule::equal};
  EXPECT_EQ(LoraAdapter::of(memory.apart(), layer, {}).why().id, "adapter.no_gate");
}

}  // namespace lora_adapter_test
}  // namespace fp4moe::checkpoint
