#include "fp4moe/base/shell_word.hpp"

#include <array>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

namespace fp4moe {
namespace shell_word_test {

std::string as_shell_reads(const std::string& word) {
  std::FILE* const shell = popen(("printf %s " + shell_word(word)).c_str(), "r");
  std::array<char, 256> text{};
  const std::size_t count = std::fread(text.data(), 1, text.size(), shell);
  pclose(shell);
  return {text.data(), count};
}

TEST(ShellWord, IsPlainWhereItCan) {
  EXPECT_EQ(shell_word("./gpt-oss_20b/a=1,b:2+3@4%5"), "./gpt-oss_20b/a=1,b:2+3@4%5");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(ShellWord, IsReadBackByAShell) {
  for (const std::string word : {"a b", "it's", "'; echo gone; '", "$HOME", "`id`", "~", "\\n", "!",
                                 "*", "\xc3\xa4", "--a=(1)", "a\nb"})
    EXPECT_EQ(as_shell_reads(word), word);
}

}  // namespace shell_word_test
}  // namespace fp4moe
