#include "fp4moe/oracle/releases.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace fp4moe::oracle {
namespace releases_test {

constexpr auto kMxfp4 = WeightFormat::mxfp4;
constexpr auto kNvfp4 = WeightFormat::nvfp4;

// "release policy match" of a word, or the error's id.
std::string answer(std::string_view word, WeightFormat format = kMxfp4) {
  const auto choice = choose_release(word, format);
  if (!choice) return choice.why().id;
  return std::string(choice->release->version) + " " + choice->policy + " " +
         std::string(name(choice->match));
}
std::string note(std::string_view word, WeightFormat format = kMxfp4) {
  const auto choice = choose_release(word, format);
  return choice ? choice->note : choice.why().id;
}

TEST(Releases, AreListedOldestFirstEachOnce) {
  std::set<std::string_view> versions;
  std::string_view before;
  for (const Release& release : vllm_releases()) {
    EXPECT_TRUE(versions.insert(release.version).second) << release.version;
    EXPECT_EQ(release.date.size(), 10u) << release.version;
    EXPECT_LE(release.branched, release.date) << release.version;
    const bool exact = release.mxfp4.match == Match::exact && release.nvfp4.match == Match::exact;
    EXPECT_EQ(release.differs.empty(), exact) << release.version;
    before = release.version;
  }
  EXPECT_EQ(before, "0.33.0");
  EXPECT_EQ(vllm_releases().size(), 34u);
}

TEST(Releases, AVersionOfTheTableIsFoundHoweverItIsWritten) {
  for (const char* word : {"0.33.0", "v0.33.0", "0.33", "v0.33", "0.33.0+cu129", "latest"})
    EXPECT_EQ(answer(word), "0.33.0 vllm-0.33.0 exact") << word;
  EXPECT_EQ(note("0.33.0"), "");
  EXPECT_EQ(answer("0.19.0"), "0.19.0 2026-03-27 exact");
  EXPECT_EQ(answer("0.19"), "0.19.1 2026-03-27 exact");
  EXPECT_EQ(answer("0.19", kNvfp4), "0.19.1 2026-04-24 near");
  EXPECT_EQ(answer("0.20.1", kNvfp4), "0.20.1 2026-04-24 exact");
  EXPECT_EQ(answer("0.29.0", kNvfp4), "0.29.0 2026-08-22 exact");
}

TEST(Releases, ANearPolicySaysWhatDiffers) {
  EXPECT_EQ(answer("0.21.0"), "0.21.0 2026-04-24 near");
  EXPECT_NE(note("0.21.0").find("LoRA is a predicate"), std::string::npos);
}

TEST(Releases, BetweenTwoTheEarlierOneCounts) {
  EXPECT_EQ(answer("0.31.2"), "0.29.0 2026-08-22 near");
  EXPECT_EQ(answer("0.30"), "0.29.0 2026-08-22 near");
  EXPECT_EQ(answer("0.19.7"), "0.19.1 2026-03-27 near");
  EXPECT_EQ(note("0.19.7"), "vLLM 0.19.7 is not listed; 0.19.1 is the nearest that is");
  EXPECT_EQ(answer("0.33.0rc1"), "0.33.0 vllm-0.33.0 near");
}

TEST(Releases, ANewerOneTakesTheNewestAndSaysSo) {
  for (const char* word : {"0.33.1", "0.34", "1.0", "0.34.0.dev12+g1a2b3c"}) {
    EXPECT_EQ(answer(word), "0.33.0 vllm-0.33.0 near") << word;
    EXPECT_NE(note(word).find("newer than 0.33.0"), std::string::npos) << word;
  }
}

TEST(Releases, WithoutAnOracleTheNearestPolicyIsNamedWithAWarning) {
  EXPECT_EQ(answer("0.11.2"), "0.11.2 2026-03-20 none");
  EXPECT_EQ(note("0.11.2"), "vLLM 0.11.2 has no mxfp4 oracle; 2026-03-20 is the nearest policy");
  EXPECT_EQ(answer("0.14.0", kNvfp4), "0.14.0 2026-01-seed near");
  EXPECT_EQ(answer("0.9.2", kNvfp4), "0.10.0 2026-01-seed none");
  EXPECT_NE(note("0.9.2", kNvfp4).find("has no nvfp4 oracle"), std::string::npos);
  EXPECT_TRUE(note("0.9.2", kNvfp4)
                  .starts_with("vLLM 0.9.2 is older than 0.10.0, the oldest release known here; "));
}

TEST(Releases, NonsenseIsAUsageError) {
  for (const char* word : {"", "33", "abc", "0.33.x", "0.", ".33", "-0.33.0", "0.33.0 ", "0.33.0;x",
                           "0.33.0.1", "99999999999.1", "vv0.33", "LATEST"}) {
    const auto refused = choose_release(word, kMxfp4);
    ASSERT_FALSE(refused) << word;
    EXPECT_EQ(refused.why().id, "vllm.version") << word;
    EXPECT_EQ(refused.why().code, ErrorCode::usage) << word;
  }
}

TEST(Releases, AutoIsTheInstalledPackage) {
  const platform::FakeRoot root;
  const platform::LibrariesFrom from{.root = root.path(),
                                     .lookup = platform::with({{"PYTHONPATH", "/a"}})};
  const auto absent = choose_release("auto", kMxfp4, from);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.why().id, "vllm.absent");
  root.file("/a/vllm_flash_attn-0.33.0.dist-info/METADATA");
  EXPECT_FALSE(choose_release("auto", kMxfp4, from));
  root.file("/a/vllm-0.29.0+cpu.dist-info/METADATA");
  const auto found = choose_release("auto", kMxfp4, from);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->asked, "0.29.0+cpu");
  EXPECT_EQ(found->release->version, "0.29.0");
  const Json json = to_json(*found);
  EXPECT_EQ(json["version"], "0.29.0+cpu");
  EXPECT_EQ(json["policy"], "2026-08-22");
  EXPECT_EQ(json["match"], "near");
}

TEST(Releases, LayoutsFollowTheStateOfTheMainLine) {
  const auto layouts = [](std::string_view word) {
    return layout_generations(*choose_release(word, kMxfp4)->release);
  };
  EXPECT_NE(layouts("0.18.1").find("marlin.nvfp4 2026-01"), std::string::npos);
  EXPECT_NE(layouts("0.19.1").find("marlin.nvfp4 2026-03"), std::string::npos);
  EXPECT_NE(layouts("0.20.0").find("marlin.nvfp4 2026-04"), std::string::npos);
  EXPECT_NE(layouts("0.27.1").find("flashinfer_cutlass_sm90.mxfp4 g2"), std::string::npos);
  EXPECT_NE(layouts("0.33.0").find("flashinfer_cutlass_sm90.mxfp4 g3"), std::string::npos);
  EXPECT_NE(layouts("0.33.0").find("hopper.v3.5.w8.k4"), std::string::npos);
}

}  // namespace releases_test
}  // namespace fp4moe::oracle
