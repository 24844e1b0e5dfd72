#include "fp4moe/kernels/cpu/isa.hpp"

#include <array>

#include <gtest/gtest.h>

#include "fp4moe/kernels/cpu/block_codec_list.hpp"

namespace fp4moe::kernels::cpu {
namespace isa_test {

#if defined(__aarch64__)
constexpr std::string_view kOwn = "neon";
constexpr std::string_view kForeign = "avx2";
constexpr CpuFeature kOwnFeature = CpuFeature::neon;
constexpr CpuFeature kBetterFeature = CpuFeature::neon_i8mm;
#else
constexpr std::string_view kOwn = "avx2";
constexpr std::string_view kForeign = "neon";
constexpr CpuFeature kOwnFeature = CpuFeature::avx2;
constexpr CpuFeature kBetterFeature = CpuFeature::avx512;
#endif

TEST(UsableFeatures, AreAllThatIsPresentWhenNothingIsForced) {
  const EnumSet<CpuFeature> present{kOwnFeature, kBetterFeature};

  EXPECT_EQ(*usable_features(present, std::nullopt), present);
}

TEST(UsableFeatures, AreOnlyThoseOfTheForcedSet) {
  const EnumSet<CpuFeature> present{kOwnFeature, kBetterFeature};

  EXPECT_EQ(*usable_features(present, kOwn), EnumSet<CpuFeature>{kOwnFeature});
  EXPECT_TRUE(usable_features(present, "portable")->empty());
}

TEST(UsableFeatures, SayThatTheBuildLacksAForeignSet) {
  const auto usable = usable_features({kOwnFeature}, kForeign);

  ASSERT_FALSE(usable);
  EXPECT_EQ(usable.why().id, "kernels.isa.build");
  EXPECT_EQ(usable.why().code, ErrorCode::unavailable);
}

TEST(UsableFeatures, SayThatTheMachineLacksWhatTheBuildHas) {
  const auto usable = usable_features({}, kOwn);

  ASSERT_FALSE(usable);
  EXPECT_EQ(usable.why().id, "kernels.isa.machine");
  EXPECT_EQ(usable.why().code, ErrorCode::unavailable);
  EXPECT_EQ(usable.why().found, "none");
}

TEST(UsableFeatures, RefuseANameThatDoesNotExist) {
  const auto usable = usable_features({kOwnFeature}, "mmx");

  ASSERT_FALSE(usable);
  EXPECT_EQ(usable.why().id, "kernels.isa.unknown");
  EXPECT_EQ(usable.why().code, ErrorCode::usage);
}

TEST(Pick, TakesTheFirstRowThatCanRunAndEndsWithThePortableOne) {
  EXPECT_EQ(pick(block_codecs(), {}).name, "portable/block_codec");
  EXPECT_EQ(pick(block_codecs(), {kOwnFeature}).name, std::string(kOwn) + "/block_codec");
}

}  // namespace isa_test
}  // namespace fp4moe::kernels::cpu
