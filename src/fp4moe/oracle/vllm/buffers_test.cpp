#include "fp4moe/oracle/vllm/buffers.hpp"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace buffers_test {

using Shape = std::vector<std::uint64_t>;

constexpr BufferRequest kGptOss{.format = WeightFormat::mxfp4,
                                .sizes = {3072, 2944},
                                .local_experts = 32,
                                .experts = 32,
                                .has_bias = true};
constexpr BufferRequest kDeepseek{
    .format = WeightFormat::nvfp4, .sizes = {7168, 2048}, .local_experts = 16, .experts = 256};

const Buffer* find(const std::vector<Buffer>& buffers, std::string_view name) {
  for (const Buffer& buffer : buffers)
    if (buffer.name == name) return &buffer;
  ADD_FAILURE() << "no buffer " << name;
  return nullptr;
}

Shape shape(const BufferRequest& request, std::string_view name) {
  const auto buffers = weight_buffers(request);
  if (!buffers) return {};
  const Buffer* buffer = find(*buffers, name);
  return buffer == nullptr ? Shape{} : buffer->shape;
}

std::vector<LoadedShape> as_loaded(const BufferRequest& request) {
  std::vector<LoadedShape> loaded;
  const auto buffers = weight_buffers(request);
  for (const Buffer& buffer : *buffers) loaded.push_back({buffer.name, buffer.shape});
  return loaded;
}

TEST(Buffers, OfMxfp4HaveTheReferencesShapes) {
  const auto buffers = weight_buffers(kGptOss);

  ASSERT_TRUE(buffers);
  EXPECT_EQ(buffers->size(), 6u);
  EXPECT_EQ(find(*buffers, "w13_weight")->shape, (Shape{32, 5888, 1536}));
  EXPECT_EQ(find(*buffers, "w13_weight_scale")->shape, (Shape{32, 5888, 96}));
  EXPECT_EQ(find(*buffers, "w2_weight")->shape, (Shape{32, 3072, 1472}));
  EXPECT_EQ(find(*buffers, "w2_weight_scale")->shape, (Shape{32, 3072, 92}));
  EXPECT_EQ(find(*buffers, "w13_bias")->shape, (Shape{32, 5888}));
  EXPECT_EQ(find(*buffers, "w2_bias")->shape, (Shape{32, 3072}));
  EXPECT_EQ(find(*buffers, "w2_bias")->bytes, 32u * 3072 * 2);
  for (const Buffer& buffer : *buffers) EXPECT_EQ(buffer.initial, "zero");
  EXPECT_EQ(*total_bytes(*buffers),
            32u * (5888u * 1536 + 5888 * 96 + 3072 * 1472 + 3072 * 92 + 2 * (5888 + 3072)));
}

TEST(Buffers, WithoutBiasesThereAreNone) {
  BufferRequest request = kGptOss;
  request.has_bias = false;

  EXPECT_EQ(weight_buffers(request)->size(), 4u);
}

TEST(Buffers, OfNvfp4HaveTheReferencesShapes) {
  const auto buffers = weight_buffers(kDeepseek);

  ASSERT_TRUE(buffers);
  EXPECT_EQ(find(*buffers, "w13_weight")->shape, (Shape{16, 4096, 3584}));
  EXPECT_EQ(find(*buffers, "w13_weight_scale")->shape, (Shape{16, 4096, 448}));
  EXPECT_EQ(find(*buffers, "w13_weight_scale")->dtype, "f8_e4m3");
  EXPECT_EQ(find(*buffers, "w2_weight_scale")->shape, (Shape{16, 7168, 128}));
  EXPECT_EQ(find(*buffers, "w13_weight_scale_2")->shape, (Shape{16, 2}));
  EXPECT_EQ(find(*buffers, "w2_weight_scale_2")->shape, (Shape{16}));
  EXPECT_EQ(find(*buffers, "w2_weight_scale_2")->bytes, 64u);
  for (const Buffer& buffer : *buffers) EXPECT_EQ(buffer.initial, "uninitialised");
}

TEST(Buffers, SharedActivationScalesCoverTheExpertsOfAllRanksInModelOptOnly) {
  BufferRequest request = kDeepseek;
  EXPECT_EQ(shape(request, "w13_input_scale"), (Shape{16, 2}));

  request.global_activation_scales = true;
  EXPECT_EQ(shape(request, "w13_input_scale"), (Shape{256, 2}));
  EXPECT_EQ(shape(request, "w2_input_scale"), (Shape{256}));

  request.names = BufferNames::compressed_tensors;
  EXPECT_EQ(shape(request, "w13_input_global_scale"), (Shape{16, 2}));
  EXPECT_EQ(shape(request, "w13_weight_packed"), (Shape{16, 4096, 3584}));
}

TEST(Buffers, ALayerWithoutAGateHasOneHalfExceptInTheOldReference) {
  BufferRequest request = kGptOss;
  request.gated = false;
  EXPECT_EQ(shape(request, "w13_weight"), (Shape{32, 2944, 1536}));

  request.always_two_halves = true;
  EXPECT_EQ(shape(request, "w13_weight"), (Shape{32, 5888, 1536}));

  BufferRequest nvfp4 = kDeepseek;
  nvfp4.gated = false;
  EXPECT_EQ(shape(nvfp4, "w13_weight_scale_2"), (Shape{16, 1}));

  EXPECT_TRUE(has_two_halves_always(WeightFormat::mxfp4, PolicyDate::april_24, Mode::compat));
  EXPECT_FALSE(has_two_halves_always(WeightFormat::mxfp4, PolicyDate::april_24, Mode::strict));
  EXPECT_FALSE(has_two_halves_always(WeightFormat::mxfp4, PolicyDate::august_22, Mode::compat));
  EXPECT_FALSE(has_two_halves_always(WeightFormat::mxfp4, PolicyDate::native, Mode::compat));
  EXPECT_FALSE(has_two_halves_always(WeightFormat::nvfp4, PolicyDate::april_24, Mode::compat));
}

TEST(Buffers, SizesOfPartBlocksAreRefused) {
  BufferRequest request = kGptOss;
  request.sizes.hidden = 2890;
  ASSERT_FALSE(weight_buffers(request));
  EXPECT_EQ(weight_buffers(request).why().id, "buffers.block");

  request = kDeepseek;
  request.sizes.intermediate = 2056;
  EXPECT_EQ(weight_buffers(request).why().id, "buffers.block");
  EXPECT_EQ(check_loaded(request, {}, Mode::strict).why().id, "buffers.block");
}

TEST(Buffers, SizesThatDoNotFitAreAnError) {
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;
  BufferRequest request = kGptOss;
  request.sizes.intermediate = kHuge;
  EXPECT_EQ(weight_buffers(request).why().id, "buffers.overflow");

  request = kGptOss;
  request.local_experts = kHuge;
  EXPECT_EQ(weight_buffers(request).why().id, "buffers.overflow");

  const Buffer half{.name = "half", .bytes = kHuge};
  const Buffer both[] = {half, half};
  EXPECT_EQ(total_bytes(both).why().id, "buffers.overflow");
}

TEST(Buffers, LoadedTensorsMustHaveTheirBuffersShapes) {
  EXPECT_TRUE(check_loaded(kGptOss, as_loaded(kGptOss), Mode::strict));
  EXPECT_TRUE(check_loaded(kDeepseek, as_loaded(kDeepseek), Mode::strict));

  auto loaded = as_loaded(kGptOss);
  for (std::size_t i = 0; i < loaded.size(); ++i) {
    for (std::size_t dimension = 0; dimension < loaded[i].shape.size(); ++dimension) {
      auto wrong = loaded;
      ++wrong[i].shape[dimension];
      const auto checked = check_loaded(kGptOss, wrong, Mode::strict);
      ASSERT_FALSE(checked) << loaded[i].name << " " << dimension;
      EXPECT_EQ(checked.why().id, "buffers.shape");
      EXPECT_EQ(checked.why().tensor, loaded[i].name);
    }
    auto flat = loaded;
    flat[i].shape.clear();
    EXPECT_FALSE(check_loaded(kGptOss, flat, Mode::compat)) << loaded[i].name;
  }
}

TEST(Buffers, TheReferenceForgetsTheExpertsOfTheSecondScales) {
  auto loaded = as_loaded(kGptOss);
  for (LoadedShape& tensor : loaded)
    if (tensor.name == "w2_weight_scale") tensor.shape[0] = 31;

  EXPECT_TRUE(check_loaded(kGptOss, loaded, Mode::compat));
  EXPECT_FALSE(check_loaded(kGptOss, loaded, Mode::strict));
}

TEST(Buffers, BiasesMayBeAbsentOtherTensorsMayNot) {
  auto loaded = as_loaded(kGptOss);
  loaded.resize(4);
  EXPECT_TRUE(check_loaded(kGptOss, loaded, Mode::strict));

  loaded.resize(3);
  const auto checked = check_loaded(kGptOss, loaded, Mode::strict);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.why().id, "buffers.missing");
  EXPECT_EQ(checked.why().tensor, "w2_weight_scale");

  loaded = as_loaded(kGptOss);
  loaded.push_back({"w3_weight", {1}});
  EXPECT_EQ(check_loaded(kGptOss, loaded, Mode::strict).why().id, "buffers.unknown");
}

}  // namespace buffers_test
}  // namespace fp4moe::oracle
