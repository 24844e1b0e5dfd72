#include "fp4moe/vllm/mxfp4.hpp"

#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/vllm/nvfp4.hpp"

namespace fp4moe::vllm {
namespace mxfp4_test {

using enum Mxfp4MoeBackend;

Context context(std::string_view policy, std::string_view device = "h100") {
  return {.policy = std::string(policy), .device = *platform::describe_device(device)};
}
MoeConfig config(std::string_view policy, std::string_view device = "h100") {
  MoeConfig result{.has_bias = true};
  result.context = context(policy, device);
  return result;
}

// Adding a backend to a policy is one member and one value; these tests say which.
template <std::size_t N>
void expect_members(WeightFormat format, const std::array<std::string_view, N>& values) {
  std::set<std::string_view> there;
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.format != format) continue;
    for (const oracle::Backend* row : policy.backends) {
      there.insert(row->name);
      EXPECT_NE(std::ranges::find(values, row->name), values.end())
          << "no member for backend " << row->name << " of policy " << policy.name;
    }
  }
  for (const std::string_view value : values)
    EXPECT_TRUE(there.contains(value)) << value << " is a backend of no policy";
}
TEST(Backends, AreMembersForEveryPolicy) {
  expect_members(WeightFormat::mxfp4, kMxfp4MoeBackends);
  expect_members(WeightFormat::nvfp4, kNvFp4MoeBackends);
}

TEST(Backends, HaveTheReferencesValues) {
  EXPECT_EQ(to_string(NONE), "None");
  EXPECT_EQ(to_string(AITER_MXFP4_MXFP4), "AITER_MXFP4_MXFP4");
  EXPECT_EQ(to_string(NvFp4MoeBackend::VLLM_CUTLASS), "VLLM_CUTLASS");
  for (const std::string_view value : kMxfp4MoeBackends) {
    const auto member = parse_mxfp4_moe_backend(value);
    ASSERT_TRUE(member) << value;
    EXPECT_EQ(to_string(*member), value);
  }
  const auto none = parse_mxfp4_moe_backend("MARLYN");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.why().id, "vllm.backend");
  EXPECT_NE(none.why().remedy.find("MARLIN"), std::string::npos);
}

TEST(Select, GivesWhatTheWalkGivesForEveryPolicyAndDevice) {
  int selected = 0, refused = 0;
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.format != WeightFormat::mxfp4 || policy.name.ends_with("-deepseek-v4")) continue;
    for (const platform::DescribedDevice& device : platform::described_devices()) {
      for (const std::string backend_request : {"auto", "marlin", "triton", "no_such_name"}) {
        MoeConfig asked = config(policy.name, device.name);
        asked.moe_backend = backend_request;
        const oracle::Selection expected =
            oracle::select(policy, oracle::Mode::strict, request_of(asked, policy));
        oracle::Record record;
        const auto found = select_mxfp4_moe_backend(asked, {}, &record);
        const bool fails = expected.outcome == oracle::Outcome::error;
        ASSERT_EQ(static_cast<bool>(found), !fails) << policy.name << " " << device.name;
        if (fails) {
          EXPECT_EQ(found.why().id, "vllm.refused");
          EXPECT_EQ(found.why().message, expected.message);
          EXPECT_EQ(record.selection.message, expected.message);
          ++refused;
          continue;
        }
        EXPECT_EQ(to_string(found->backend),
                  expected.backend == nullptr ? "None" : expected.backend->name);
        EXPECT_EQ(found->experts_cls, expected.experts);
        EXPECT_FALSE(found->record.rows.empty());
        ++selected;
      }
    }
  }
  EXPECT_GT(selected, 50);
  EXPECT_GT(refused, 50);
}

TEST(Select, GivesEachDateItsOwnResult) {
  const auto april = select_gpt_oss_mxfp4_moe_backend(config("2026-04-24", "mi355x"));
  const auto march = select_mxfp4_moe_backend(config("2026-03-20", "cpu"));
  ASSERT_TRUE(april) << text(april.why());
  ASSERT_TRUE(march) << text(march.why());
  EXPECT_EQ(april->backend, TRITON);
  EXPECT_EQ(march->backend, NONE);
  EXPECT_EQ(march->experts_cls, nullptr);
  const auto gpt_oss = select_mxfp4_moe_backend(config("2026-08-22", "b200"));
  const auto deepseek = select_deepseek_v4_mxfp4_moe_backend(config("2026-08-22", "b200"));
  ASSERT_TRUE(gpt_oss) << text(gpt_oss.why());
  ASSERT_TRUE(deepseek) << text(deepseek.why());
  EXPECT_EQ(gpt_oss->backend, FLASHINFER_TRTLLM_MXFP4_BF16);
  EXPECT_EQ(deepseek->backend, FLASHINFER_TRTLLM_MXFP4_MXFP8);
  const auto none = select_deepseek_v4_mxfp4_moe_backend(config("2026-04-24"));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.why().id, "vllm.entry");
}

TEST(Select, TakesTheCheckpointsActivations) {
  const auto found = select_mxfp4_moe_backend(config("2026-08-22", "b200"), kMxfp8Dynamic);
  ASSERT_TRUE(found) << text(found.why());
  EXPECT_EQ(found->backend, FLASHINFER_TRTLLM_MXFP4_MXFP8);
}

TEST(Lists, AreTheReferences) {
  const auto april = get_priority_backends(config("2026-04-24"));
  ASSERT_TRUE(april);
  EXPECT_EQ(*april,
            (std::vector{FLASHINFER_TRTLLM_MXFP4_BF16, AITER, TRITON, FLASHINFER_CUTLASS_MXFP4_BF16,
                         TRITON_UNFUSED, MARLIN, BATCHED_MARLIN, XPU, EMULATION}));
  const auto march = get_priority_backends(config("2026-03-20"));
  ASSERT_TRUE(march);
  EXPECT_EQ((*march)[1], CK);
  EXPECT_EQ(march->back(), BATCHED_MARLIN);
  EXPECT_EQ(*backend_activation_key(FLASHINFER_TRTLLM_MXFP4_MXFP8), kMxfp8Dynamic);
  EXPECT_EQ(*backend_activation_key(MARLIN), std::nullopt);
  EXPECT_EQ(*backend_activation_key(DEEPGEMM_MXFP4, context("2026-08-22")), kFp8Dynamic128Sym);
  EXPECT_EQ(*map_mxfp4_backend("aiter", context("2026-08-22")),
            (std::vector{AITER_MXFP4_BF16, AITER_MXFP4_FP8, AITER_MXFP4_MXFP4}));
  EXPECT_EQ(*map_mxfp4_backend("ck", context("2026-03-20")), std::vector{CK});
  const auto unknown = map_mxfp4_backend("cutlass", context("2026-04-24"));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.why().id, "vllm.name");
  EXPECT_EQ(unknown.why().message,
            "moe_backend='cutlass' is not supported for MXFP4 MoE. Expected one of "
            "['flashinfer_trtllm', 'flashinfer_trtllm_afp8', 'flashinfer_cutlass', "
            "'flashinfer_cutlass_afp8', 'triton', 'marlin', 'aiter', 'xpu', 'emulation'].");
}

TEST(Classes, AreTriedInTheReferencesOrder) {
  const auto triton = backend_to_kernel_cls(TRITON, context("2026-04-24"));
  ASSERT_TRUE(triton);
  ASSERT_EQ(triton->size(), 2u);
  EXPECT_EQ((*triton)[0]->name, "OAITritonMxfp4ExpertsMonolithic");
  EXPECT_EQ((*triton)[1]->name, "OAITritonExperts");
  EXPECT_EQ(backend_to_kernel_cls(NONE, context("2026-04-24")).why().id, "vllm.no_class");
  EXPECT_EQ(backend_to_kernel_cls(CK, context("2026-04-24")).why().id, "vllm.backend");
}

TEST(Sizes, AreRoundedAsTheReferenceRounds) {
  const auto round = [](Mxfp4MoeBackend backend, std::string_view policy, std::string_view device) {
    const auto result = mxfp4_round_up_hidden_size_and_intermediate_size(backend, 2880, 2880,
                                                                         context(policy, device));
    return result ? *result : oracle::Sizes{};
  };
  EXPECT_EQ(round(MARLIN, "2026-04-24", "h100"), (oracle::Sizes{3072, 2944}));
  EXPECT_EQ(round(FLASHINFER_TRTLLM_MXFP4_BF16, "2026-04-24", "b200"), (oracle::Sizes{3072, 3072}));
  EXPECT_EQ(round(FLASHINFER_TRTLLM_MXFP4_BF16, "2026-08-22", "b200"), (oracle::Sizes{3072, 2944}));
  EXPECT_EQ(round(TRITON, "2026-04-24", "h100"), (oracle::Sizes{2880, 2880}));
  EXPECT_EQ(round(TRITON, "2026-03-20", "mi300x"), (oracle::Sizes{2944, 2944}));
}

}  // namespace mxfp4_test
}  // namespace fp4moe::vllm
