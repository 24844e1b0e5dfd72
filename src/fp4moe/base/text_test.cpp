#include "fp4moe/base/text.hpp"

#include <array>

#include <gtest/gtest.h>

namespace fp4moe {
namespace text_test {

TEST(Printable, KeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("plain"), "plain");
  EXPECT_EQ(printable("grün 東 🎉"), "grün 東 🎉");
  EXPECT_EQ(printable("a\tb\x7f"), "a\\x09b\\x7f");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, CutsLongText) {
  const std::string shown = printable(std::string(1'000'000, 'x'));
  EXPECT_EQ(shown, std::string(200, 'x') + "...");
  EXPECT_EQ(printable(std::string(200, 'x')), std::string(200, 'x'));
}

TEST(Utf8, AcceptsTheEdgesOfEveryLength) {
  for (const char* text : {"", "\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(text)) << printable(text);
}

TEST(Utf8, RefusesWhatIsNotShortestOrNotACharacter) {
  for (const char* text :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc2", "\xe1\x80", "\xf1\x80\x80",
        "\xc2\x41", "\xe1\x80\x41", "ok\xfe"})
    EXPECT_FALSE(is_utf8(text)) << printable(text);
}

// Every two-byte string against the definition.
TEST(Utf8, AgreesWithTheDefinitionForAllPairs) {
  for (unsigned first = 0; first < 256; ++first)
    for (unsigned second = 0; second < 256; ++second) {
      const std::string pair{static_cast<char>(first), static_cast<char>(second)};
      const bool two_letters = first < 0x80 && second < 0x80;
      const bool one_of_two = first >= 0xC2 && first <= 0xDF && second >= 0x80 && second <= 0xBF;
      EXPECT_EQ(is_utf8(pair), two_letters || one_of_two) << first << " " << second;
    }
}

TEST(HumanBytes, ChoosesTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(std::uint64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16384.00 PiB");
}

TEST(Join, PutsTheSeparatorBetween) {
  const std::vector<std::string> parts{"a", "", "c"};
  EXPECT_EQ(join(parts, ", "), "a, , c");
  EXPECT_EQ(join({}, ", "), "");
}

TEST(Split, KeepsEmptyParts) {
  EXPECT_EQ(split("a..b.", '.'), (std::vector<std::string_view>{"a", "", "b", ""}));
  EXPECT_EQ(split("", '.'), (std::vector<std::string_view>{""}));
}

TEST(Nearest, FindsTheWordThatWasMeant) {
  constexpr std::array<std::string_view, 4> kWords{"h100", "h200", "rtx5090", "mi300x"};
  EXPECT_EQ(nearest("h10", kWords), "h100");    // one letter short
  EXPECT_EQ(nearest("h2000", kWords), "h200");  // one too many
  EXPECT_EQ(nearest("rtx5080", kWords), "rtx5090");
  EXPECT_EQ(nearest("im300x", kWords), "mi300x");  // two swapped count as one
  EXPECT_EQ(nearest("RTX-5090", kWords), "rtx5090");
}

TEST(Nearest, CountsASwapOfNeighborsOnce) {
  constexpr std::array<std::string_view, 1> kWords{"abc"};
  EXPECT_EQ(nearest("acb", kWords), "abc");
  EXPECT_EQ(nearest("cab", kWords), "");  // two steps, and one letter in three may differ
}

TEST(Nearest, TakesTheFirstOfEqualsAndAnExactWordBeforeAll) {
  constexpr std::array<std::string_view, 3> kWords{"ab1", "ab2", "ab3"};
  EXPECT_EQ(nearest("ab9", kWords), "ab1");
  EXPECT_EQ(nearest("ab3", kWords), "ab3");
}

TEST(Nearest, KeepsToANumberOfEdits) {
  constexpr std::array<std::string_view, 1> kWords{"abcdefghij"};
  EXPECT_EQ(nearest("abcdefgh", kWords, 2), "abcdefghij");
  EXPECT_EQ(nearest("abcdefgh", kWords, 1), "");
  EXPECT_EQ(nearest("abcdefghij", kWords, 0), "abcdefghij");
}

TEST(Nearest, IsEmptyWhenNothingIsNear) {
  constexpr std::array<std::string_view, 2> kWords{"h100", "mi300x"};
  EXPECT_EQ(nearest("potato", kWords), "");
  EXPECT_EQ(nearest("", kWords), "");
  EXPECT_EQ(nearest("h100", {}), "");
  EXPECT_EQ(nearest(std::string(1'000'000, 'h'), kWords), "");
}

TEST(Wildcard, MatchesRunsAndSingleCharacters) {
  EXPECT_TRUE(matches_wildcard("*", ""));
  EXPECT_TRUE(matches_wildcard("", ""));
  EXPECT_TRUE(matches_wildcard("a*c", "abbc"));
  EXPECT_TRUE(matches_wildcard("a*b*c", "aXbXbXc"));
  EXPECT_TRUE(matches_wildcard("?b", "ab"));
  EXPECT_TRUE(matches_wildcard("*.mlp.*", "model.layers.0.mlp.experts"));
  EXPECT_TRUE(matches_wildcard("**a", "bba"));
  EXPECT_TRUE(matches_wildcard("*a", "*a"));
  EXPECT_FALSE(matches_wildcard("?", ""));
  EXPECT_FALSE(matches_wildcard("a", "ab"));
  EXPECT_FALSE(matches_wildcard("ab", "a"));
  EXPECT_FALSE(matches_wildcard("a*c", "ab"));
  EXPECT_FALSE(matches_wildcard("", "a"));
}

TEST(Wildcard, StaysQuickOnManyStars) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(matches_wildcard(pattern + "b", std::string(5000, 'a')));
}

}  // namespace text_test
}  // namespace fp4moe
