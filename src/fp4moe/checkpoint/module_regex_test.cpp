#include "fp4moe/checkpoint/module_regex.hpp"

#include <string>

#include <gtest/gtest.h>

namespace fp4moe::checkpoint {
namespace module_regex_test {

bool matches(std::string_view pattern, std::string_view name) {
  const auto regex = ModuleRegex::parse(pattern);
  EXPECT_TRUE(regex) << pattern;
  return regex && regex->matches(name);
}

TEST(ModuleRegex, MatchesAsPythonsReMatch) {
  constexpr std::string_view kName = "model.layers.12.self_attn.q_proj";
  for (const std::string_view pattern :
       {"model", "", ".*q_proj$", ".*self_attn\\.(q|k|v|o)_proj$", "^model\\.layers\\.\\d+\\.",
        ".*\\.1[0-9]\\..*", ".*layers\\.(0|1[2-5])\\.self.*", ".*[qkv]_proj", ".*[^k]_proj$",
        "(?:model|other)\\..*", "model\\.\\w+\\.\\d{1,3}\\.", "model\\.\\w+\\.\\d{2}\\.", "mo?del",
        ".+?attn", "a*model", "(model|(x|y))+", ".*q_proj$|lm_head", "model.layers.12.self_attn"})
    EXPECT_TRUE(matches(pattern, kName)) << pattern;
  for (const std::string_view pattern :
       {"layers", "q_proj$", ".*self_attn\\.(k|v)_proj$", ".*layers\\.(0|1[3-5])\\.self.*",
        "model$", "model\\.\\w+\\.\\d{3}\\.", ".*x^model", "model\\.\\D+\\.self", "b+model"})
    EXPECT_FALSE(matches(pattern, kName)) << pattern;
  EXPECT_TRUE(matches("[]x]+$", "]x]"));
  EXPECT_TRUE(matches("a{2,}b$", "aaaab"));
  EXPECT_FALSE(matches("a{,2}b$", "aaab"));
}

TEST(ModuleRegex, WhatIsNotUnderstoodIsNone) {
  for (const std::string_view pattern : {"(?!x).*", "(?P<a>x)", "\\bx", "(a)\\1", "(", "(a", "a)",
                                         "[a", "*a", "a\\", "[b-a]", "a{", "a{2", "a{3,2}", "a{}"})
    EXPECT_FALSE(ModuleRegex::parse(pattern)) << pattern;
  EXPECT_FALSE(ModuleRegex::parse(std::string(1000, '(') + std::string(1000, ')')));
  EXPECT_FALSE(ModuleRegex::parse("((a{100}){100}){100}"));
}

TEST(ModuleRegex, TakesNoLongerThanPatternTimesName) {
  const std::string name(20000, 'a');
  EXPECT_FALSE(matches("(a*)*(a|a)*(a*a*)*b$", name));
}

}  // namespace module_regex_test
}  // namespace fp4moe::checkpoint
