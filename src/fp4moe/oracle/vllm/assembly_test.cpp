#include "fp4moe/oracle/vllm/assembly.hpp"

#include <string>

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace assembly_test {

constexpr ExpertsClass kModular{.name = "Modular", .expert_map = true};
constexpr ExpertsClass kMonolithic{.name = "Monolithic", .kind = Kind::monolithic};
constexpr ExpertsClass kBatchedExperts{.name = "Batched", .format = TokenFormat::batched};
constexpr ExpertsClass kLazy{.name = "Lazy", .takes_unquantized = true};

constexpr Backend mxfp4(std::string_view family, QuantScheme scheme = QuantScheme::mxfp4_w4a16) {
  return {.name = "FAKE", .family = family, .format = WeightFormat::mxfp4, .scheme = scheme};
}
constexpr Backend kPlain = mxfp4("fake");
constexpr Backend kMxfp8 = mxfp4("fake", QuantScheme::mxfp4_mxfp8);
constexpr Backend kTrtllm = mxfp4("flashinfer_trtllm");
constexpr Backend kNoBackend = mxfp4("none");
constexpr Backend kFunction{.name = "F", .family = "fake", .format = WeightFormat::nvfp4};
constexpr Backend kNvfp4{
    .name = "N", .family = "fake", .format = WeightFormat::nvfp4, .scheme = QuantScheme::nvfp4};

Policy policy(PolicyDate policy_date, WeightFormat format = WeightFormat::mxfp4) {
  return {.name = "p", .format = format, .policy_date = policy_date, .summary = ""};
}

Parallel spread(std::string_view name) {
  return {.dp_size = 2, .ep_size = 4, .use_ep = true, .all2all_backend = std::string(name)};
}

Request cuda(const Parallel& parallel = {}) {
  Request request;
  request.device.kind = PlatformKind::cuda;
  request.layer.parallel = parallel;
  return request;
}

Result<PrepareFinalize> prepare(std::string_view name, PolicyDate policy_date,
                                ActivationKey activations = ActivationKey::none) {
  return prepare_finalize(
      {.parallel = spread(name), .policy_date = policy_date, .activations = activations});
}

Result<KernelPlan> plan(PolicyDate policy_date, const Request& request,
                        const Backend& backend = kPlain, const ExpertsClass& experts = kModular,
                        Mode mode = Mode::strict) {
  return assemble(policy(policy_date, backend.format), mode, request, &backend, &experts);
}

TEST(Assembly, Release033HasTwoMoreExchanges) {
  const auto moonep = prepare("moonep", PolicyDate::vllm_033);
  ASSERT_TRUE(moonep);
  EXPECT_EQ(moonep->name, "MoonEPPrepareAndFinalize");
  EXPECT_EQ(moonep->max_tokens_per_rank, 256u);
  EXPECT_EQ(moonep->dispatchers, 4u);
  EXPECT_FALSE(moonep->is_async);
  EXPECT_TRUE(moonep->output_is_reduced);
  EXPECT_EQ(moonep->index_type, "i32");
  // Before every other test, whatever the layout and the kernel.
  for (const Parallel& layout : {spread("passthrough"), Parallel{.all2all_backend = "passthrough"},
                                 Parallel{.dp_size = 4, .all2all_backend = "passthrough"}})
    for (const bool monolithic : {false, true}) {
      const auto through = prepare_finalize(
          {.parallel = layout, .policy_date = PolicyDate::vllm_033, .monolithic = monolithic});
      ASSERT_TRUE(through);
      EXPECT_EQ(through->name, "PassThroughPrepareAndFinalize");
      EXPECT_EQ(through->dispatchers, 1u);
      EXPECT_TRUE(through->output_is_reduced);
      EXPECT_EQ(through->max_tokens_per_rank, std::nullopt);
    }
  EXPECT_FALSE(prepare("moonep", PolicyDate::august_22));
}

TEST(Assembly, TokensWithScalesOfTheirOwnTravelIn16Bits) {
  PrepareRequest request{.parallel = spread("flashinfer_nvlink_one_sided"),
                         .policy_date = PolicyDate::vllm_033,
                         .activations = ActivationKey::nvfp4_token,
                         .tokens = ScalarType::float16};
  EXPECT_TRUE(prepare_finalize(request));
  request.tokens = ScalarType::float32;
  const auto refused = prepare_finalize(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(reference_error(refused.why()), "ValueError");
  EXPECT_EQ(refused.why().message,
            "flashinfer_nvlink_one_sided unpacked inputs must be float16 or bfloat16, got "
            "torch.float32");
}

TEST(Assembly, WithoutRanksNothingTravels) {
  const auto modular = prepare_finalize({.policy_date = PolicyDate::april_24});
  const auto monolithic =
      prepare_finalize({.policy_date = PolicyDate::april_24, .monolithic = true});
  const auto january =
      prepare_finalize({.policy_date = PolicyDate::january_27, .monolithic = true});

  EXPECT_EQ(modular->name, "MoEPrepareAndFinalizeNoDPEPModular");
  EXPECT_EQ(monolithic->name, "MoEPrepareAndFinalizeNoDPEPMonolithic");
  EXPECT_EQ(january->name, "MoEPrepareAndFinalizeNoEP");
  EXPECT_EQ(modular->dispatchers, 1u);
  EXPECT_EQ(modular->log, std::vector<std::string>{"Using MoEPrepareAndFinalizeNoDPEPModular"});
}

TEST(Assembly, DataParallelWithoutExpertParallelGathersAndSaysSo) {
  const auto result = prepare_finalize({.parallel = {.tp_size = 4, .dp_size = 2},
                                        .policy_date = PolicyDate::april_24,
                                        .monolithic = true});

  ASSERT_TRUE(result);
  EXPECT_EQ(result->name, "MoEPrepareAndFinalizeNaiveDPEPMonolithic");
  EXPECT_EQ(result->dispatchers, 4u);
  ASSERT_EQ(result->log.size(), 2u);
  EXPECT_TRUE(result->log[0].starts_with("Detected DP deployment"));
}

TEST(Assembly, EachExchangeHasItsClass) {
  const auto class_of = [](std::string_view name, PolicyDate policy_date) {
    const auto result = prepare(name, policy_date, ActivationKey::nvfp4);
    return result ? std::string(result->name) : text(result.why());
  };

  EXPECT_EQ(class_of("pplx", PolicyDate::january_27), "PplxPrepareAndFinalize");
  EXPECT_EQ(class_of("naive", PolicyDate::january_27), "MoEPrepareAndFinalizeNaiveEP");
  EXPECT_EQ(class_of("flashinfer_all2allv", PolicyDate::january_27),
            "FlashInferA2APrepareAndFinalize");
  EXPECT_EQ(class_of("flashinfer_all2allv", PolicyDate::march_20),
            "FlashInferNVLinkTwoSidedPrepareAndFinalize");
  EXPECT_EQ(class_of("flashinfer_nvlink_one_sided", PolicyDate::april_24),
            "FlashInferNVLinkOneSidedPrepareAndFinalize");
  EXPECT_EQ(class_of("nixl_ep", PolicyDate::march_27), "NixlEPPrepareAndFinalize");
  EXPECT_EQ(class_of("mori", PolicyDate::april_24), "MoriPrepareAndFinalize");
  EXPECT_EQ(class_of("mori_high_throughput", PolicyDate::august_22), "MoriPrepareAndFinalize");
  EXPECT_EQ(class_of("deepep_v2", PolicyDate::august_22), "DeepEPV2PrepareAndFinalize");
  EXPECT_EQ(class_of("deepep_high_throughput", PolicyDate::native), "DeepEPHTPrepareAndFinalize");
}

TEST(Assembly, PropertiesOfAnExchangeAreItsRow) {
  const auto low_latency = prepare("deepep_low_latency", PolicyDate::april_24);
  EXPECT_EQ(low_latency->format, TokenFormat::batched);
  EXPECT_EQ(low_latency->max_tokens_per_rank, 256u);
  EXPECT_EQ(low_latency->dispatchers, 4u);
  EXPECT_TRUE(low_latency->is_async);
  EXPECT_TRUE(low_latency->output_is_reduced);
  EXPECT_EQ(low_latency->index_type, "i64");

  const auto mori = prepare("mori", PolicyDate::april_24);
  EXPECT_EQ(mori->format, TokenFormat::standard);
  EXPECT_EQ(mori->max_tokens_per_rank, 256u);
  EXPECT_FALSE(mori->is_async);
  EXPECT_EQ(mori->index_type, "i32");

  EXPECT_EQ(prepare("pplx", PolicyDate::january_27)->dispatchers, 2u);
  EXPECT_FALSE(prepare("flashinfer_all2allv", PolicyDate::april_24)->output_is_reduced);
  EXPECT_TRUE(prepare("flashinfer_all2allv", PolicyDate::august_22)->output_is_reduced);
}

TEST(Assembly, AnUnknownExchangeIsRefused) {
  const auto refused = prepare("naive", PolicyDate::april_24);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "assembly.exchange");
  EXPECT_EQ(reference_error(refused.why()), "AssertionError");
}

TEST(Assembly, TheOneSidedExchangeCarriesWhatItsTimeCould) {
  const auto one_sided = [](PolicyDate policy_date, ActivationKey key) {
    return prepare("flashinfer_nvlink_one_sided", policy_date, key);
  };
  EXPECT_TRUE(one_sided(PolicyDate::march_27, ActivationKey::none));

  const auto april = one_sided(PolicyDate::april_24, ActivationKey::mxfp8);
  ASSERT_FALSE(april);
  EXPECT_EQ(april.why().message,
            "The 'flashinfer_nvlink_one_sided' all2all backend only supports nvfp4 activation "
            "quantization, but got quant_dtype='mxfp8'. Use a different all2all backend (e.g. "
            "'flashinfer_nvlink_two_sided' or 'allgather_reducescatter') for non-nvfp4 models.");
  EXPECT_EQ(reference_error(april.why()), "ValueError");

  EXPECT_TRUE(one_sided(PolicyDate::august_22, ActivationKey::none));
  EXPECT_TRUE(one_sided(PolicyDate::august_22, ActivationKey::mxfp8));
  const auto august = one_sided(PolicyDate::august_22, ActivationKey::mxfp4);
  ASSERT_FALSE(august);
  EXPECT_EQ(reference_error(august.why()), "NotImplementedError");
  EXPECT_NE(august.why().message.find("quant_dtype='mxfp4'"), std::string::npos);
}

TEST(Assembly, BlockwiseActivationsNeedWholeBlocks) {
  PrepareRequest request{.parallel = spread("flashinfer_nvlink_one_sided"),
                         .policy_date = PolicyDate::august_22,
                         .activations = ActivationKey::fp8_block128,
                         .hidden = 7168};
  EXPECT_TRUE(prepare_finalize(request));
  request.hidden = 2880;
  ASSERT_FALSE(prepare_finalize(request));
  EXPECT_EQ(prepare_finalize(request).why().id, "assembly.one_sided");
}

TEST(Assembly, NoBackendIsAPlanWithoutAKernel) {
  const auto result =
      assemble(policy(PolicyDate::april_24), Mode::strict, cuda(), nullptr, nullptr);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->has_kernel);
  EXPECT_EQ(result->warnings.size(), 1u);
  EXPECT_FALSE(plan(PolicyDate::april_24, cuda(), kNoBackend)->has_kernel);
}

TEST(Assembly, AFunctionNeedsNoClassAndScalesWithoutAClassAreRefused) {
  const Policy january = policy(PolicyDate::january_27, WeightFormat::nvfp4);
  const auto function = assemble(january, Mode::strict, cuda(), &kFunction, nullptr);
  ASSERT_TRUE(function);
  EXPECT_FALSE(function->has_kernel);
  EXPECT_TRUE(function->monolithic);

  const auto lost = assemble(january, Mode::compat, cuda(), &kNvfp4, nullptr);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.why().id, "assembly.no_class");
  EXPECT_EQ(reference_error(lost.why()), "AssertionError");
}

TEST(Assembly, MoriNeedsAiter) {
  Request request = cuda(spread("mori"));
  const auto refused = plan(PolicyDate::april_24, request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "assembly.mori");
  EXPECT_EQ(refused.why().message, "Mori needs to be used with aiter fused_moe for now.");

  request.device.kind = PlatformKind::rocm;
  request.device.gfx = "gfx942";
  request.device.libraries = {Library::aiter};
  EXPECT_FALSE(plan(PolicyDate::april_24, request));
  request.environment.set(Variable::rocm_use_aiter, "1");
  EXPECT_TRUE(plan(PolicyDate::april_24, request));
}

TEST(Assembly, LayersWithoutAGateRanOnlyOnGpusUntilApril) {
  Request request = cuda();
  request.layer.gated = false;
  EXPECT_TRUE(plan(PolicyDate::april_24, request));
  request.device.kind = PlatformKind::xpu;
  ASSERT_FALSE(plan(PolicyDate::april_24, request));
  EXPECT_EQ(plan(PolicyDate::april_24, request).why().id, "assembly.not_gated");
  EXPECT_TRUE(plan(PolicyDate::august_22, request));
  EXPECT_TRUE(plan(PolicyDate::native, request));
}

TEST(Assembly, LoadBalancingIsRefusedWhereTheMethodCannot) {
  Request request = cuda();
  request.layer.parallel.enable_eplb = true;
  EXPECT_EQ(plan(PolicyDate::march_27, request).why().message,
            "EPLB is not supported Mxfp4MoEMethod.");
  const auto april = plan(PolicyDate::april_24, request);
  EXPECT_EQ(april.why().message, "EPLB is not supported GptOssMxfp4MoEMethod.");
  EXPECT_EQ(reference_error(april.why()), "NotImplementedError");
  EXPECT_TRUE(plan(PolicyDate::april_24, request, kNvfp4));
  EXPECT_FALSE(plan(PolicyDate::august_22, request));
  request.layer.activation = Activation::silu;
  EXPECT_TRUE(plan(PolicyDate::august_22, request));
}

TEST(Assembly, TokensMustComeAsTheKernelTakesThem) {
  const auto too_many = plan(PolicyDate::april_24, cuda(spread("deepep_low_latency")));
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.why().id, "assembly.token_format");
  EXPECT_NE(too_many.why().message.find("should only be set"), std::string::npos);

  const auto too_few = plan(PolicyDate::april_24, cuda(), kPlain, kBatchedExperts);
  ASSERT_FALSE(too_few);
  EXPECT_NE(too_few.why().message.find("must be set"), std::string::npos);
  EXPECT_TRUE(
      plan(PolicyDate::april_24, cuda(spread("deepep_low_latency")), kPlain, kBatchedExperts));
}

TEST(Assembly, AKernelThatRoutesByItselfNeedsAClassThatLetsIt) {
  const auto refused =
      plan(PolicyDate::april_24, cuda(spread("deepep_high_throughput")), kPlain, kMonolithic);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().message,
            "prepare_finalize and fused_experts must both be either monolithic or "
            "non-monolithic but got DeepEPHTPrepareAndFinalize and Monolithic");
  EXPECT_TRUE(plan(PolicyDate::april_24, cuda(), kPlain, kMonolithic)->monolithic);
}

TEST(Assembly, InPlaceIsForMxfp4InSpringAndNeverForTrtllm) {
  Request request = cuda();
  EXPECT_FALSE(plan(PolicyDate::april_24, request)->inplace);
  request.layer.disable_inplace = false;
  EXPECT_TRUE(plan(PolicyDate::april_24, request)->inplace);
  EXPECT_FALSE(plan(PolicyDate::april_24, request, kTrtllm)->inplace);
  EXPECT_FALSE(plan(PolicyDate::april_24, request, kNvfp4)->inplace);
  EXPECT_FALSE(plan(PolicyDate::august_22, request)->inplace);
}

TEST(Assembly, AMonolithicKernelInPlaceStopsTheReferenceAndWarnsHere) {
  Request request = cuda();
  request.layer.disable_inplace = false;

  const auto strict = plan(PolicyDate::april_24, request, kPlain, kMonolithic, Mode::strict);
  ASSERT_TRUE(strict);
  EXPECT_FALSE(strict->inplace);
  EXPECT_EQ(strict->warnings.size(), 1u);
  const auto compat = plan(PolicyDate::april_24, request, kPlain, kMonolithic, Mode::compat);
  ASSERT_FALSE(compat);
  EXPECT_EQ(compat.why().id, "assembly.inplace");
}

TEST(Assembly, SharedExpertsGoToTheKernelByTheRuleOfTheirTime) {
  const auto holds = [](PolicyDate policy_date, std::string_view name, const Backend& backend,
                        const ExpertsClass& experts) {
    Request request = cuda(spread(name));
    request.layer.shared_experts = true;
    const auto result = plan(policy_date, request, backend, experts);
    return result && result->holds_shared_experts;
  };

  EXPECT_TRUE(holds(PolicyDate::march_27, "deepep_low_latency", kPlain, kBatchedExperts));
  EXPECT_FALSE(holds(PolicyDate::march_27, "nixl_ep", kPlain, kBatchedExperts));
  EXPECT_TRUE(holds(PolicyDate::april_24, "nixl_ep", kPlain, kBatchedExperts));
  EXPECT_FALSE(holds(PolicyDate::april_24, "deepep_high_throughput", kPlain, kModular));
  EXPECT_TRUE(holds(PolicyDate::april_24, "deepep_high_throughput", kNvfp4, kModular));
  EXPECT_FALSE(holds(PolicyDate::april_24, "allgather_reducescatter", kNvfp4, kModular));
  EXPECT_TRUE(holds(PolicyDate::january_27, "naive", kNvfp4, kModular));
  EXPECT_FALSE(holds(PolicyDate::august_22, "deepep_high_throughput", kNvfp4, kModular));
}

TEST(Assembly, InputIsQuantizedBeforeItTravelsUnlessTheKernelWantsItWhole) {
  EXPECT_TRUE(plan(PolicyDate::april_24, cuda(), kMxfp8)->quantizes_input);
  EXPECT_FALSE(plan(PolicyDate::april_24, cuda(), kMxfp8, kLazy)->quantizes_input);
  EXPECT_FALSE(plan(PolicyDate::april_24, cuda())->quantizes_input);
}

TEST(Assembly, ExpertMapsAndRoutingTablesFollowTheLayout) {
  const auto spread_out = plan(PolicyDate::april_24, cuda(spread("deepep_high_throughput")));
  EXPECT_TRUE(spread_out->passes_expert_map);
  EXPECT_FALSE(spread_out->routing_tables);
  EXPECT_FALSE(plan(PolicyDate::april_24, cuda())->passes_expert_map);
  EXPECT_TRUE(
      plan(PolicyDate::april_24, cuda(spread("nixl_ep")), kPlain, kBatchedExperts)->routing_tables);
}

TEST(Assembly, ErrorsOfOtherFilesHaveNoException) {
  EXPECT_EQ(reference_error(invalid("json.syntax", "x")), "");
  EXPECT_EQ(reference_error(invalid("sizes.exchange", "x")), "ValueError");
}

}  // namespace assembly_test
}  // namespace fp4moe::oracle
