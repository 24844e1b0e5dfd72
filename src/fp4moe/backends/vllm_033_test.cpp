// Policy vllm-0.33.0: what the release's rules come to, one consequence after the other. The golden
// file has whole cases; here stand the rules that few cases touch.
#include "support/vllm_033.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "fp4moe/oracle/vllm/assembly.hpp"

namespace fp4moe::backends {
namespace vllm_033_test {

using namespace vllm_033;  // NOLINT(google-build-using-namespace): its requests

TEST(Vllm033, IsTheNewestPolicyOfBothFormatsAndEntries) {
  EXPECT_EQ(gpt_oss().name, "vllm-0.33.0");
  EXPECT_EQ(nvfp4().name, "vllm-0.33.0");
  EXPECT_EQ(generic().name, "vllm-0.33.0-deepseek-v4");
  EXPECT_EQ(&newest_vllm_policy(kNvfp4, Entry::generic), &nvfp4());
  EXPECT_TRUE(generic().is_generic);
  EXPECT_FALSE(gpt_oss().is_generic);
}

TEST(Vllm033, HopperTakesHummingBeforeMarlin) {
  Request request = on("h100", nvfp4());
  EXPECT_EQ(chosen(nvfp4(), request), "HUMMING HummingIndexedExperts");
  request.layer.parallel = expert_parallel("allgather_reducescatter");
  EXPECT_EQ(chosen(nvfp4(), request), "HUMMING HummingGroupedExperts");
  request.layer.parallel = {};
  request.layer.lora = true;
  EXPECT_EQ(chosen(nvfp4(), request), "MARLIN MarlinExperts");
  request.layer.lora = false;
  request.environment.set(Variable::batch_invariant, "1");
  EXPECT_EQ(chosen(nvfp4(), request), "HUMMING HummingIndexedExperts");
  // Other capabilities keep the old order.
  EXPECT_EQ(chosen(nvfp4(), on("a100", nvfp4())), "MARLIN MarlinExperts");
}

TEST(Vllm033, ConsumerBlackwellTriesTritonBehindMarlin) {
  EXPECT_EQ(chosen(gpt_oss(), on("rtx5090", gpt_oss())), "MARLIN MarlinExperts");
  EXPECT_EQ(chosen(gpt_oss(), on("thor", gpt_oss())), "TRITON OAITritonMxfp4ExpertsMonolithic");
  EXPECT_EQ(chosen(gpt_oss(), on("h100", gpt_oss())), "TRITON OAITritonMxfp4ExpertsMonolithic");
}

TEST(Vllm033, HummingsVariableTakesAnyWord) {
  Request request = on("h100", nvfp4());
  request.layer.backend = "humming";
  request.environment.set(Variable::humming_gemm_type, "Grouped_Masked");
  request.layer.parallel = expert_parallel("deepep_low_latency");
  EXPECT_EQ(chosen(nvfp4(), request), "HUMMING BatchedHummingGroupedExperts");
  EXPECT_EQ(chosen(nvfp4(), request, Mode::strict), "HUMMING BatchedHummingGroupedExperts");
  request.layer.parallel = {};
  request.environment.set(Variable::humming_gemm_type, "whatever");
  EXPECT_EQ(chosen(nvfp4(), request),
            "NvFp4 MoE backend 'HUMMING' does not support the deployment configuration since "
            "preferred gemm type whatever != supported gemm type indexed.");
}

TEST(Vllm033, MonolithicKernelsRefuseTablesAndAdjustedRoutes) {
  Request request = on("h100", gpt_oss());
  request.layer.hash_routing = true;
  const Selection result = select(gpt_oss(), Mode::compat, request);
  ASSERT_EQ(result.outcome, Outcome::selected);
  EXPECT_EQ(result.experts->name, "OAITritonExperts");
  EXPECT_EQ(reference_reason(gpt_oss(), request, result.evaluated[result.evaluated.size() - 2]),
            "kernel does not support hash routing");

  Request adjusted = on("mi355x", gpt_oss());
  adjusted.environment.set(Variable::rocm_use_aiter, "1");
  adjusted.layer.backend = "aiter_triton_mxfp4_bf16";
  adjusted.layer.hash_routing = true;  // which this one knows
  EXPECT_EQ(chosen(gpt_oss(), adjusted), "AITER_TRITON_MXFP4_BF16 AiterW4A16ExpertsMonolithic");
  adjusted.layer.decomposed = true;
  EXPECT_TRUE(chosen(gpt_oss(), adjusted)
                  .ends_with("since kernel does not support routes adjusted "
                             "after routing."));
  // Older policies know neither.
  EXPECT_EQ(select(*find_policy("2026-08-22", kMxfp4), Mode::compat, request).experts->name,
            "OAITritonMxfp4ExpertsMonolithic");
}

TEST(Vllm033, ARequestForActivationsFallsBackTo16BitsWithAWarning) {
  Request request = on("a100", gpt_oss());
  request.layer.activation_key = ActivationKey::mxfp8;
  const Selection result = select(gpt_oss(), Mode::compat, request);
  EXPECT_EQ(result.backend->name, "MARLIN");
  EXPECT_EQ(result.activation, ActivationKey::none);
  ASSERT_EQ(result.warned.size(), 1u);
  EXPECT_TRUE(result.warned[0].ends_with("Falling back to 'MARLIN' with BF16 activations."));
  EXPECT_EQ(make_record(gpt_oss(), Mode::strict, request).warnings[0], result.warned[0]);

  // The user's own choice is computed by HUMMING, and by EMULATION for any request.
  Request chosen = on("h100", gpt_oss());
  chosen.layer.activation_override = ActivationKey::mxfp8;
  chosen.layer.backend = "humming";
  EXPECT_TRUE(select(gpt_oss(), Mode::compat, chosen).warned.empty());
  chosen.layer.activation_override.reset();
  chosen.layer.activation_key = ActivationKey::mxfp8;
  EXPECT_EQ(select(gpt_oss(), Mode::compat, chosen).warned.size(), 1u);
  chosen.layer.backend = "emulation";
  chosen.device.libraries.insert(Library::quark);
  EXPECT_TRUE(select(gpt_oss(), Mode::compat, chosen).warned.empty());

  // The second entry has no such choice.
  Request other = on("a100", generic());
  other.layer.activation_key = ActivationKey::mxfp8;
  EXPECT_TRUE(select(generic(), Mode::compat, other).warned.empty());
}

TEST(Vllm033, ANameWhoseBackendHasAnotherFormIsRefused) {
  Request request = on("b200", gpt_oss());
  request.layer.backend = "flashinfer_trtllm_afp8";
  request.layer.activation_key = ActivationKey::mxfp4;
  EXPECT_TRUE(chosen(gpt_oss(), request)
                  .starts_with("moe_backend='flashinfer_trtllm_afp8' does not support "
                               "activation=QuantKey("));
}

TEST(Vllm033, LoraByNameHasAKernelOfItsOwnAndNoneWithMxfp8) {
  Request request = on("b200", gpt_oss());
  request.layer.lora = true;
  EXPECT_EQ(chosen(gpt_oss(), request), "MARLIN MarlinExperts");  // without a name it is not tried
  request.layer.backend = "flashinfer_trtllm";
  EXPECT_EQ(chosen(gpt_oss(), request), "FLASHINFER_TRTLLM_MXFP4_BF16 TrtLlmMxfp4LoRAExperts");
  constexpr std::string_view kRefused =
      "Mxfp4 MoE backend 'FLASHINFER_TRTLLM_MXFP4_MXFP8' does not support the deployment "
      "configuration since expert LoRA is not supported with MXFP8 activations; use "
      "moe_backend='flashinfer_trtllm'.";
  request.layer.backend = "flashinfer_trtllm_afp8";
  EXPECT_EQ(chosen(gpt_oss(), request), kRefused);
  // The second entry tries both variants and tells the last one's error.
  Request other = on("h100", generic());
  other.layer.lora = true;
  other.layer.backend = "flashinfer_trtllm";
  EXPECT_EQ(chosen(generic(), other), kRefused);
  EXPECT_EQ(select(generic(), Mode::compat, other).evaluated.size(), 3u);
}

TEST(Vllm033, MoeEpTellsEverythingAtOnce) {
  Request request = on("b200", generic());
  request.layer.backend = "flashinfer_moe_ep_mega_deep_gemm";
  request.layer.parallel = expert_parallel("passthrough");
  request.layer.routing = Routing::deepseek_v4;
  EXPECT_EQ(chosen(generic(), request), "FLASHINFER_MOE_EP_DEEP_GEMM FlashInferMoeEpExperts");
  request.layer.routing = Routing::renormalize;
  request.layer.in_dtype = oracle::ScalarType::float16;
  request.layer.has_bias = true;
  request.layer.swiglu_beta = 1.0;
  request.layer.skip_final_all_reduce = true;
  request.layer.weight_transfer = true;
  request.layer.dual_batch_overlap = true;
  request.layer.parallel.enable_eplb = true;
  EXPECT_EQ(chosen(generic(), request),
            "Mxfp4 MoE backend 'FLASHINFER_MOE_EP_DEEP_GEMM' does not support the deployment "
            "configuration since kernel does not support skip_final_all_reduce, activation dtype "
            "torch.float16, expert bias, custom SwiGLU alpha or beta, routing method Renormalize, "
            "runtime weight transfer, dual batch overlap, EPLB.");
  // Ours names each of them.
  const auto verdicts = survey(generic(), Mode::strict, request);
  const auto mega = std::ranges::find_if(verdicts, [](const oracle::Verdict& verdict) {
    return verdict.backend->name == "FLASHINFER_MOE_EP_DEEP_GEMM";
  });
  ASSERT_NE(mega, verdicts.end());
  EXPECT_EQ(mega->refusals.size(), 8u);

  Request weights = on("b200", nvfp4());
  weights.layer.backend = "flashinfer_moe_ep_cutedsl";
  weights.layer.parallel = expert_parallel("passthrough");
  weights.layer.activation_key = ActivationKey::none;
  EXPECT_TRUE(chosen(nvfp4(), weights)
                  .ends_with("since kernel does not support A16 activations "
                             "with NVFP4 weights."));
  weights.layer.parallel = {};
  EXPECT_NE(chosen(nvfp4(), weights).find("parallel config FusedMoEParallelConfig("),
            std::string::npos);
}

TEST(Vllm033, StrictModeAsksMoeEpForCudaAndFlashinfer) {
  Request request = on("b200", generic());
  request.layer.backend = "flashinfer_moe_ep_cutedsl";
  request.layer.parallel = expert_parallel("passthrough");
  request.device.libraries.erase(Library::flashinfer);
  EXPECT_EQ(chosen(generic(), request), "FLASHINFER_MOE_EP_CUTEDSL FlashInferMoeEpExperts");
  EXPECT_TRUE(chosen(generic(), request, Mode::strict)
                  .ends_with("since kernel does not support current device cuda."));
}

TEST(Vllm033, TheClampSentenceHasOneMoreName) {
  Request request = on("rtx5090", nvfp4());
  request.layer.swiglu_limit = 7;
  request.layer.backend = "flashinfer_b12x";
  EXPECT_EQ(chosen(nvfp4(), request),
            "Model sets swiglu_limit=7.0, but the explicitly requested "
            "moe_backend='flashinfer_b12x' does not apply the SwiGLU clamp. Use "
            "'flashinfer_trtllm', 'flashinfer_cutlass', 'flashinfer_cutedsl', "
            "'flashinfer_moe_ep_cutedsl', 'cutlass', 'b12x', 'marlin', or 'humming' instead.");
}

TEST(Vllm033, NamesAreListedInTheReferencesOrder) {
  Request request = on("h100", gpt_oss());
  request.layer.backend = "unheard_of";
  EXPECT_EQ(chosen(gpt_oss(), request),
            "moe_backend='unheard_of' is not supported for MXFP4 MoE. Expected one of ['b12x', "
            "'deep_gemm', 'flashinfer_trtllm', 'flashinfer_trtllm_afp8', 'flashinfer_cutlass', "
            "'flashinfer_cutlass_afp8', 'flashinfer_moe_ep_cutedsl', "
            "'flashinfer_moe_ep_mega_deep_gemm', 'triton', 'triton_unfused', 'humming', 'marlin', "
            "'aiter', 'aiter_triton_mxfp4_bf16', 'aiter_mxfp4_fp8', 'aiter_triton_mxfp4_mxfp4', "
            "'aiter_mxfp4_mxfp4', 'xpu', 'cpu', 'emulation'].");
}

TEST(Vllm033, ExchangesUpsetCutlassButNotExpertParallelism) {
  Request request = on("b200", nvfp4());
  request.layer.backend = "cutlass";
  request.layer.parallel = expert_parallel("allgather_reducescatter");
  EXPECT_EQ(chosen(nvfp4(), request), "VLLM_CUTLASS CutlassExpertsFp4");
  for (const char* upsets : {"deepep_high_throughput", "flashinfer_nvlink_two_sided",
                             "flashinfer_nvlink_one_sided", "flashinfer_all2allv"}) {
    request.layer.parallel = expert_parallel(upsets);
    EXPECT_NE(chosen(nvfp4(), request).find("parallel config"), std::string::npos) << upsets;
  }
  request.layer.parallel = expert_parallel("moonep");
  EXPECT_EQ(chosen(nvfp4(), request), "VLLM_CUTLASS CutlassExpertsFp4");
}

TEST(Vllm033, Gfx1250IsNoRadeon) {
  Request request = on("mi455x", gpt_oss());
  request.layer.backend = "triton";
  EXPECT_TRUE(chosen(gpt_oss(), request).ends_with("current device rocm."));
  request.device.gfx = "gfx1251";  // as the reference's names go, this one is
  EXPECT_EQ(chosen(gpt_oss(), request), "TRITON OAITritonMxfp4ExpertsMonolithic");
  request = on("mi455x", gpt_oss());
  request.environment.set(Variable::rocm_use_aiter, "1");
  request.layer.backend = "aiter_triton_mxfp4_mxfp4";
  request.layer.activation_key = ActivationKey::mxfp4;
  request.layer.routing = Routing::minimax2;
  EXPECT_EQ(chosen(gpt_oss(), request), "AITER_TRITON_MXFP4_MXFP4 AiterW4A4ExpertsMonolithic");
}

TEST(Vllm033, TheCpuKernelIsGivenRoutesAndStillAsksForTheirMethod) {
  Request request = on("cpu-amx", generic());
  request.layer.routing = Routing::deepseek_v4;
  const Selection result = select(generic(), Mode::compat, request);
  ASSERT_EQ(result.outcome, Outcome::selected) << result.message;
  EXPECT_EQ(result.experts->kind, oracle::Kind::modular);
  request.layer.routing = Routing::llama4;
  request.layer.backend = "cpu";
  EXPECT_TRUE(chosen(generic(), request).ends_with("kernel does not support routing method 3."));
}

// Q24: 16-bit b12x is checked again as if its activations were quantized.
TEST(Vllm033, TheSecondCheckOfB12xIsRepairedInStrictMode) {
  Request request = on("rtx5090", generic());
  request.device.libraries.insert(Library::b12x);
  request.environment.set(Variable::b12x_force_a16, "1");
  request.layer.backend = "b12x";
  request.layer.activation = Activation::swigluoai_uninterleave;
  request.layer.hidden = 4096;
  const oracle::Record compat = make_record(generic(), Mode::compat, request);
  ASSERT_EQ(compat.selection.backend->name, "B12X_MXFP4_BF16");
  ASSERT_FALSE(compat.consequences->kernel);
  EXPECT_EQ(compat.consequences->kernel.why().id, "assembly.not_valid");
  EXPECT_EQ(compat.consequences->kernel.why().message,
            "B12xExperts does not support this MoE deployment since kernel does not support "
            "swigluoai_uninterleave with W4A8.");
  EXPECT_EQ(oracle::reference_error(compat.consequences->kernel.why()), "ValueError");
  EXPECT_TRUE(make_record(generic(), Mode::strict, request).consequences->kernel);
}

TEST(Vllm033, TheSecondCheckSeesRoundedSizes) {
  Request request = on("rtx5090", generic());
  request.device.libraries.insert(Library::b12x);
  request.layer.hidden = 2880;
  EXPECT_NE(refusal(generic(), request, "B12X_MXFP4_MXFP8", "B12xExperts"), "");
  request.layer.hidden = 3072;
  EXPECT_EQ(refusal(generic(), request, "B12X_MXFP4_MXFP8", "B12xExperts"), "");
}

TEST(Vllm033, TheSecondCheckTakesTheFirstFormThatTheKernelDoes) {
  // INT4 in groups of 32 stands in on gfx942, where AITER has no MXFP4.
  Request request = on("mi300x", generic());
  request.environment.set(Variable::rocm_use_aiter, "1");
  EXPECT_EQ(refusal(generic(), request, "AITER_MXFP4_BF16", "AiterMxfp4Experts"), "");
  EXPECT_NE(refusal(generic(), request, "AITER_MXFP4_BF16", "AiterMxfp4Experts", Mode::strict), "");
  request = on("mi455x", generic());
  request.environment.set(Variable::rocm_use_aiter, "1");
  EXPECT_NE(refusal(generic(), request, "AITER_MXFP4_BF16", "AiterMxfp4Experts")
                .find("quantization scheme"),
            std::string::npos);
  // FlashInfer's kernels take other forms on other devices.
  Request blackwell = on("b200", gpt_oss());
  EXPECT_EQ(refusal(gpt_oss(), blackwell, "FLASHINFER_CUTLASS_MXFP4_BF16", "FlashInferExperts"),
            "");
  EXPECT_EQ(refusal(gpt_oss(), on("h100", gpt_oss()), "FLASHINFER_CUTLASS_MXFP4_MXFP8",
                    "FlashInferExperts"),
            "");
  // A caller that went past the names.
  blackwell.layer.activation = Activation::silu;
  blackwell.layer.parallel = expert_parallel("passthrough");
  EXPECT_EQ(refusal(gpt_oss(), blackwell, "FLASHINFER_MOE_EP_CUTEDSL", "FlashInferMoeEpExperts"),
            "'auto' is not a FlashInfer MoE-EP backend; expected one of "
            "['flashinfer_moe_ep_cutedsl', 'flashinfer_moe_ep_mega_deep_gemm']");
  // Policies without the check accept everything.
  const Policy& august = *find_policy("2026-08-22", kMxfp4);
  EXPECT_EQ(refusal(august, on("a100", august), "TRITON", "OAITritonExperts"), "");
}

TEST(Vllm033, SizesKnowTheActivationOnlyInTheSecondEntry) {
  const auto rounded = [](const Policy& policy, std::string_view backend, std::string_view part,
                          Activation activation) {
    Request request = on(part, policy);
    request.layer.activation = activation;
    const auto result = round_sizes(*oracle::find_backend(policy, backend), request.device,
                                    rounding_activation(policy, request.layer), {2880, 720});
    return result ? std::to_string(result->hidden) + " " + std::to_string(result->intermediate)
                  : "";
  };
  EXPECT_EQ(rounded(generic(), "TRITON_UNFUSED", "mi300x", Activation::silu), "2944 768");
  EXPECT_EQ(rounded(gpt_oss(), "TRITON_UNFUSED", "mi300x", Activation::silu), "3072 768");
  EXPECT_EQ(rounded(generic(), "TRITON_UNFUSED", "mi355x", Activation::silu), "3072 768");
  EXPECT_EQ(rounded(generic(), "TRITON_UNFUSED", "mi300x", Activation::gelu), "3072 768");
  EXPECT_EQ(rounded(generic(), "AITER_MXFP4_BF16", "mi355x", Activation::situ), "2944 768");
  EXPECT_EQ(rounded(gpt_oss(), "AITER_MXFP4_MXFP4", "mi355x", Activation::silu), "3072 768");
  EXPECT_EQ(rounded(gpt_oss(), "CUTLASS_MXFP4_MXFP4", "b200", Activation::silu), "2944 768");
  EXPECT_EQ(rounded(gpt_oss(), "FLASHINFER_MOE_EP_CUTEDSL", "b200", Activation::silu), "2880 720");
}

TEST(Vllm033, CutedslPadsWhileConverting) {
  const oracle::Backend& cutedsl = *oracle::find_backend(nvfp4(), "FLASHINFER_CUTEDSL");
  const auto gated = converted_sizes(cutedsl, true, {2880, 720});
  ASSERT_TRUE(gated);
  EXPECT_EQ(*gated, (oracle::Sizes{3072, 768}));
  const auto plain = converted_sizes(cutedsl, false, {2880, 720});
  ASSERT_TRUE(plain);
  EXPECT_EQ(*plain, (oracle::Sizes{3072, 768}));
  EXPECT_EQ(converted_sizes(cutedsl, true, {2880, 700})->intermediate, 704u);
  EXPECT_EQ(converted_sizes(cutedsl, false, {2880, 700})->intermediate, 768u);
  const Policy& august = *find_policy("2026-08-22", kNvfp4);
  EXPECT_FALSE(
      converted_sizes(*oracle::find_backend(august, "FLASHINFER_CUTEDSL"), true, {2880, 720}));
}

TEST(Vllm033, HummingsOwnActivationsFollowTheEntryAndTheDevice) {
  Request request = on("h100", generic());
  request.layer.activation_key = ActivationKey::mxfp8;
  const oracle::FromLayer hopper = form_from_layer(generic(), request);
  EXPECT_EQ(hopper.activations, ActivationKey::fp8_block128);
  EXPECT_EQ(hopper.log,
            "Running checkpoint MXFP8 MoE activations as block FP8 (group 128) on Hopper.");
  EXPECT_EQ(form_from_layer(gpt_oss(), request).activations, ActivationKey::none);
  request.layer.activation_override = ActivationKey::mxfp8;
  EXPECT_EQ(form_from_layer(generic(), request).activations, ActivationKey::mxfp8);
  EXPECT_EQ(form_from_layer(gpt_oss(), request).activations, ActivationKey::mxfp8);
  const Selection result = select(generic(), Mode::strict, request);
  const auto plan = assemble(generic(), Mode::strict, request, result.backend, result.experts);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->log, (std::vector<std::string>{"Using MoEPrepareAndFinalizeNoDPEPModular",
                                                 "Using HummingIndexedExperts"}));
}

TEST(Vllm033, LayersWithoutAGateStopOnCpus) {
  Request request = on("cpu-amx", gpt_oss());
  request.layer.activation = Activation::relu2_no_mul;
  request.layer.gated = false;
  const oracle::Backend& cpu = *oracle::find_backend(gpt_oss(), "CPU");
  const auto plan = assemble(gpt_oss(), Mode::compat, request, &cpu, cpu.experts.front());
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.why().message,
            "is_act_and_mul=False is supported only for CUDA, XPU and ROCm for now");
}

TEST(Vllm033, CutlassForGptOssIsConvertedHereThoughNotThere) {
  Request request = on("b200", gpt_oss());
  request.layer.activation_key = ActivationKey::mxfp4;
  request.layer.activation = Activation::silu;
  request.device.libraries.erase(Library::flashinfer);
  const oracle::Record record = make_record(gpt_oss(), Mode::strict, request);
  ASSERT_EQ(record.selection.backend->name, "CUTLASS_MXFP4_MXFP4");
  EXPECT_NE(std::ranges::find_if(record.warnings,
                                 [](const std::string& text) {
                                   return text.find("no conversion of gpt-oss weights") !=
                                          std::string::npos;
                                 }),
            record.warnings.end());
}

TEST(Vllm033, AWheelBringsItsPackagesToDescribedDevicesOnly) {
  const auto described = platform::describe_device("h100");
  ASSERT_TRUE(described);
  EXPECT_FALSE(described->libraries.contains(Library::humming));
  EXPECT_TRUE(oracle::installed(nvfp4(), *described).libraries.contains(Library::humming));
  const Policy& august = *find_policy("2026-08-22", kNvfp4);
  EXPECT_FALSE(oracle::installed(august, *described).libraries.contains(Library::humming));
  platform::Device found = *described;
  found.usual = false;  // as a machine that was looked at
  EXPECT_FALSE(oracle::installed(nvfp4(), found).libraries.contains(Library::humming));
  const auto mi300x = platform::describe_device("mi300x");
  EXPECT_FALSE(oracle::installed(nvfp4(), *mi300x).libraries.contains(Library::humming));
}

TEST(Vllm033, WordsForPoliciesMeanReleasesAndEntries) {
  const auto name = [](std::string_view word, WeightFormat format, Entry entry) {
    const auto found = choose_policy(word, format, entry);
    return found ? std::string(found->policy->name) : found.why().id;
  };
  EXPECT_EQ(name("latest", kMxfp4, Entry::gpt_oss), "vllm-0.33.0");
  EXPECT_EQ(name("latest", kMxfp4, Entry::generic), "vllm-0.33.0-deepseek-v4");
  EXPECT_EQ(name("latest", kNvfp4, Entry::generic), "vllm-0.33.0");
  EXPECT_EQ(name("vllm:0.29.0", kMxfp4, Entry::generic), "2026-08-22-deepseek-v4");
  EXPECT_EQ(name("vllm:0.19", kMxfp4, Entry::generic), "2026-03-27");  // there was one entry
  EXPECT_EQ(name("vllm:nonsense", kMxfp4, Entry::gpt_oss), "vllm.version");
  EXPECT_EQ(name("vllm-0.33.0", kMxfp4, Entry::generic), "vllm-0.33.0");  // a name is a name
  EXPECT_EQ(name("vllm-9", kMxfp4, Entry::gpt_oss), "policy.unknown");
  EXPECT_EQ(entry_of("gpt_oss"), Entry::gpt_oss);
  EXPECT_EQ(entry_of("deepseek_v4"), Entry::generic);
  EXPECT_EQ(entry_of(""), Entry::generic);
  const auto chosen_release = choose_policy("vllm:0.33", kMxfp4, Entry::generic);
  ASSERT_TRUE(chosen_release && chosen_release->release);
  EXPECT_EQ(chosen_release->release->policy, "vllm-0.33.0-deepseek-v4");
}

TEST(Vllm033, EveryReleaseNamesPoliciesThatExist) {
  for (const oracle::Release& release : oracle::vllm_releases())
    for (const WeightFormat format : {kMxfp4, kNvfp4})
      EXPECT_NE(find_policy(release.of(format).policy, format), nullptr) << release.version;
}

}  // namespace vllm_033_test
}  // namespace fp4moe::backends
