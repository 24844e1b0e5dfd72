#include "fp4moe/platform/pseudo_file.hpp"

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace fp4moe::platform {
namespace pseudo_file_test {

TEST(PseudoFile, IsReadUpToABound) {
  const FakeRoot root;
  root.file("/a", "0123456789");

  EXPECT_EQ(read_start(root.path() + "/a"), "0123456789");
  EXPECT_EQ(read_start(root.path() + "/a", 4), "0123");
  EXPECT_EQ(read_start(root.path() + "/missing"), "");
  EXPECT_EQ(read_start(root.path()), "");  // a folder
}

TEST(PseudoFile, EntriesAreOrderedByTheirNumbers) {
  const FakeRoot root;
  for (const char* name : {"/card10", "/card2", "/card2-HDMI-A-1", "/renderD128", "/card"})
    root.file(name);

  EXPECT_EQ(entry_names(root.path()),
            (std::vector<std::string>{"card", "card2", "card10", "card2-HDMI-A-1", "renderD128"}));
  EXPECT_TRUE(entry_names(root.path() + "/missing").empty());
}

TEST(PseudoFile, PathsAreJoined) { EXPECT_EQ(inside("/a/b", "c"), "/a/b/c"); }

TEST(PseudoFile, KindsOfEntriesAreTold) {
  const FakeRoot root;
  root.file("/text");
  root.program("/tool");

  EXPECT_TRUE(exists(root.path()));
  EXPECT_FALSE(exists(root.path() + "/missing"));
  EXPECT_TRUE(is_file(root.path() + "/text"));
  EXPECT_FALSE(is_program(root.path() + "/text"));
  EXPECT_TRUE(is_program(root.path() + "/tool"));
  EXPECT_FALSE(is_program(root.path()));
  EXPECT_TRUE(is_folder(root.path()));
  EXPECT_FALSE(is_folder(root.path() + "/missing"));
}

TEST(PseudoFile, ValuesAreFoundByTheirKeys) {
  constexpr std::string_view kLines = "a 1\n  b   22 \nbad 3x\nempty \nb 4";
  EXPECT_EQ(value_of("k : v : w\n", "k", ':'), "v : w");
  EXPECT_EQ(number_of(kLines, "a", ' '), 1u);
  EXPECT_EQ(number_of(kLines, "b", ' '), 22u);
  EXPECT_EQ(number_of(kLines, "bad", ' '), std::nullopt);
  EXPECT_EQ(number_of(kLines, "empty", ' '), std::nullopt);
  EXPECT_EQ(number_of(kLines, "missing", ' '), std::nullopt);
  EXPECT_EQ(number_of("big 99999999999999999999", "big", ' '), std::nullopt);
  EXPECT_EQ(number_of("minus -1", "minus", ' '), std::nullopt);
}

}  // namespace pseudo_file_test
}  // namespace fp4moe::platform
