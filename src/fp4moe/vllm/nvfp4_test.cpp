#include "fp4moe/vllm/nvfp4.hpp"

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"

namespace fp4moe::vllm {
namespace nvfp4_test {

using enum NvFp4MoeBackend;

Context context(std::string_view policy, std::string_view device = "b200") {
  return {.policy = std::string(policy), .device = *platform::describe_device(device)};
}
MoeConfig deepseek(std::string_view policy, std::string_view device = "b200") {
  MoeConfig result{.num_experts = 256,
                   .num_local_experts = 256,
                   .experts_per_token = 8,
                   .hidden_dim = 7168,
                   .intermediate_size_per_partition = 2048,
                   .activation = Activation::silu,
                   .routing_method = Routing::deepseek_v3};
  result.context = context(policy, device);
  return result;
}

TEST(NvFp4Select, GivesWhatTheWalkGivesForEveryPolicyAndDevice) {
  int selected = 0;
  for (const oracle::Policy& policy : backends::policies()) {
    if (policy.format != WeightFormat::nvfp4) continue;
    for (const platform::DescribedDevice& device : platform::described_devices()) {
      MoeConfig asked = deepseek(policy.name, device.name);
      const auto found = select_nvfp4_moe_backend(asked, kNvfp4Static, kNvfp4Dynamic);
      asked.activation_key = kNvfp4Dynamic;
      const oracle::Selection expected =
          oracle::select(policy, oracle::Mode::strict, request_of(asked, policy));
      ASSERT_EQ(static_cast<bool>(found), expected.outcome == oracle::Outcome::selected)
          << policy.name << " " << device.name;
      if (!found) {
        EXPECT_EQ(found.why().message, expected.message);
        continue;
      }
      EXPECT_EQ(to_string(found->backend), expected.backend->name);
      EXPECT_EQ(found->experts_cls, expected.experts);
      ++selected;
    }
  }
  EXPECT_GT(selected, 20);
}

TEST(NvFp4Select, AsksForNvfp4Weights) {
  const auto found = select_nvfp4_moe_backend(deepseek("2026-08-22"), kMxfp4Static, {});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.why().id, "vllm.key");
}

TEST(NvFp4Lists, AreTheReferences) {
  const auto april = get_available_nvfp4_backends(deepseek("2026-04-24"));
  ASSERT_TRUE(april);
  EXPECT_EQ(*april, (std::vector{FLASHINFER_TRTLLM, FLASHINFER_CUTEDSL, FLASHINFER_CUTEDSL_BATCHED,
                                 FLASHINFER_CUTLASS, VLLM_CUTLASS, MARLIN, EMULATION}));
  const auto newest = flashinfer_nvfp4_moe_backends();
  ASSERT_TRUE(newest);
  EXPECT_EQ(*newest,
            std::vector(kFlashInferNvFp4MoeBackends.begin(), kFlashInferNvFp4MoeBackends.end()));
  const auto seed = flashinfer_nvfp4_moe_backends(context("2026-01-seed"));
  ASSERT_TRUE(seed);
  EXPECT_EQ(*seed, (std::vector{FLASHINFER_TRTLLM, FLASHINFER_CUTLASS, FLASHINFER_CUTEDSL}));
  EXPECT_TRUE(*is_global_sf_supported_for_nvfp4_backend(FLASHINFER_CUTLASS));
  EXPECT_FALSE(*is_global_sf_supported_for_nvfp4_backend(VLLM_CUTLASS));
}

TEST(NvFp4Names, AreMappedSinceTheyExist) {
  EXPECT_EQ(*map_nvfp4_backend("cutlass"), VLLM_CUTLASS);
  const auto seed = map_nvfp4_backend("cutlass", context("2026-01-seed"));
  ASSERT_FALSE(seed);
  EXPECT_EQ(seed.why().id, "vllm.name");
  const auto unknown = map_nvfp4_backend("triton", context("2026-04-24"));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.why().message,
            "moe_backend='triton' is not supported for NvFP4 MoE. Expected one of ['cutlass', "
            "'flashinfer_trtllm', 'flashinfer_cutlass', 'flashinfer_cutedsl', 'marlin', "
            "'emulation'].");
}

TEST(NvFp4Classes, AreMissingWhereTheReferenceHasAFunction) {
  EXPECT_EQ(backend_2_kernel_cls(FLASHINFER_TRTLLM, context("2026-01-seed")).why().id,
            "vllm.no_class");
  const auto marlin = backend_2_kernel_cls(MARLIN, context("2026-01-seed"));
  ASSERT_TRUE(marlin);
  EXPECT_EQ((*marlin)->name, "MarlinExperts");
  EXPECT_EQ(parse_nvfp4_moe_backend("MARLINN").why().id, "vllm.backend");
}

}  // namespace nvfp4_test
}  // namespace fp4moe::vllm
