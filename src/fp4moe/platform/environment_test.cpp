#include "fp4moe/platform/environment.hpp"

#include <set>

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace fp4moe::platform {
namespace environment_test {

// What one text means for one variable: "true", "false" or the id of the error.
std::string meaning(Variable variable, std::string_view value) {
  Environment environment;
  environment.set(variable, value);
  const Result<bool> flag = environment.flag(variable);
  if (!flag) return flag.why().id;
  EXPECT_EQ(environment.is_true(variable), *flag);
  EXPECT_EQ(environment.is_false(variable), !*flag);
  return *flag ? "true" : "false";
}

TEST(Variables, HaveTheOrderOfTheirEnumerationAndUniqueNames) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kVariables; ++i) {
    const VariableRow& about = variables()[i];
    EXPECT_EQ(static_cast<std::size_t>(about.variable), i) << about.name;
    EXPECT_TRUE(names.insert(about.name).second) << about.name;
    EXPECT_EQ(find_variable(about.name), &about);
    EXPECT_EQ(&row(about.variable), &about);
    EXPECT_TRUE(about.name.starts_with("VLLM_"));
    EXPECT_FALSE(about.accepted.empty());
    EXPECT_FALSE(about.effect.empty());
  }
  EXPECT_EQ(find_variable("VLLM_NO_SUCH_VARIABLE"), nullptr);
}

TEST(Variables, HaveTheirUnsetValueUntilTheyAreSet) {
  const Environment environment = read_environment(with({}));
  for (const VariableRow& about : variables()) {
    EXPECT_FALSE(environment.is_set(about.variable));
    EXPECT_EQ(*environment.flag(about.variable), about.when_unset) << about.name;
    EXPECT_FALSE(environment.is_true(about.variable));
    EXPECT_FALSE(environment.is_false(about.variable));
  }
  EXPECT_TRUE(*environment.flag(Variable::rocm_use_aiter_moe));
  EXPECT_TRUE(*environment.flag(Variable::use_deep_gemm));
  EXPECT_FALSE(*environment.flag(Variable::rocm_use_aiter));
}

TEST(Variables, IntegersAreReadAsTheReferenceReadsThem) {
  constexpr auto kOne = Variable::mxfp4_use_marlin;
  for (const char* yes : {"1", "2", "-1", "+3", " 1 ", "1_000", "\t7\n"})
    EXPECT_EQ(meaning(kOne, yes), "true") << yes;
  for (const char* no : {"0", "-0", "+0", "00", "0_0", " 0"})
    EXPECT_EQ(meaning(kOne, no), "false") << no;
  for (const char* bad : {"", " ", "true", "1.0", "1x", "_1", "1_", "1__0", "--1", "+", "0x1"})
    EXPECT_EQ(meaning(kOne, bad), "environment.value") << bad;
}

TEST(Variables, WordsAreYesOnlyAsTrueOrOne) {
  for (const char* yes : {"1", "true", "True", "TRUE"}) {
    EXPECT_EQ(meaning(Variable::rocm_use_aiter, yes), "true") << yes;
    EXPECT_EQ(meaning(Variable::test_force_fp8_marlin, yes), "true") << yes;
  }
  for (const char* no : {"", "0", "yes", "on", "2", "false"})
    EXPECT_EQ(meaning(Variable::rocm_use_aiter, no), "false") << no;
  EXPECT_EQ(meaning(Variable::rocm_use_aiter, " 1"), "false");
  EXPECT_EQ(meaning(Variable::test_force_fp8_marlin, " 1 "), "true");
}

TEST(Variables, ChoicesAreOneOfTheirWords) {
  for (const char* word : {"throughput", "latency", "masked_gemm"})
    EXPECT_EQ(meaning(Variable::flashinfer_moe_backend, word), "true") << word;
  for (const char* bad : {"", "Latency", "latency ", "fast"})
    EXPECT_EQ(meaning(Variable::flashinfer_moe_backend, bad), "environment.value") << bad;
  EXPECT_EQ(meaning(Variable::marlin_input_dtype, "int8"), "true");
  EXPECT_EQ(meaning(Variable::marlin_input_dtype, "fp8"), "true");
  EXPECT_EQ(meaning(Variable::marlin_input_dtype, "bf16"), "environment.value");
  EXPECT_EQ(meaning(Variable::humming_gemm_type, "Grouped_Contiguous"), "true");
  EXPECT_EQ(meaning(Variable::humming_gemm_type, "batched"), "true");  // taken as it stands
  EXPECT_EQ(meaning(Variable::rocm_aiter_situv2, "A8W4"), "true");
  EXPECT_EQ(meaning(Variable::rocm_aiter_situv2, "a2w4"), "environment.value");
  EXPECT_EQ(meaning(Variable::rocm_aiter_a4w4_dsv4, "1"), "true");
  EXPECT_EQ(meaning(Variable::rocm_aiter_a4w4_dsv4, "yes"), "environment.value");
}

TEST(Variables, AMalformedValueIsNeitherTrueNorFalse) {
  Environment environment;
  environment.set(Variable::flashinfer_fp4, "maybe");
  EXPECT_TRUE(environment.is_set(Variable::flashinfer_fp4));
  EXPECT_FALSE(environment.is_true(Variable::flashinfer_fp4));
  EXPECT_FALSE(environment.is_false(Variable::flashinfer_fp4));

  const Result<bool> flag = environment.flag(Variable::flashinfer_fp4);
  ASSERT_FALSE(flag);
  EXPECT_EQ(flag.why().code, ErrorCode::usage);
  EXPECT_EQ(flag.why().found, "'maybe'");
  EXPECT_NE(flag.why().message.find("VLLM_USE_FLASHINFER_MOE_FP4"), std::string::npos);
  EXPECT_FALSE(flag.why().remedy.empty());
}

TEST(Variables, SetToNothingIsStillSet) {
  const Environment environment =
      read_environment(with({{"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", ""}}));
  EXPECT_TRUE(environment.is_set(Variable::flashinfer_mxfp4_bf16));
  EXPECT_EQ(environment.text(Variable::flashinfer_mxfp4_bf16), "");
}

TEST(Variables, CanBeUnsetAgain) {
  Environment environment;
  environment.set(Variable::batch_invariant, "1");
  EXPECT_TRUE(environment.is_true(Variable::batch_invariant));
  environment.unset(Variable::batch_invariant);
  EXPECT_FALSE(environment.is_set(Variable::batch_invariant));
}

TEST(Variables, TheWholeEnvironmentIsCheckedInTheOrderOfTheTable) {
  EXPECT_TRUE(check_environment(read_environment(with({}))));
  EXPECT_TRUE(check_environment(read_environment(with({{"VLLM_BATCH_INVARIANT", "1"}}))));
  const Result<Done> checked = check_environment(
      read_environment(with({{"VLLM_MARLIN_INPUT_DTYPE", "x"}, {"VLLM_BATCH_INVARIANT", "on"}})));
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.why().message.find("VLLM_BATCH_INVARIANT"), std::string::npos);
}

}  // namespace environment_test
}  // namespace fp4moe::platform
