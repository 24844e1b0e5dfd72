#include "fp4moe/platform/findings.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/fake_root.hpp"

namespace fp4moe::platform {
namespace findings_test {

std::vector<Finding> findings(const Variables& variables, const PolicyVariables* policy = nullptr) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return environment_findings(names, read_environment(with(variables)), policy);
}

// The one finding there must be, as text with its severity.
std::string only(const Variables& variables, const PolicyVariables* policy = nullptr) {
  const std::vector<Finding> all = findings(variables, policy);
  if (all.size() != 1) return std::to_string(all.size()) + " findings";
  return std::string(name(all[0].severity)) + ": " + text(all[0]);
}

TEST(Findings, OrdinaryEnvironmentsHaveNone) {
  EXPECT_TRUE(findings({}).empty());
  EXPECT_TRUE(findings({{"PATH", "/bin"},
                        {"FP4MOE_THREADS", "2"},
                        {"FP4MOE_CPU_ISA", "neon"},
                        {"VLLM_LOGGING_LEVEL", "DEBUG"},
                        {"VLLM_ROCM_USE_AITER", "1"},
                        {"VLLM_ROCM_USE_AITER_MOE", "0"},
                        {"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "0"},
                        {"VLLM_MXFP4_USE_MARLIN", "1"},
                        {"VLLM_USE_FLASHINFER_MOE_FP4", "1"},
                        {"VLLM_FLASHINFER_MOE_BACKEND", "latency"}})
                  .empty());
}

TEST(Findings, UnknownVariablesOfOursAreNamedWithTheNearest) {
  EXPECT_EQ(only({{"FP4MOE_THREAD", "2"}}),
            "warning: FP4MOE_THREAD is not a variable of fp4moe; did you mean FP4MOE_THREADS?");
  EXPECT_EQ(only({{"FP4MOE_BANANA_SPLIT_SUNDAE", "2"}}),
            "warning: FP4MOE_BANANA_SPLIT_SUNDAE is not a variable of fp4moe; known are "
            "FP4MOE_THREADS, FP4MOE_CPU_ISA, FP4MOE_PIN, FP4MOE_OPENMP, FP4MOE_VLLM, "
            "FP4MOE_CUDA_KERNELS");
  EXPECT_EQ(findings({{"FP4MOE_\x1b[2J", "2"}})[0].variable, "FP4MOE_\\x1b[2J");
}

TEST(Findings, MisspelledVariablesOfTheReferenceAreNamed) {
  EXPECT_EQ(only({{"VLLM_MXFP4_USE_MARLN", "1"}}),
            "warning: VLLM_MXFP4_USE_MARLN is not a variable that any policy looks at; did you "
            "mean VLLM_MXFP4_USE_MARLIN?");
  EXPECT_EQ(only({{"VLLM_USE_FLASHINFER_MXFP4_BF16_MOE", "1"}}),
            "warning: VLLM_USE_FLASHINFER_MXFP4_BF16_MOE is an older name that no policy looks at; "
            "use VLLM_USE_FLASHINFER_MOE_MXFP4_BF16");
}

TEST(Findings, RealVariablesWithSimilarNamesAreLeftAlone) {
  for (const char* name :
       {"VLLM_USE_FLASHINFER_MOE_FP8", "VLLM_USE_FLASHINFER_MOE_FP16", "VLLM_ROCM_USE_AITER_MLA",
        "VLLM_ROCM_USE_AITER_RMSNORM", "VLLM_USE_DEEP_GEMM_E8M0", "VLLM_MOE_USE_DEEP_GEMM"})
    EXPECT_TRUE(findings({{name, "1"}}).empty()) << name;
}

TEST(Findings, ValuesWithoutMeaningAreNamed) {
  EXPECT_EQ(only({{"VLLM_MXFP4_USE_MARLIN", "yes"}}),
            "warning: VLLM_MXFP4_USE_MARLIN has the value 'yes', which means nothing to the "
            "reference; use a whole number; 0 means no");
  EXPECT_EQ(only({{"VLLM_MARLIN_INPUT_DTYPE", "fp16"}}),
            "warning: VLLM_MARLIN_INPUT_DTYPE has the value 'fp16', which means nothing to the "
            "reference; use int8 or fp8");
}

TEST(Findings, WordsThatLookLikeYesAndCountAsNoAreNamed) {
  EXPECT_EQ(only({{"VLLM_ROCM_USE_AITER", "yes"}}),
            "warning: VLLM_ROCM_USE_AITER has the value 'yes', which counts as no; use 1 or true "
            "for yes, 0 or false for no");
  for (const char* plain : {"0", "false", "False", ""})
    EXPECT_TRUE(findings({{"VLLM_ROCM_USE_AITER", plain}}).empty()) << plain;
}

TEST(Findings, TheFirstForcingSwitchWins) {
  EXPECT_EQ(only({{"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "1"}, {"VLLM_MXFP4_USE_MARLIN", "1"}}),
            "warning: VLLM_MXFP4_USE_MARLIN has no effect because "
            "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16 is on too and goes first; unset one of them");
  EXPECT_EQ(findings({{"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "1"},
                      {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "1"},
                      {"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS", "1"},
                      {"VLLM_MXFP4_USE_MARLIN", "1"}})
                .size(),
            3u);
  EXPECT_EQ(findings({{"VLLM_USE_FLASHINFER_MOE_FP4", "1"}, {"VLLM_TEST_FORCE_FP8_MARLIN", "1"}})[0]
                .variable,
            "VLLM_TEST_FORCE_FP8_MARLIN");
  // Different formats do not meet.
  EXPECT_TRUE(
      findings({{"VLLM_USE_FLASHINFER_MOE_FP4", "1"}, {"VLLM_MXFP4_USE_MARLIN", "1"}}).empty());
  // A switch that is off has no effect.
  EXPECT_TRUE(
      findings({{"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "0"}, {"VLLM_MXFP4_USE_MARLIN", "1"}})
          .empty());
}

TEST(Findings, SwitchesThatNeedAnotherAreNamed) {
  EXPECT_EQ(only({{"VLLM_FLASHINFER_MOE_BACKEND", "latency"}}),
            "warning: VLLM_FLASHINFER_MOE_BACKEND has no effect unless "
            "VLLM_USE_FLASHINFER_MOE_FP4=1; set VLLM_USE_FLASHINFER_MOE_FP4=1 or unset "
            "VLLM_FLASHINFER_MOE_BACKEND");
  EXPECT_EQ(findings({{"VLLM_ROCM_USE_AITER_MOE", "1"}, {"VLLM_ROCM_USE_AITER", "0"}})[0].variable,
            "VLLM_ROCM_USE_AITER_MOE");
}

TEST(Findings, SwitchesThatAreOffToNoEffectAreNotes) {
  EXPECT_EQ(only({{"VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8", "0"}}),
            "note: VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8 is off, which is the same as not setting "
            "it");
  EXPECT_EQ(only({{"VLLM_MXFP4_USE_MARLIN", "0"}}),
            "note: VLLM_MXFP4_USE_MARLIN is off, which matters to LoRA deployments only");
}

TEST(Findings, APolicyNamesTheVariablesItDoesNotLookAt) {
  const PolicyVariables policy{.policy = "2026-08-22", .reads = {Variable::rocm_use_aiter}};
  EXPECT_EQ(only({{"VLLM_MXFP4_USE_MARLIN", "1"}}, &policy),
            "note: VLLM_MXFP4_USE_MARLIN is set, but the policy 2026-08-22 does not look at it");
  EXPECT_TRUE(findings({{"VLLM_ROCM_USE_AITER", "1"}}, &policy).empty());
  // Nor do their values and conflicts matter then.
  EXPECT_EQ(findings({{"VLLM_MXFP4_USE_MARLIN", "x"},
                      {"VLLM_USE_FLASHINFER_MOE_MXFP4_BF16", "1"},
                      {"VLLM_FLASHINFER_MOE_BACKEND", "latency"}},
                     &policy)
                .size(),
            3u);
}

TEST(Findings, TheProcessKnowsItsOwnNames) {
  const std::vector<std::string> names = environment_names();
  EXPECT_EQ(std::ranges::count(names, "PATH"), std::getenv("PATH") == nullptr ? 0 : 1);
  for (const std::string& name : names) EXPECT_EQ(name.find('='), std::string::npos);
}

}  // namespace findings_test
}  // namespace fp4moe::platform
