#include "fp4moe/convert/pack/pack_layer.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "support/converted_folder.hpp"
#include "support/sanitized.hpp"

namespace fp4moe::convert {
namespace pack_layer_test {

using checkpoint::WeightFormat;
using testing::make_checkpoint;
using testing::TemporaryFolder;

// A layer's tensors in memory of the test's own.
struct Memory {
  std::vector<std::vector<std::byte>> tensors{};
  std::vector<std::span<std::byte>> spans{};

  Memory(const LayerPacker& packer, std::byte poison) {
    for (const PackedTensorSpec& tensor : packer.tensors())
      tensors.emplace_back(tensor.bytes, poison);
    for (auto& tensor : tensors) spans.emplace_back(tensor);
  }
};

class PackLayer : public ::testing::Test {
 protected:
  void SetUp() override {
    make_checkpoint(folder_ / "mxfp4", WeightFormat::mxfp4, {.experts = 5});
    make_checkpoint(folder_ / "nvfp4", WeightFormat::nvfp4, {.experts = 5});
  }

  TemporaryFolder folder_{};
};

TEST_F(PackLayer, IsAPureFunctionOfTheSourceForEveryLayout) {
  std::size_t number = 0;
  for (const auto format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const auto checkpoint = checkpoint::Checkpoint::open(folder_ / formats::name(format));
    ASSERT_TRUE(checkpoint) << text(checkpoint.why());
    for (const layout::Layout& layout : backends::layouts()) {
      if (layout.format != format || !is_taken(number++, 4)) continue;
      SCOPED_TRACE(layout_text(layout.id, layout.generation));
      const Recipe recipe{.layout = &layout, .sizing = {.hidden = 256, .intermediate = 256}};
      const auto job = layer_job(*checkpoint, 0, recipe);
      ASSERT_TRUE(job) << text(job.why());
      const auto packed = [&](std::byte poison, const PackOptions& options) {
        auto packer = LayerPacker::make(layout, job->problem);
        EXPECT_TRUE(packer) << text(packer.why());
        Memory memory(*packer, poison);
        const auto done = pack_layer(*job, *packer, memory.spans, options);
        EXPECT_TRUE(done) << text(done.why());
        // A reload: the same calls into the same memory.
        const auto again = memory.tensors;
        for (std::size_t e = 0; e < job->experts.size(); ++e)
          EXPECT_TRUE(pack_expert(*job, *packer, e, memory.spans));
        EXPECT_EQ(memory.tensors, again);
        EXPECT_TRUE(pack_layer(*job, *packer, memory.spans, options));
        EXPECT_EQ(memory.tensors, again);
        return memory.tensors;
      };
      const auto expected = packed(std::byte{0}, {.threads = 1, .path = PackPath::map});
      EXPECT_EQ(packed(std::byte{0xFF}, {.threads = 1}), expected);
      EXPECT_EQ(packed(std::byte{0x7F}, {.threads = 4}), expected);
    }
  }
}

TEST_F(PackLayer, RewritesOneExpertAndNoOther) {
  const auto checkpoint = checkpoint::Checkpoint::open(folder_ / "mxfp4");
  const Recipe recipe = testing::recipe_of("marlin.mxfp4");
  const auto job = layer_job(*checkpoint, 0, recipe);
  auto packer = LayerPacker::make(*recipe.layout, job->problem);
  Memory memory(*packer, std::byte{0});
  ASSERT_TRUE(pack_layer(*job, *packer, memory.spans));
  const auto sound = memory.tensors;
  for (auto& tensor : memory.tensors) std::ranges::fill(tensor, std::byte{0xAB});
  ASSERT_TRUE(pack_expert(*job, *packer, 2, memory.spans));
  for (std::size_t t = 0; t < sound.size(); ++t) {
    const std::size_t each = packer->tensors()[t].expert_bytes;
    if (each == 0) continue;
    for (std::size_t i = 0; i < sound[t].size(); ++i)
      ASSERT_EQ(memory.tensors[t][i], i / each == 2 ? sound[t][i] : std::byte{0xAB})
          << packer->tensors()[t].name << " byte " << i;
  }
}

TEST_F(PackLayer, RefusesMemoryOfAnotherSizeAndExpertsThatAreNotThere) {
  const auto checkpoint = checkpoint::Checkpoint::open(folder_ / "mxfp4");
  const Recipe recipe = testing::recipe_of("marlin.mxfp4");
  const auto job = layer_job(*checkpoint, 0, recipe);
  auto packer = LayerPacker::make(*recipe.layout, job->problem);
  Memory memory(*packer, std::byte{0});
  EXPECT_EQ(pack_expert(*job, *packer, 5, memory.spans).why().id, "layout.position");
  memory.spans[1] = memory.spans[1].first(memory.spans[1].size() - 1);
  EXPECT_EQ(pack_layer(*job, *packer, memory.spans).why().id, "convert.targets");
  EXPECT_EQ(pack_expert(*job, *packer, 0, memory.spans).why().id, "convert.targets");
  memory.spans.pop_back();
  EXPECT_EQ(pack_layer(*job, *packer, memory.spans).why().id, "convert.targets");
}

TEST_F(PackLayer, StopsBetweenExperts) {
  const auto checkpoint = checkpoint::Checkpoint::open(folder_ / "mxfp4");
  const Recipe recipe = testing::recipe_of("marlin.mxfp4");
  const auto job = layer_job(*checkpoint, 0, recipe);
  auto packer = LayerPacker::make(*recipe.layout, job->problem);
  Memory memory(*packer, std::byte{0});
  const InterruptGuard guard;
  std::uint64_t experts = 0;
  const auto stopped = pack_layer(*job, *packer, memory.spans, {.progress = [&](std::uint64_t) {
    if (++experts == 2) request_interrupt();
  }});
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.why().code, ErrorCode::interrupted);
  EXPECT_EQ(experts, 2u);
}

// As the backends round: gpt-oss over eight ranks.
TEST_F(PackLayer, PadsAsTheBackendRounds) {
  const checkpoint::MoeShape shape{.format = WeightFormat::mxfp4,
                                   .experts = 128,
                                   .hidden = 2880,
                                   .intermediate = 2880,
                                   .order = checkpoint::RowOrder::interleaved};
  constexpr oracle::Rounding kRounding[] = {{.intermediate = 128, .hidden = 256}};
  const oracle::Backend backend{.name = "TEST", .rounding = kRounding};
  const auto sizes =
      padded_sizes({.backend = &backend}, shape, {3, 8}, checkpoint::SplitRule::ceil_blocks);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(*sizes, (layout::Sizes{3072, 384}));
  const oracle::Backend narrow{.name = "TEST"};
  const auto refused =
      padded_sizes({.backend = &narrow}, shape, {3, 8}, checkpoint::SplitRule::ceil_blocks);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "convert.slice");
  EXPECT_EQ(refused.why().code, ErrorCode::no_backend);
  EXPECT_EQ(*padded_sizes({}, shape, {7, 8}, checkpoint::SplitRule::ceil_blocks),
            (layout::Sizes{2880, 384}));
}

}  // namespace pack_layer_test
}  // namespace fp4moe::convert
