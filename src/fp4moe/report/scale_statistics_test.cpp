#include "fp4moe/report/scale_statistics.hpp"

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/synth/synth.hpp"
#include "support/converted_folder.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe::report::scale_statistics_test {
namespace {

using checkpoint::WeightFormat;
using tensor::testing::TemporaryFolder;

checkpoint::ProjectionView projection(const std::vector<std::byte>& scales, float global_scale) {
  return {.scales = {scales.data(), 1, scales.size(), scales.size()}, .global_scale = global_scale};
}

std::vector<std::byte> bytes(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

std::vector<LayerScales> read(const std::string& path, std::size_t threads = 1) {
  const auto found = scale_statistics(path, {.threads = threads});
  EXPECT_TRUE(found) << text(found.why());
  return found ? *found : std::vector<LayerScales>{};
}

TEST(ScaleHistogram, CountsE8m0ByItsExponent) {
  const auto scales = bytes({127, 127, 120, 130});
  ScaleHistogram histogram;
  histogram.add(WeightFormat::mxfp4, projection(scales, 1));
  EXPECT_EQ(histogram.blocks(), 4u);
  EXPECT_EQ(histogram.first_bin(), -7);
  EXPECT_EQ(histogram.counts(), (std::vector<std::uint64_t>{1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1}));
  EXPECT_DOUBLE_EQ(histogram.min(), std::exp2(-7));
  EXPECT_DOUBLE_EQ(histogram.largest(), 8);
  EXPECT_DOUBLE_EQ(histogram.mean_log2(), (0 + 0 - 7 + 3) / 4.0);
}

TEST(ScaleHistogram, MultipliesE4m3ByTheGlobalScaleAndTellsZerosAndSigns) {
  const auto scales = bytes({0x38, 0x00, 0xB8, 0x80});  // 1, 0, -1, -0
  ScaleHistogram histogram;
  histogram.add(WeightFormat::nvfp4, projection(scales, 0.25f));
  EXPECT_EQ(histogram.blocks(), 4u);
  EXPECT_EQ(histogram.zeros(), 2u);
  EXPECT_EQ(histogram.negative(), 1u);
  EXPECT_EQ(histogram.first_bin(), -2);
  EXPECT_EQ(histogram.counts(), std::vector<std::uint64_t>{2});
}

TEST(ScaleHistogram, TheSumOfTwoIsThatOfAllTheirBlocks) {
  const auto low = bytes({100, 103}), high = bytes({127, 130, 130}),
             all = bytes({127, 100, 130, 103, 130});
  const auto count = [](const std::vector<std::byte>& scales) {
    ScaleHistogram histogram;
    histogram.add(WeightFormat::mxfp4, projection(scales, 1));
    return histogram;
  };
  for (const auto& [first, second] : {std::pair{low, high}, std::pair{high, low}}) {
    ScaleHistogram sum = count(first);
    sum.add(count(second));
    EXPECT_EQ(sum.first_bin(), -27);
    EXPECT_EQ(sum.counts(), count(all).counts());
    EXPECT_EQ(sum.counts().size(), 31u);
    EXPECT_DOUBLE_EQ(sum.mean_log2(), count(all).mean_log2());
  }
}

TEST(ScaleHistogram, OfNothingOrZerosHasNoScales) {
  const auto zeros = bytes({0, 0});
  ScaleHistogram histogram;
  EXPECT_FALSE(histogram.has_scales());
  histogram.add(WeightFormat::nvfp4, projection(zeros, 1));
  EXPECT_FALSE(histogram.has_scales());
  ScaleHistogram sum;
  sum.add(histogram);
  EXPECT_EQ(sum.zeros(), 2u);
}

TEST(ScaleStatistics, CountEveryBlockOfEveryExpertWithAnyNumberOfThreads) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TemporaryFolder folder;
    convert::testing::make_checkpoint(folder / "m", format, {.experts = 5, .layers = 2});
    const auto layers = read(folder / "m", 3);
    ASSERT_EQ(layers.size(), 2u);
    ASSERT_EQ(layers[1].experts.size(), 5u);
    const auto& projections = layers[1].experts[4].projections;
    for (const ScaleHistogram& each : projections) {
      EXPECT_EQ(each.blocks(), 128u * 128u / block_size(format));
      const auto counts = each.counts();
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), each.zeros()), each.blocks());
    }
    EXPECT_EQ(to_json(layers), to_json(read(folder / "m")));
  }
}

TEST(ScaleStatistics, OfAConvertedFolderAreThoseOfItsSource) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TemporaryFolder folder;
    convert::testing::make_checkpoint(folder / "m", format);
    const std::string layout = "marlin." + std::string(formats::name(format));
    const auto done =
        convert::testing::convert(folder / "m", folder / "c", convert::testing::recipe_of(layout));
    ASSERT_TRUE(done) << text(done.why());
    EXPECT_EQ(to_json(read(folder / "c")), to_json(read(folder / "m")));
    const auto bytes = scale_bytes(folder / "c");
    ASSERT_TRUE(bytes);
    EXPECT_GT(*bytes, 0u);
  }
}

TEST(ScaleStatistics, LeaveOutAnExpertThatCannotBeRead) {
  const TemporaryFolder folder;
  const auto result = checkpoint::synth({.model = "gpt-oss-20b",
                                         .layers = 1,
                                         .experts = 3,
                                         .hidden = 64,
                                         .intermediate = 64,
                                         .defect = "nan-scale"},
                                        folder / "m");
  ASSERT_TRUE(result) << text(result.why());
  const auto layers = read(folder / "m");
  ASSERT_EQ(layers.size(), 1u);
  ASSERT_TRUE(layers[0].experts[0].why);
  EXPECT_EQ(layers[0].experts[0].why->id, "scale.nan");
  EXPECT_FALSE(layers[0].experts[1].why);
  const Json json = to_json(layers);
  EXPECT_EQ(json["layers"][0]["experts"][0]["error"]["id"], "scale.nan");
  EXPECT_EQ(json["projections"]["up"]["blocks"], 2u * 64 * 64 / 32);
}

TEST(ScaleStatistics, RefuseWhatIsNoCheckpoint) {
  const TemporaryFolder folder;
  const auto found = scale_statistics(folder / "nothing");
  EXPECT_FALSE(found);
}

}  // namespace
}  // namespace fp4moe::report::scale_statistics_test
