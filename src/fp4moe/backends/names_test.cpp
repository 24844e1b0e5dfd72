#include "fp4moe/backends/names.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"

namespace fp4moe::backends {
namespace names_test {

using oracle::Backend;
using oracle::NamedChoice;
using oracle::Policy;
using oracle::WeightFormat;

std::string in_other_letters(std::string_view name) {
  std::string result;
  for (const char c : name)
    result += c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

TEST(BackendNames, EveryNameOfEveryPolicyIsFoundInEverySpelling) {
  for (const Policy& policy : policies()) {
    for (const std::string_view name : backend_names(policy)) {
      ASSERT_NE(find_by_any_name(policy, name), nullptr) << policy.name << " " << name;
      EXPECT_EQ(find_by_any_name(policy, name)->name, name);
      EXPECT_EQ(find_by_any_name(policy, in_other_letters(name))->name, name);
    }
    for (const NamedChoice& choice : policy.names) {
      const Backend* found = find_by_any_name(policy, in_other_letters(choice.name));
      ASSERT_NE(found, nullptr) << policy.name << " " << choice.name;
      EXPECT_NE(std::ranges::find(choice.backends, found), choice.backends.end()) << choice.name;
    }
  }
}

TEST(BackendNames, TheValueForNoneIsNeitherListedNorMeant) {
  for (const Policy& policy : policies()) {
    EXPECT_EQ(find_by_any_name(policy, "none"), nullptr);
    const auto names = backend_names(policy);
    EXPECT_EQ(std::ranges::find(names, "None"), names.end());
    const Policy* const asked[] = {&policy};
    const Error why = unknown_backend(asked, "NOPE");
    EXPECT_EQ(why.id, "choice.backend");
    EXPECT_EQ(why.remedy.find("None"), std::string::npos) << why.remedy;
    EXPECT_EQ(why.expected.find("None"), std::string::npos);
  }
}

TEST(BackendNames, WordsLeadToTheirBackend) {
  const Policy& august = *find_policy("2026-08-22", WeightFormat::mxfp4);
  const auto first_word = [&](std::string_view name) {
    const auto words = words_for(august, *find_by_any_name(august, name));
    return words.empty() ? std::string_view() : words.front();
  };
  EXPECT_EQ(first_word("FLASHINFER_TRTLLM_MXFP4_BF16"), "flashinfer_trtllm");
  EXPECT_EQ(first_word("FLASHINFER_TRTLLM_MXFP4_MXFP8"), "flashinfer_trtllm_afp8");
  EXPECT_EQ(first_word("AITER_MXFP4_FP8"), "aiter_mxfp4_fp8");
  EXPECT_EQ(first_word("BATCHED_MARLIN"), "marlin");
  const Policy& april = *find_policy("2026-04-24", WeightFormat::mxfp4);
  EXPECT_TRUE(words_for(april, *find_by_any_name(april, "TRITON_UNFUSED")).empty());
}

TEST(BackendNames, UnknownOnesAreToldApart) {
  const Policy* const nvfp4[] = {find_policy("2026-08-22", WeightFormat::nvfp4)};
  const Error other_weights = unknown_backend(nvfp4, "triton");
  EXPECT_EQ(other_weights.message, "this backend has no kernels for nvfp4 weights");
  const Policy* const april[] = {find_policy("2026-04-24", WeightFormat::mxfp4)};
  const Error other_policy = unknown_backend(april, "AITER_MXFP4_FP8");
  EXPECT_NE(other_policy.remedy.find("2026-08-22"), std::string::npos) << other_policy.remedy;
  EXPECT_EQ(unknown_backend(april, "marlyn").remedy, "did you mean MARLIN?");
  EXPECT_EQ(unknown_backend(april, "zzzzzzz").remedy, "see fp4moe list backends");
}

}  // namespace names_test
}  // namespace fp4moe::backends
