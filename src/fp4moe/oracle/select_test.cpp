// The walk and the evaluator over made-up backends: no device, no real row.
#include "fp4moe/oracle/select.hpp"

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace select_test {

constexpr CapabilityRange kTen[] = {family(10)};
constexpr CapabilityRange kEight[] = {at_least(8, 0)};
constexpr DeviceNeed kNewDevices[] = {
    {.kinds = {PlatformKind::cuda}, .capabilities = kTen, .libraries = {Library::flashinfer}}};
constexpr DeviceNeed kOldDevices[] = {{.kinds = {PlatformKind::cuda}, .capabilities = kEight}};
constexpr Scheme kSchemes[] = {{WeightFormat::mxfp4, {ActivationKey::none}}};
constexpr ExpertsClass kNewExperts{.name = "NewExperts",
                                   .devices = kNewDevices,
                                   .activations = {Activation::swigluoai},
                                   .schemes = kSchemes};
constexpr ExpertsClass kOldExperts{.name = "OldExperts",
                                   .devices = kOldDevices,
                                   .activations = {Activation::swigluoai, Activation::silu},
                                   .schemes = kSchemes,
                                   .lora = true};
constexpr ExpertsClass kBatchedExperts{.name = "BatchedExperts",
                                       .format = TokenFormat::batched,
                                       .devices = kOldDevices,
                                       .activations = {Activation::swigluoai},
                                       .schemes = kSchemes};
constexpr const ExpertsClass* kNewList[] = {&kNewExperts};
constexpr const ExpertsClass* kOldList[] = {&kOldExperts};
constexpr const ExpertsClass* kBatchedList[] = {&kBatchedExperts};
constexpr Backend kNew{.name = "NEW", .experts = kNewList};
constexpr Backend kOld{.name = "OLD", .experts = kOldList, .batched = "BATCHED_OLD"};
constexpr Backend kBatched{.name = "BATCHED_OLD", .experts = kBatchedList};
constexpr Backend kEmpty{.name = "EMPTY"};

Policy made_up() {
  return {.name = "made-up",
          .format = WeightFormat::mxfp4,
          .policy_date = PolicyDate::april_24,
          .backends = {&kNew, &kOld, &kBatched, &kEmpty},
          .automatic = {{.backends = {&kNew, &kOld, &kBatched}}},
          .names = {{.name = "new", .backends = {&kNew}},
                    {.name = "old", .backends = {&kOld}},
                    {.name = "empty", .backends = {&kEmpty}},
                    {.name = "either", .backends = {&kNew, &kOld}}},
          .wording = {.using_backend = "using {0} of {1}",
                      .unsupported = "{0} cannot",
                      .since = "{0} cannot since {1}",
                      .unknown_name = "no {0} in {1}",
                      .nothing_supports = "nothing runs"},
          .checks_lora = true};
}

Request hopper() {
  Request request;
  request.device = {.name = "hopper", .kind = PlatformKind::cuda, .capability = Capability{9, 0}};
  return request;
}

TEST(Select, FallsBackToTheNextBackendAndSaysWhyItSkippedTheFirst) {
  const Policy policy = made_up();
  Request request = hopper();
  request.layer.lora = true;

  const Selection selection = select(policy, Mode::strict, request);

  ASSERT_EQ(selection.outcome, Outcome::selected);
  EXPECT_EQ(selection.backend->name, "OLD");
  ASSERT_EQ(selection.evaluated.size(), 2u);
  const Refusals& refused = selection.evaluated[0].refusals;
  ASSERT_EQ(refused.size(), 3u);
  EXPECT_EQ(refused.begin()[0].reason, Reason::capability);
  EXPECT_EQ(refused.begin()[1].reason, Reason::library);
  EXPECT_EQ(refused.begin()[2].reason, Reason::lora);
  EXPECT_EQ(selection.log, std::vector<std::string>{"using OLD of ['NEW', 'OLD', 'BATCHED_OLD']"});
}

TEST(Select, SentencesSayWhatIsRequiredWhatWasFoundAndWhatToDo) {
  const Policy policy = made_up();
  const Request request = hopper();
  const Verdict verdict =
      evaluate(policy, Mode::strict, request, kNew, kNewExperts, ActivationKey::none);

  const Sentence capability = sentence(request, verdict, verdict.refusals.begin()[0]);
  EXPECT_EQ(capability.requirement, "needs capability 10.x");
  EXPECT_EQ(capability.fact, "this device is 9.0");
  const Sentence library = sentence(request, verdict, verdict.refusals.begin()[1]);
  EXPECT_EQ(library.requirement, "needs the package flashinfer");
  EXPECT_EQ(library.fact, "it is not installed");
  EXPECT_EQ(library.remedy, "install flashinfer");
}

TEST(Select, TheWrongPlatformIsTheOnlyThingSaidAboutADevice) {
  const Policy policy = made_up();
  Request request = hopper();
  request.device = {.name = "cpu", .kind = PlatformKind::cpu};

  const Verdict verdict =
      evaluate(policy, Mode::strict, request, kNew, kNewExperts, ActivationKey::none);

  ASSERT_EQ(verdict.refusals.size(), 1u);
  EXPECT_EQ(verdict.refusals.front().reason, Reason::platform);
  const Sentence words = sentence(request, verdict, verdict.refusals.front());
  EXPECT_EQ(words.requirement, "needs cuda");
  EXPECT_EQ(words.fact, "this is cpu");
}

TEST(Select, AnExplicitNameIsTriedAloneAndRefusedInTheReferencesWords) {
  const Policy policy = made_up();
  Request request = hopper();
  request.layer.backend = "new";

  const Selection selection = select(policy, Mode::strict, request);

  EXPECT_EQ(selection.outcome, Outcome::error);
  EXPECT_EQ(selection.error, ErrorKind::value);
  EXPECT_EQ(selection.message, "NEW cannot since kernel does not support current device cuda");
  EXPECT_EQ(selection.evaluated.size(), 1u);
}

TEST(Select, ANameOfSeveralCandidatesTakesTheFirstThatRuns) {
  const Policy policy = made_up();
  Request request = hopper();
  request.layer.backend = "either";

  EXPECT_EQ(select(policy, Mode::strict, request).backend->name, "OLD");
}

TEST(Select, ANameWithoutKernelsIsRefusedWithoutAReason) {
  const Policy policy = made_up();
  Request request = hopper();
  request.layer.backend = "empty";

  EXPECT_EQ(select(policy, Mode::strict, request).message, "EMPTY cannot");
}

TEST(Select, AnUnknownNameListsTheNames) {
  const Policy policy = made_up();
  Request request = hopper();
  request.layer.backend = "unicorn";

  EXPECT_EQ(select(policy, Mode::strict, request).message,
            "no unicorn in ['new', 'old', 'empty', 'either']");
}

TEST(Select, BatchedTokensMakeTheBatchedVariantStandIn) {
  const Policy policy = made_up();
  Request request = hopper();
  request.layer.parallel = derive(
      {.dp_size = 2, .enable_expert_parallel = true, .all2all_backend = "deepep_low_latency"});
  request.layer.backend = "old";

  const Selection selection = select(policy, Mode::strict, request);

  ASSERT_EQ(selection.outcome, Outcome::selected);
  EXPECT_EQ(selection.backend->name, "BATCHED_OLD");
  EXPECT_EQ(selection.format, TokenFormat::batched);
}

TEST(Select, NothingThatRunsIsAnErrorOrNoneAsThePolicyEnds) {
  Policy policy = made_up();
  Request request = hopper();
  request.device = {.name = "cpu", .kind = PlatformKind::cpu};

  const Selection error = select(policy, Mode::strict, request);
  EXPECT_EQ(error.outcome, Outcome::error);
  EXPECT_EQ(error.error, ErrorKind::not_implemented);
  EXPECT_EQ(error.message, "nothing runs");

  policy.ending = Ending::none_off_gpu;
  EXPECT_EQ(select(policy, Mode::strict, request).outcome, Outcome::none);
}

TEST(Select, ASurveyHoldsEveryKernelTheListFirst) {
  const Policy policy = made_up();

  const std::vector<Verdict> verdicts = survey(policy, Mode::strict, hopper());

  ASSERT_EQ(verdicts.size(), 3u);  // EMPTY has none
  EXPECT_EQ(verdicts[0].experts->name, "NewExperts");
  EXPECT_TRUE(verdicts[1].accepted());
  EXPECT_EQ(verdicts[2].refusals.front().reason, Reason::token_format);
}

TEST(Select, RefusalsBeyondTheMostAreDroppedNotWritten) {
  Refusals refusals;
  for (std::size_t i = 0; i < Refusals::kMax + 5; ++i) refusals.add({Reason::lora, Check::lora});

  EXPECT_EQ(refusals.size(), Refusals::kMax);
}

}  // namespace select_test
}  // namespace fp4moe::oracle
