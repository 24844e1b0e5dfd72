#include "fp4moe/base/phrase.hpp"

#include <array>

#include <gtest/gtest.h>

namespace fp4moe {
namespace phrase_test {

TEST(Counted, AgreesWithItsNoun) {
  EXPECT_EQ(counted(0, "expert"), "0 experts");
  EXPECT_EQ(counted(1, "expert"), "1 expert");
  EXPECT_EQ(counted(2, "expert"), "2 experts");
  EXPECT_EQ(counted(1, "NaN block scale"), "1 NaN block scale");
  EXPECT_EQ(counted(3, "directory"), "3 directories");
  EXPECT_EQ(counted(3, "byte"), "3 bytes");
}

TEST(Escaped, KeepsLongTextWholeUnlessToldOtherwise) {
  const std::string text(5000, 'x');
  EXPECT_EQ(escaped(text), text);
  EXPECT_EQ(escaped(text, 10), "xxxxxxxxxx...");
  EXPECT_EQ(escaped(std::string(10, 'x'), 10), "xxxxxxxxxx");
  EXPECT_EQ(escaped("gr\xc3\xbcn\n\xff"), "gr\xc3\xbcn\\x0a\\xff");
}

TEST(Wrapped, BreaksAtSpacesWithinTheColumns) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 7, 2), "one two\n  three");
  EXPECT_EQ(wrapped("one two three", 0), "one two three");
  EXPECT_EQ(wrapped("a incomprehensibilities b", 5, 1), "a\n incomprehensibilities\n b");
  EXPECT_EQ(wrapped("gr\xc3\xbcn ok", 7), "gr\xc3\xbcn ok");  // characters, not bytes
  EXPECT_EQ(wrapped("", 5), "");
}

TEST(SameWord, IgnoresCaseAndTheTwoDashes) {
  EXPECT_TRUE(is_same_word("Round-Robin", "round_robin"));
  EXPECT_TRUE(is_same_word("MARLIN", "marlin"));
  EXPECT_FALSE(is_same_word("marlin", "marlins"));
  EXPECT_FALSE(is_same_word("a.b", "a-b"));
}

constexpr std::array<std::string_view, 5> kNames{"gpt-oss-20b", "gpt-oss-120b", "deepseek-v3",
                                                 "FLASHINFER_TRTLLM_MXFP4_BF16", "MARLIN"};

TEST(Meant, TakesTheNearestSpelling) {
  EXPECT_EQ(meant("gptoss120b", kNames), "gpt-oss-120b");
  EXPECT_EQ(meant("gpt_oss_20B", kNames), "gpt-oss-20b");
  EXPECT_EQ(meant("marln", kNames), "MARLIN");
  EXPECT_EQ(meant("zzzzzz", kNames), "");
  EXPECT_EQ(meant("", kNames), "");
  EXPECT_EQ(meant("fsh", std::array<std::string_view, 2>{"zsh", "fish"}), "fish");
}

TEST(Meant, TakesNamesThatHoldTheWordOrThatTheWordHolds) {
  EXPECT_EQ(meant("openai/gpt-oss-120b", kNames), "gpt-oss-120b");
  EXPECT_EQ(meant("deepseek", kNames), "deepseek-v3");
  EXPECT_EQ(meant("trtllm", kNames), "FLASHINFER_TRTLLM_MXFP4_BF16");
}

TEST(DidYouMean, SaysSoOrSomethingElse) {
  EXPECT_EQ(did_you_mean("marln", kNames), "did you mean MARLIN?");
  EXPECT_EQ(did_you_mean("zzzzzz", kNames), "");
  EXPECT_EQ(did_you_mean("zzzzzz", kNames, "See the list"), "See the list");
}

}  // namespace phrase_test
}  // namespace fp4moe
