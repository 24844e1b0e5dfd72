#include <gtest/gtest.h>

#include "support/command_line.hpp"

namespace fp4moe::cli {
namespace numbers_test {

using testing::has;
using testing::Outcome;
using testing::run;

Json asked(const std::string& numbers) {
  const Outcome outcome = run({"numbers", "--json", "--", numbers});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return *parse_json(outcome.out);
}

const Json& row(const Json& rows, std::string_view rule) {
  for (const Json& one : rows)
    if (one["rule"].string() == rule) return one;
  static const Json kNone;
  ADD_FAILURE() << "no rule " << rule;
  return kNone;
}

TEST(Numbers, ATieGoesToTheEvenCodeOrAway) {
  const Json answer = asked("-5");
  const Json& codes = answer["numbers"][0]["codes"];
  EXPECT_EQ(codes[0]["value"], Json(-4.0));  // e2m1, to even
  EXPECT_EQ(codes[1]["value"], Json(-6.0));  // e2m1, away
  EXPECT_EQ(answer["numbers"][0]["float32"], Json("c0a00000"));
}

TEST(Numbers, ABlockHasItsScaleByEveryRule) {
  const Json answer = asked("7,-1,0.25");
  const Json& floor4 = row(answer["blocks"], "mxfp4.floor4.rne");
  EXPECT_EQ(floor4["scales"], Json(std::vector<int>{127}));
  EXPECT_EQ(floor4["values"], Json(std::vector<double>{6, -1, 0}));
  EXPECT_EQ(floor4["worst_error"], Json(1.0));
  const Json& ceil6 = row(answer["blocks"], "mxfp4.ceil6.rne");
  EXPECT_EQ(ceil6["scales"], Json(std::vector<int>{128}));
  EXPECT_EQ(row(answer["blocks"], "nvfp4.no_global")["global_scale"], Json());
}

TEST(Numbers, OverSixteenAnNvfp4BlockHasTwoScales) {
  std::string numbers = "448";
  for (int i = 1; i < 17; ++i) numbers += ",1";
  const Json answer = asked(numbers);
  const Json& block = row(answer["blocks"], "nvfp4.reference");
  EXPECT_EQ(block["scales"].size(), 2u);
  EXPECT_EQ(block["codes"].size(), 17u);
}

TEST(Numbers, WhatJsonLacksAreTexts) {
  const Json answer = asked("inf,nan,1e400,-1e-400");
  EXPECT_EQ(answer["numbers"][0]["value"], Json("inf"));
  EXPECT_EQ(answer["numbers"][1]["value"], Json("nan"));
  EXPECT_EQ(answer["numbers"][2]["value"], Json("inf"));
  EXPECT_EQ(answer["numbers"][3]["float32"], Json("80000000"));
}

// The second scale of an NVFP4 block knows nothing of a NaN among the first 16 numbers.
TEST(Numbers, TheErrorOfABlockWithANanIsNan) {
  std::string numbers = "nan";
  for (int i = 1; i < 17; ++i) numbers += ",1";
  const Json answer = asked(numbers);
  for (const Json& block : answer["blocks"]) {
    EXPECT_EQ(block["worst_error"], Json("nan")) << block["rule"].string();
  }
}

TEST(Numbers, RefusesWordsAndTooMany) {
  for (const std::string words : {"1,two", "0x10", "1e"})
    EXPECT_TRUE(has(run({"numbers", words}).err, "[numbers.value]")) << words;
  std::string many = "1";
  for (int i = 0; i < 32; ++i) many += ",1";
  EXPECT_TRUE(has(run({"numbers", many}).err, "[numbers.count]"));
}

}  // namespace numbers_test
}  // namespace fp4moe::cli
