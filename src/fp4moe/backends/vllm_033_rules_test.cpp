// Policy vllm-0.33.0: rules of single kernels, lists and exchanges that no golden case may touch.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/oracle/vllm/assembly.hpp"
#include "support/vllm_033.hpp"

namespace fp4moe::backends {
namespace vllm_033_rules_test {

using namespace vllm_033;  // NOLINT(google-build-using-namespace): its requests

TEST(Vllm033Rules, AiterSaysHowToEnableItOnlyWhereItsSwitchIsOff) {
  constexpr std::string_view kNote =
      ". AITER MoE is not enabled — set VLLM_ROCM_USE_AITER=1 and VLLM_ROCM_USE_AITER_MOE=1 to "
      "enable it.";
  Request request = on("mi355x", gpt_oss());
  request.layer.backend = "aiter_mxfp4_mxfp4";
  EXPECT_TRUE(chosen(gpt_oss(), request).ends_with(kNote));
  request.environment.set(Variable::rocm_use_aiter, "1");
  EXPECT_EQ(chosen(gpt_oss(), request), "AITER_MXFP4_MXFP4 AiterMxfp4Experts");
  request.environment.set(Variable::rocm_use_aiter_moe, "0");
  EXPECT_TRUE(chosen(gpt_oss(), request).ends_with(kNote));
  // The monolithic classes ask for the first switch alone, and say nothing.
  request.layer.backend = "aiter_mxfp4_fp8";
  EXPECT_EQ(chosen(gpt_oss(), request), "AITER_MXFP4_FP8 AiterW4A8ExpertsMonolithic");
  request.environment.set(Variable::rocm_use_aiter, "0");
  EXPECT_TRUE(chosen(gpt_oss(), request).ends_with("current device rocm."));
}

TEST(Vllm033Rules, AiterW4A8SharesNoExperts) {
  Request request = on("mi455x", gpt_oss());
  request.environment.set(Variable::rocm_use_aiter, "1");
  request.layer.backend = "aiter_mxfp4_fp8";
  EXPECT_EQ(chosen(gpt_oss(), request), "AITER_MXFP4_FP8 AiterW4A8ExpertsMonolithic");
  request.layer.parallel = expert_parallel("allgather_reducescatter", 1);
  EXPECT_NE(chosen(gpt_oss(), request).find("parallel config"), std::string::npos);
  request.layer.backend = "aiter_triton_mxfp4_bf16";  // which minds only exchanges
  EXPECT_EQ(chosen(gpt_oss(), request), "AITER_TRITON_MXFP4_BF16 AiterW4A16ExpertsMonolithic");
  request.layer.parallel = expert_parallel("allgather_reducescatter");
  EXPECT_NE(chosen(gpt_oss(), request).find("parallel config"), std::string::npos);
}

// With a request: its own backends and EMULATION first, then those with 16-bit activations.
TEST(Vllm033Rules, EmulationComesBeforeSixteenBitsWhereFormsAreAskedFor) {
  Request request = on("mi355x", gpt_oss());
  request.device.libraries.insert(Library::quark);
  EXPECT_EQ(chosen(gpt_oss(), request), "TRITON OAITritonMxfp4ExpertsMonolithic");
  request.layer.activation_key = ActivationKey::mxfp4;
  const Selection result = select(gpt_oss(), Mode::compat, request);
  ASSERT_EQ(result.outcome, Outcome::selected);
  EXPECT_EQ(result.backend->name, "EMULATION");
  EXPECT_EQ(result.activation, ActivationKey::mxfp4);
  EXPECT_TRUE(result.warned.empty());
  request.device.libraries.erase(Library::quark);
  EXPECT_EQ(chosen(gpt_oss(), request), "TRITON OAITritonMxfp4ExpertsMonolithic");
  EXPECT_EQ(select(gpt_oss(), Mode::compat, request).warned.size(), 1u);
}

TEST(Vllm033Rules, TwoWishesForActivationsContradictEachOtherOnlyInTheFirstEntry) {
  Request request = on("b200", gpt_oss());
  request.layer.activation_key = ActivationKey::mxfp8;
  request.layer.activation_override = ActivationKey::mxfp4;
  EXPECT_EQ(chosen(gpt_oss(), request),
            "checkpoint declares MoE activation=QuantKey(f8e4m3fn,scale(u8,dynamic,GroupShape(row=1"
            ", col=32)),symmetric) but quantization_config.moe.activation=QuantKey(u8,scale(u8,"
            "dynamic,GroupShape(row=1, col=32)),symmetric); remove the override or align it with "
            "the checkpoint.");
  Request other = on("b200", generic());
  other.layer.activation_key = ActivationKey::mxfp8;
  other.layer.activation_override = ActivationKey::mxfp4;
  EXPECT_EQ(chosen(generic(), other), "FLASHINFER_TRTLLM_MXFP4_MXFP8 TrtLlmMxfp4ExpertsMonolithic");
}

TEST(Vllm033Rules, B12xIn16BitsByVariableIsAFallbackOfWhatWasAskedFor) {
  Request request = on("rtx5090", gpt_oss());
  request.device.libraries.insert(Library::b12x);
  request.layer.has_bias = false;
  request.layer.activation = Activation::silu;
  request.layer.hidden = 3072;
  request.layer.backend = "b12x";
  request.layer.activation_key = ActivationKey::mxfp8;
  EXPECT_EQ(chosen(gpt_oss(), request), "B12X_MXFP4_MXFP8 B12xExperts");
  EXPECT_TRUE(select(gpt_oss(), Mode::compat, request).warned.empty());
  request.environment.set(Variable::b12x_force_a16, "1");
  EXPECT_EQ(chosen(gpt_oss(), request), "B12X_MXFP4_BF16 B12xExperts");
  const Selection result = select(gpt_oss(), Mode::compat, request);
  ASSERT_EQ(result.warned.size(), 1u);
  EXPECT_TRUE(
      result.warned[0].ends_with("Falling back to 'B12X_MXFP4_BF16' with BF16 activations."));
}

TEST(Vllm033Rules, CutlassInMxfp4NeedsBlackwellOfDataCentersOrThorAndNoUpsettingExchange) {
  const auto refused = [](std::string_view part, std::string_view all2all) {
    Request request = on(part, gpt_oss());
    if (!all2all.empty()) request.layer.parallel = expert_parallel(all2all);
    return refusal(gpt_oss(), request, "CUTLASS_MXFP4_MXFP4", "CutlassExpertsMxfp4");
  };
  EXPECT_EQ(refused("b200", ""), "");
  EXPECT_EQ(refused("thor", ""), "");
  EXPECT_NE(refused("rtx5090", ""), "");
  EXPECT_NE(refused("h100", ""), "");
  EXPECT_EQ(refused("b200", "allgather_reducescatter"), "");
  EXPECT_NE(refused("b200", "deepep_high_throughput"), "");
  EXPECT_NE(refused("b200", "flashinfer_nvlink_one_sided"), "");
  EXPECT_NE(refused("b200", "deepep_low_latency"), "");  // the form of tokens
}

TEST(Vllm033Rules, IntelGpusAreAnnouncedBeforeTheyAreRefused) {
  Request request = on("xpu", gpt_oss());
  request.layer.lora = true;
  const Selection compat = select(gpt_oss(), Mode::compat, request);
  EXPECT_EQ(compat.outcome, Outcome::error);
  EXPECT_EQ(compat.error, oracle::ErrorKind::value);
  EXPECT_EQ(compat.log, std::vector<std::string>{"Using 'XPU' Mxfp4 MoE backend."});
  EXPECT_TRUE(compat.message.ends_with("since kernel does not support LoRA."));
  EXPECT_TRUE(select(gpt_oss(), Mode::strict, request).log.empty());
}

// The CPU stands in the list; August tried it afterwards.
TEST(Vllm033Rules, ACpuWithoutTilesIsRefusedWithTheWholeList) {
  const Selection result = select(gpt_oss(), Mode::compat, on("cpu-avx512", gpt_oss()));
  EXPECT_EQ(result.error, oracle::ErrorKind::not_implemented);
  EXPECT_NE(result.message.find("backend: CPU, reason: kernel does not support current device cpu"),
            std::string::npos);
  const Policy& august = *find_policy("2026-08-22", kMxfp4);
  EXPECT_EQ(select(august, Mode::compat, on("cpu-avx512", august)).error, oracle::ErrorKind::value);
  const Selection other = select(generic(), Mode::compat, on("cpu-avx512", generic()));
  EXPECT_EQ(other.message, "No MXFP4 MoE backend supports the deployment configuration.");
}

TEST(Vllm033Rules, SecondScalesPerTokenAreComputedBySome) {
  const auto with = [](std::string_view part, std::string_view name) {
    Request request = on(part, nvfp4());
    request.layer.activation_key = ActivationKey::nvfp4_token;
    request.layer.backend = name;
    return chosen(nvfp4(), request);
  };
  EXPECT_EQ(with("b200", "flashinfer_trtllm"), "FLASHINFER_TRTLLM TrtLlmNvFp4ExpertsMonolithic");
  EXPECT_EQ(with("b200", "flashinfer_cutedsl"), "FLASHINFER_CUTEDSL FlashInferCuteDSLExperts");
  EXPECT_EQ(with("h100", "humming"), "HUMMING HummingIndexedExperts");
  EXPECT_EQ(with("a100", "marlin"), "MARLIN MarlinExperts");
  EXPECT_TRUE(with("b200", "flashinfer_cutlass")
                  .ends_with("quantization scheme QuantKey(u8,scale(f8e4m3fn,static,GroupShape("
                             "row=1, col=16)),scale2(f32,static,per_tensor),symmetric)xQuantKey(u8,"
                             "scale(f8e4m3fn,dynamic,GroupShape(row=1, col=16)),scale2(f32,dynamic,"
                             "per_token),symmetric)."));
}

TEST(Vllm033Rules, SimulatedRoutesAreGivenToTrtllm) {
  Request request = on("b200", nvfp4());
  request.layer.routing = Routing::simulated;
  EXPECT_EQ(chosen(nvfp4(), request), "FLASHINFER_TRTLLM TrtLlmNvFp4ExpertsModular");
  request.layer.routing = Routing::minimax2;
  request.layer.router_logits_dtype = oracle::ScalarType::float16;
  EXPECT_EQ(chosen(nvfp4(), request), "FLASHINFER_TRTLLM TrtLlmNvFp4ExpertsModular");
  request.layer.router_logits_dtype = oracle::ScalarType::float32;
  EXPECT_EQ(chosen(nvfp4(), request), "FLASHINFER_TRTLLM TrtLlmNvFp4ExpertsMonolithic");
}

TEST(Vllm033Rules, PassthroughComesBeforeEveryOtherExchange) {
  for (const bool monolithic : {false, true})
    for (const int dp : {1, 2}) {
      const auto plan = oracle::prepare_finalize(
          {.parallel =
               oracle::derive({.tp_size = 2, .dp_size = dp, .all2all_backend = "passthrough"}),
           .policy_date = oracle::PolicyDate::vllm_033,
           .monolithic = monolithic});
      ASSERT_TRUE(plan);
      EXPECT_EQ(plan->name, "PassThroughPrepareAndFinalize");
      EXPECT_EQ(plan->log, std::vector<std::string>{"Using PassThroughPrepareAndFinalize"});
      EXPECT_EQ(plan->dispatchers, 1u);
      EXPECT_TRUE(plan->output_is_reduced);
    }
  // moonep is one only where ranks exchange.
  const auto moonep = [](const oracle::Parallel& parallel) {
    const auto plan = oracle::prepare_finalize(
        {.parallel = parallel, .policy_date = oracle::PolicyDate::vllm_033, .monolithic = false});
    return plan ? std::string(plan->name) : plan.why().message;
  };
  EXPECT_EQ(moonep(expert_parallel("moonep")), "MoonEPPrepareAndFinalize");
  EXPECT_EQ(moonep(expert_parallel("moonep", 1)), "MoEPrepareAndFinalizeNoDPEPModular");
}

}  // namespace vllm_033_rules_test
}  // namespace fp4moe::backends
