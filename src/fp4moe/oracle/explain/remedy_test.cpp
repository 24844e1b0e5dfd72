// Remedies over made-up backends: each is tried, and none is offered that does not help.
#include "fp4moe/oracle/explain/remedy.hpp"

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace remedy_test {

constexpr std::string_view kNewChip[] = {"gfx950"};
constexpr DeviceNeed kSwitched[] = {{.kinds = {PlatformKind::rocm},
                                     .libraries = {Library::aiter},
                                     .switches = {Variable::rocm_use_aiter}}};
constexpr DeviceNeed kAnyRocm[] = {{.kinds = {PlatformKind::rocm}}};
constexpr DeviceNeed kChips[] = {
    {.kinds = {PlatformKind::rocm}, .gfx = kNewChip, .libraries = {Library::quark}}};
constexpr Scheme kAnywhere[] = {{WeightFormat::mxfp4, {ActivationKey::none}}};
constexpr Scheme kOnNewChip[] = {
    {.weights = WeightFormat::mxfp4, .activations = {ActivationKey::none}, .gfx = "gfx950"}};

constexpr ExpertsClass result(std::string_view name, std::span<const DeviceNeed> devices,
                              std::span<const Scheme> schemes) {
  return {
      .name = name, .devices = devices, .activations = {Activation::swigluoai}, .schemes = schemes};
}
constexpr ExpertsClass kFast = result("Fast", kSwitched, kOnNewChip);
constexpr ExpertsClass kPlain = result("Plain", kAnyRocm, kAnywhere);
constexpr ExpertsClass kSpecial = result("Special", kChips, kAnywhere);
constexpr const ExpertsClass* kFastList[] = {&kFast};
constexpr const ExpertsClass* kPlainList[] = {&kPlain};
constexpr const ExpertsClass* kSpecialList[] = {&kSpecial};
constexpr Backend kFastBackend{.name = "FAST", .experts = kFastList};
constexpr Backend kPlainBackend{.name = "PLAIN", .experts = kPlainList};
constexpr Backend kSpecialBackend{.name = "SPECIAL", .experts = kSpecialList};

Policy made_up() {
  return {.name = "made-up",
          .format = WeightFormat::mxfp4,
          .policy_date = PolicyDate::april_24,
          .backends = {&kFastBackend, &kPlainBackend, &kSpecialBackend},
          .automatic = {{.backends = {&kFastBackend, &kPlainBackend}}},
          .names = {{.name = "fast", .backends = {&kFastBackend}},
                    {.name = "plain", .backends = {&kPlainBackend}},
                    {.name = "special", .backends = {&kSpecialBackend}}},
          .wording = {.using_backend = "using {0} of {1}",
                      .unsupported = "{0} cannot",
                      .since = "{0} cannot since {1}",
                      .unknown_name = "no {0} in {1}",
                      .nothing_supports = "nothing runs"},
          .checks_lora = true};
}

Request on(std::string_view gfx) {
  Request request;
  request.device = {.name = "device", .kind = PlatformKind::rocm, .gfx = std::string(gfx)};
  request.device.libraries.insert(Library::aiter);
  return request;
}

const BackendRow& row_of(const Record& record, std::string_view name) {
  for (const BackendRow& row : record.rows)
    if (row.backend->name == name) return row;
  ADD_FAILURE() << name;
  return record.rows.front();
}

TEST(Remedy, AVariableIsOfferedWhereTheSelectionThenTakesTheBackend) {
  const Policy policy = made_up();
  Record record = make_record(policy, Mode::strict, on("gfx950"));
  ASSERT_EQ(record.selection.backend->name, "PLAIN");

  add_remedies(record);

  const auto& remedy = row_of(record, "FAST").remedy;
  ASSERT_TRUE(remedy);
  EXPECT_EQ(remedy->steps, std::vector<std::string>{"set VLLM_ROCM_USE_AITER=1"});
  EXPECT_EQ(remedy->asks, (std::vector<std::string>{"--env", "VLLM_ROCM_USE_AITER=1"}));
}

TEST(Remedy, NothingIsOfferedAgainstHardwareAndBothReasonsAreListedHardwareFirst) {
  const Policy policy = made_up();
  Record record = make_record(policy, Mode::strict, on("gfx942"));

  add_remedies(record);

  const BackendRow& fast = row_of(record, "FAST");
  EXPECT_FALSE(fast.remedy);
  const std::vector<Refusal> reasons = by_cause(*fast.nearest);
  ASSERT_EQ(reasons.size(), 2u);
  EXPECT_EQ(reasons[0].reason, Reason::scheme);
  EXPECT_EQ(reasons[1].reason, Reason::environment);
  // The reference still tells its own first.
  EXPECT_EQ(fast.nearest->refusals.front().reason, Reason::environment);
  EXPECT_TRUE(decisive_reason(record.request, *fast.nearest).ends_with("this device is gfx942"));
  const Sentence words = sentence(record, *fast.nearest, reasons[1]);
  EXPECT_EQ(words.remedy, "PLAIN would run");
}

TEST(Remedy, SeveralStepsAreOfferedTogether) {
  const Policy policy = made_up();
  Record record = make_record(policy, Mode::strict, on("gfx950"));

  add_remedies(record);

  const auto& remedy = row_of(record, "SPECIAL").remedy;
  ASSERT_TRUE(remedy);
  EXPECT_EQ(remedy->steps,
            (std::vector<std::string>{"pip install amd-quark", "--moe-backend special"}));
}

TEST(Remedy, WhatCannotBeLoadedIsNotOffered) {
  const Policy policy = made_up();
  Record record = make_record(policy, Mode::strict, on("gfx950"));

  add_remedies(record, {}, [](const Request&, const Backend&) { return false; });

  for (const BackendRow& row : record.rows) EXPECT_FALSE(row.remedy) << row.backend->name;
}

TEST(Remedy, ALoraDeploymentIsToldToServeWithout) {
  const Policy policy = made_up();
  Request request = on("gfx950");
  request.layer.lora = true;
  Record record = make_record(policy, Mode::strict, request);
  ASSERT_EQ(record.selection.outcome, Outcome::error);

  add_remedies(record);

  const auto& remedy = row_of(record, "PLAIN").remedy;
  ASSERT_TRUE(remedy);
  EXPECT_EQ(remedy->asks, (std::vector<std::string>{"--no-lora"}));
}

TEST(Remedy, ANameThatWasInsistedOnIsLeftOut) {
  const Policy policy = made_up();
  Request request = on("gfx942");
  request.layer.backend = "fast";
  Record record = make_record(policy, Mode::strict, request);
  ASSERT_EQ(record.selection.outcome, Outcome::error);

  add_remedies(record);

  EXPECT_EQ(row_of(record, "PLAIN").remedy->steps,
            std::vector<std::string>{"leave --moe-backend out"});
}

}  // namespace remedy_test
}  // namespace fp4moe::oracle
