// The policies over the real rows: laws that hold for every device, activation and layout.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/random.hpp"
#include "fp4moe/oracle/explain/record.hpp"

namespace fp4moe::backends {
namespace policies_test {

using oracle::Activation;
using oracle::ActivationKey;
using oracle::Mode;
using oracle::Outcome;
using oracle::Policy;
using oracle::Reason;
using oracle::Request;
using oracle::Selection;
using oracle::Verdict;
using platform::Library;
using platform::Variable;

constexpr std::size_t kReasons = static_cast<std::size_t>(Reason::adjusted_routes) + 1;

const Policy& policy(std::string_view name, oracle::WeightFormat format) {
  const Policy* found = find_policy(name, format);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}
const Policy& april() { return policy("2026-04-24", oracle::WeightFormat::mxfp4); }

platform::Device device(std::string_view name) {
  const auto found = platform::describe_device(name);
  EXPECT_TRUE(found) << name;
  return found ? *found : platform::Device{};
}
Request gpt_oss_on(std::string_view name) {
  Request request{.device = device(name)};
  request.layer.has_bias = true;
  return request;
}
oracle::Parallel low_latency() {
  return oracle::derive(
      {.dp_size = 2, .enable_expert_parallel = true, .all2all_backend = "deepep_low_latency"});
}

std::uint64_t below(SplitMix64& random, std::uint64_t limit) { return random.next() % limit; }

template <class Items>
const auto& any_of(SplitMix64& random, const Items& items) {
  return items[below(random, std::size(items))];
}

// A well-formed request.
Request random_request(SplitMix64& random, const Policy& policy) {
  constexpr std::string_view kExchanges[] = {
      "allgather_reducescatter",
      "deepep_low_latency",
      "deepep_high_throughput",
      "nixl_ep",
      "flashinfer_nvlink_two_sided",
      "pplx",
      "flashinfer_all2allv",
      "flashinfer_nvlink_one_sided",
      "mori",
      "moonep",
      "passthrough",
  };
  Request request{.device = device(any_of(random, platform::described_devices()).name)};
  for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i)
    if (below(random, 4) == 0) request.device.libraries.insert(static_cast<Library>(i));
  oracle::Layer& layer = request.layer;
  layer.activation = static_cast<Activation>(below(random, oracle::kActivationWords.size()));
  layer.gated = oracle::is_gated(layer.activation);
  layer.routing = static_cast<oracle::Routing>(below(random, oracle::kRoutingWords.size()));
  layer.router_logits_dtype = static_cast<oracle::ScalarType>(below(random, 3));
  layer.in_dtype =
      below(random, 8) == 0 ? oracle::ScalarType::float32 : oracle::ScalarType::bfloat16;
  layer.has_bias = below(random, 2) == 0;
  layer.num_experts = below(random, 8) == 0 ? 1000 : 32;
  layer.hidden = below(random, 2) == 0 ? 2880 : 4096;
  layer.intermediate = below(random, 4) == 0 ? 360 : 2048;
  if (below(random, 2) == 0) layer.situ_beta = 4.0;
  layer.situ_linear_beta = 25.0;
  if (policy.format == oracle::WeightFormat::nvfp4 && below(random, 4) != 0)
    layer.activation_key = ActivationKey::nvfp4;
  layer.parallel = oracle::derive({.tp_size = 1 + static_cast<int>(below(random, 2)),
                                   .dp_size = 1 + static_cast<int>(below(random, 2)),
                                   .sp_size = 1 + static_cast<int>(below(random, 2)),
                                   .enable_expert_parallel = below(random, 2) == 0,
                                   .all2all_backend = std::string(any_of(random, kExchanges)),
                                   .enable_eplb = below(random, 4) == 0});
  if (below(random, 4) == 0) request.environment.set(Variable::batch_invariant, "1");
  if (below(random, 2) == 0) request.environment.set(Variable::rocm_use_aiter, "1");
  layer.lora = below(random, 4) == 0;
  layer.hash_routing = below(random, 8) == 0;
  layer.decomposed = below(random, 8) == 0;
  layer.skip_final_all_reduce = below(random, 8) == 0;
  layer.dual_batch_overlap = below(random, 8) == 0;
  layer.weight_transfer = below(random, 8) == 0;
  if (below(random, 8) == 0) layer.swiglu_alpha = 1.5;
  return request;
}

TEST(Policies, EveryNameInEveryListHasARow) {
  const auto result = make_policies(all_rows());

  ASSERT_TRUE(result) << text(result.why());
  EXPECT_EQ(result->size(), 14u);
  for (const Policy& one : *result) {
    EXPECT_FALSE(one.automatic.empty()) << one.name;
    EXPECT_FALSE(one.summary.empty()) << one.name;
  }
}

TEST(Policies, AMissingRowIsAnErrorThatNamesIt) {
  std::vector<const oracle::Backend*> rows = all_rows();
  std::erase_if(rows, [](const oracle::Backend* row) { return row->name == "MARLIN"; });

  const auto result = make_policies(rows);

  ASSERT_FALSE(result);
  EXPECT_EQ(result.why().id, "policy.backend");
  EXPECT_EQ(result.why().expected, "a row named MARLIN");
}

TEST(Policies, AnUnknownNameListsTheOthers) {
  const auto missing = require_policy("2026-01-27", oracle::WeightFormat::mxfp4);

  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.why().code, ErrorCode::usage);
  EXPECT_NE(missing.why().expected.find("2026-04-24"), std::string::npos);
}

TEST(Policies, ADayWithoutOneIsToldTheNewestBeforeIt) {
  const auto remedy = [](std::string_view day) {
    return require_policy(day, oracle::WeightFormat::mxfp4).why().remedy;
  };
  EXPECT_EQ(remedy("2026-06-01"), "--policy 2026-04-24 is the newest before that day");
  EXPECT_EQ(remedy("2030-01-01"), "--policy 2026-08-22 is the newest before that day");
  EXPECT_EQ(remedy("2025-01-01"), "--policy 2026-03-20 is the first");
  EXPECT_EQ(remedy("june"), "leave --policy out to use native");
}

TEST(Policies, RowsOfOneNameFormatAndEraAreUnique) {
  std::set<std::string> seen;
  for (const oracle::Backend* row : all_rows())
    for (int policy_date = 0; policy_date <= static_cast<int>(oracle::PolicyDate::native);
         ++policy_date)
      if (row->policy_dates.contains(static_cast<oracle::PolicyDate>(policy_date))) {
        const std::string key = std::string(row->name) + "/" +
                                std::string(formats::name(row->format)) + "/" +
                                std::to_string(policy_date);
        EXPECT_TRUE(seen.insert(key).second) << key;
      }
}

// A folder would hold the row; the policy's list is the one line.
TEST(Policies, AFictitiousBackendIsOneRowAndOneLine) {
  static constexpr oracle::DeviceNeed kAnywhere[] = {{}};
  static constexpr oracle::Scheme kScheme[] = {
      {oracle::WeightFormat::mxfp4, {ActivationKey::none}}};
  static constexpr oracle::ExpertsClass kExperts{.name = "UnicornExperts",
                                                 .devices = kAnywhere,
                                                 .activations = {Activation::swigluoai},
                                                 .schemes = kScheme};
  static constexpr const oracle::ExpertsClass* kList[] = {&kExperts};
  static constexpr oracle::Backend kUnicorn{.name = "UNICORN",
                                            .family = "unicorn",
                                            .format = oracle::WeightFormat::mxfp4,
                                            .policy_dates = {oracle::PolicyDate::april_24},
                                            .experts = kList};
  std::vector<const oracle::Backend*> rows = all_rows();
  rows.push_back(&kUnicorn);
  auto result = make_policies(rows);
  ASSERT_TRUE(result);
  Policy& changed = *std::ranges::find_if(*result, [](const Policy& one) {
    return one.name == "2026-04-24" && one.format == oracle::WeightFormat::mxfp4;
  });

  auto& list = changed.automatic.front().backends;
  list.insert(list.begin(), oracle::find_backend(changed, "UNICORN"));

  const Selection selection = select(changed, Mode::strict, gpt_oss_on("h100"));
  ASSERT_EQ(selection.outcome, Outcome::selected);
  EXPECT_EQ(selection.backend->name, "UNICORN");
  Request other = gpt_oss_on("h100");
  other.layer.activation = Activation::silu;
  const Selection refused = select(changed, Mode::strict, other);
  EXPECT_EQ(reference_reason(changed, other, refused.evaluated.front()),
            "kernel does not support MoEActivation.SILU activation");
}

TEST(Policies, AnExplicitRequestOfTheAutomaticChoiceGivesTheSameKernel) {
  SplitMix64 random(1);
  int compared = 0;
  for (int round = 0; round < 4000; ++round) {
    const Policy& one = any_of(random, policies());
    Request request = random_request(random, one);
    if (one.lora) request.layer.lora = false;  // decided before names are looked at
    const Selection chosen = select(one, Mode::strict, request);
    if (chosen.outcome != Outcome::selected || chosen.experts == nullptr) continue;
    for (const oracle::NamedChoice& named : one.names) {
      const oracle::Backend* first = named.backends.front();
      if (first != chosen.backend && first->batched != chosen.backend->name) continue;
      if (first != chosen.backend && chosen.format != oracle::TokenFormat::batched) continue;
      request.layer.backend = named.name;

      const Selection asked = select(one, Mode::strict, request);

      ASSERT_EQ(asked.outcome, Outcome::selected) << one.name << " " << named.name;
      EXPECT_EQ(asked.experts, chosen.experts) << one.name << " " << named.name;
      ++compared;
      break;
    }
  }
  EXPECT_GT(compared, 500);
}

TEST(Policies, AddingALibraryNeverTakesAKernelAway) {
  SplitMix64 random(2);
  for (int round = 0; round < 2000; ++round) {
    const Policy& one = any_of(random, policies());
    Request request = random_request(random, one);
    const std::vector<Verdict> before = survey(one, Mode::strict, request);
    const auto added = static_cast<Library>(below(random, platform::kLibraryNames.size()));
    request.device.libraries.insert(added);

    const std::vector<Verdict> after = survey(one, Mode::strict, request);

    ASSERT_EQ(before.size(), after.size());
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(!before[i].accepted() || after[i].accepted())
          << one.name << " " << before[i].experts->name << " + " << platform::name(added);
  }
}

TEST(Policies, DroppingADemandNeverTakesAKernelAway) {
  SplitMix64 random(3);
  for (int round = 0; round < 2000; ++round) {
    const Policy& one = any_of(random, policies());
    Request request = random_request(random, one);
    const std::vector<Verdict> before = survey(one, Mode::strict, request);
    request.layer.lora = false;
    request.layer.has_bias = false;
    request.layer.parallel.enable_eplb = false;
    request.environment.unset(Variable::batch_invariant);

    const std::vector<Verdict> after = survey(one, Mode::strict, request);

    for (const Verdict& with : before) {
      // A kernel that only LoRA reaches goes with it.
      const auto without = std::ranges::find_if(after, [&](const Verdict& verdict) {
        return verdict.backend == with.backend && verdict.experts == with.experts;
      });
      EXPECT_TRUE(without != after.end() || with.experts->lora) << with.experts->name;
      if (without == after.end()) continue;
      EXPECT_TRUE(!with.accepted() || without->accepted()) << one.name << " " << with.experts->name;
    }
  }
}

TEST(Policies, SelectionIsAPureFunctionOnAnyThread) {
  SplitMix64 random(4);
  std::vector<std::pair<const Policy*, Request>> requests;
  for (int i = 0; i < 64; ++i) {
    const Policy& one = any_of(random, policies());
    requests.emplace_back(&one, random_request(random, one));
  }
  const auto answer = [&](std::size_t i) {
    return to_json(make_record(*requests[i].first, Mode::compat, requests[i].second)).dump();
  };
  std::vector<std::string> expected, found(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) expected.push_back(answer(i));

  const auto ran = parallel_for(4, requests.size(), [&](std::size_t i) -> Result<Done> {
    found[i] = answer(i);
    return Done{};
  });

  ASSERT_TRUE(ran);

  EXPECT_EQ(found, expected);
}

TEST(Policies, EveryReasonIsProvokedAndSaysRequirementAndFact) {
  SplitMix64 random(5);
  std::set<Reason> seen;
  for (int round = 0; round < 6000; ++round) {
    const Policy& one = any_of(random, policies());
    const Request request = random_request(random, one);
    const Mode mode = below(random, 2) == 0 ? Mode::strict : Mode::compat;
    for (const Verdict& verdict : survey(one, mode, request)) {
      EXPECT_EQ(verdict.accepted(), reference_reason(one, request, verdict).empty());
      for (const oracle::Refusal& refusal : verdict.refusals) {
        seen.insert(refusal.reason);
        const oracle::Sentence words = sentence(request, verdict, refusal);
        EXPECT_FALSE(words.requirement.empty()) << name(refusal.reason);
        EXPECT_FALSE(words.fact.empty()) << name(refusal.reason);
      }
    }
  }

  for (std::size_t i = 0; i < kReasons; ++i)
    EXPECT_TRUE(seen.contains(static_cast<Reason>(i))) << name(static_cast<Reason>(i));
}

TEST(Policies, OneCauseGivesOneRefusal) {
  Request request = gpt_oss_on("a100");

  for (const Verdict& verdict : survey(april(), Mode::strict, request)) {
    std::set<std::pair<Reason, int>> seen;
    for (const oracle::Refusal& refusal : verdict.refusals)
      EXPECT_TRUE(seen.insert({refusal.reason, refusal.detail}).second)
          << verdict.experts->name << " " << name(refusal.reason);
  }
}

TEST(Policies, NativeAlwaysFindsAKernelForLayersThatExist) {
  SplitMix64 random(6);
  for (int round = 0; round < 2000; ++round) {
    const Policy& one = policy("native", below(random, 2) == 0 ? oracle::WeightFormat::mxfp4
                                                               : oracle::WeightFormat::nvfp4);
    Request request = random_request(random, one);
    if (request.layer.activation == Activation::relu2)
      continue;  // no backend computes it with a gate

    const Selection selection = select(one, Mode::strict, request);

    EXPECT_EQ(selection.outcome, Outcome::selected) << selection.message;
  }
}

TEST(Policies, NativeTakesKernelsForTheGpuAndTheCpuElsewhere) {
  const Policy& native = policy("native", oracle::WeightFormat::mxfp4);
  const auto chosen = [&](std::string_view name) {
    return std::string(select(native, Mode::strict, gpt_oss_on(name)).backend->name);
  };

  EXPECT_EQ(chosen("h100"), "NATIVE_SM90");
  EXPECT_EQ(chosen("h200"), "NATIVE_SM90");
  for (const std::string_view gpu : {"a100", "l40s", "rtx5090", "b200"})
    EXPECT_EQ(chosen(gpu), "NATIVE_SM80") << gpu;
  EXPECT_EQ(chosen("t4"), "CPU");
  EXPECT_EQ(chosen("mi355x"), "CPU");
  EXPECT_EQ(chosen("cpu"), "CPU");
}

TEST(Policies, NativeKernelsForEveryGpuSinceAmpereAreTakenByName) {
  const Policy& native = policy("native", oracle::WeightFormat::mxfp4);
  const auto asked = [&](std::string_view name) {
    Request request = gpt_oss_on(name);
    request.layer.backend = "native_sm80";
    return select(native, Mode::strict, request);
  };
  for (const std::string_view name : {"a100", "l40s", "h200", "b200"}) {
    const Selection selection = asked(name);
    ASSERT_EQ(selection.outcome, Outcome::selected) << name << ": " << selection.message;
    EXPECT_EQ(selection.backend->name, "NATIVE_SM80");
    EXPECT_EQ(selection.backend->layout, "native_sm80.mxfp4");
  }
  EXPECT_NE(asked("t4").outcome, Outcome::selected);
  EXPECT_NE(asked("cpu").outcome, Outcome::selected);
}

TEST(Policies, DeepseekV4HasListsOfItsOwnPerPlatform) {
  const Policy& one = policy("2026-08-22-deepseek-v4", oracle::WeightFormat::mxfp4);
  Request request = gpt_oss_on("b200");
  request.layer.activation = Activation::silu;
  request.layer.has_bias = false;

  EXPECT_EQ(select(one, Mode::compat, request).backend->name, "FLASHINFER_TRTLLM_MXFP4_MXFP8");

  request.device = device("mi355x");
  request.environment.set(Variable::rocm_use_aiter, "1");
  request.layer.routing = oracle::Routing::deepseek_v4;
  EXPECT_EQ(select(one, Mode::compat, request).experts->name, "AiterExperts");
  request.environment.unset(Variable::rocm_use_aiter);
  EXPECT_EQ(select(one, Mode::compat, request).backend->name, "TRITON_UNFUSED");

  request.device = device("cpu");
  const Selection none = select(one, Mode::compat, request);
  EXPECT_EQ(none.message, "No MXFP4 MoE backend supports the deployment configuration.");
}

TEST(Policies, AMalformedVariableStopsTheReferenceWhereItReadsIt) {
  Request request = gpt_oss_on("h100");
  request.environment.set(Variable::flashinfer_mxfp4_bf16, "maybe");

  const Selection read = select(april(), Mode::compat, request);
  EXPECT_EQ(read.outcome, Outcome::error);
  EXPECT_EQ(read.message, "invalid literal for int() with base 10: 'maybe'");

  request.layer.backend = "marlin";  // decided before variables are looked at
  EXPECT_EQ(select(april(), Mode::compat, request).outcome, Outcome::selected);
}

TEST(Policies, OfOurKernelsThoseForCpusAloneAreBatchInvariant) {
  const Policy& native = policy("native", oracle::WeightFormat::mxfp4);
  for (const std::string_view name : {"h100", "a100"}) {
    Request request = gpt_oss_on(name);
    EXPECT_NE(select(native, Mode::strict, request).backend->name, "CPU") << name;
    request.environment.set(Variable::batch_invariant, "1");
    EXPECT_EQ(select(native, Mode::strict, request).backend->name, "CPU") << name;
  }
}

TEST(Policies, AMalformedVariableThatAKernelReadsStopsTheReferenceAtThatKernel) {
  Request request = gpt_oss_on("h100");
  request.environment.set(Variable::batch_invariant, "");

  const Selection compat = select(april(), Mode::compat, request);
  EXPECT_EQ(compat.message, "invalid literal for int() with base 10: ''");
  EXPECT_EQ(compat.evaluated.size(), 3u);  // those that were refused for other reasons
  const Selection strict = select(april(), Mode::strict, request);
  EXPECT_EQ(strict.message, "VLLM_BATCH_INVARIANT: expected a whole number; 0 means no, found ''");

  const Policy& august = policy("2026-08-22", oracle::WeightFormat::mxfp4);
  for (const auto& [name, variable] : {std::pair{"b12x", Variable::b12x_force_a16},
                                       std::pair{"deep_gemm", Variable::use_deep_gemm}}) {
    Request other = gpt_oss_on("cpu");
    other.layer.backend = name;
    other.environment.set(variable, "on");
    EXPECT_EQ(select(august, Mode::compat, other).message,
              "invalid literal for int() with base 10: 'on'");
  }
}

TEST(Policies, StrictModeTreatsTheMarlinVariableLikeItsName) {
  Request request = gpt_oss_on("h100");
  request.layer.parallel = low_latency();
  request.environment.set(Variable::mxfp4_use_marlin, "1");

  EXPECT_EQ(select(april(), Mode::compat, request).outcome, Outcome::error);
  EXPECT_EQ(select(april(), Mode::strict, request).backend->name, "BATCHED_MARLIN");
}

TEST(Policies, StrictModeChecksTheLoraChoiceAndCompatDoesNot) {
  Request request = gpt_oss_on("v100");
  request.layer.lora = true;

  EXPECT_EQ(select(april(), Mode::compat, request).backend->name, "MARLIN");
  const Selection strict = select(april(), Mode::strict, request);
  EXPECT_EQ(strict.outcome, Outcome::error);
  EXPECT_EQ(strict.message,
            "Mxfp4 MoE backend 'MARLIN' does not support the deployment configuration since kernel "
            "does not support current device cuda.");
}

TEST(Policies, StrictModeDoesNotSayItUsesWhatItThenRefuses) {
  Request request = gpt_oss_on("xpu");
  request.layer.activation = Activation::relu2;

  EXPECT_EQ(select(april(), Mode::compat, request).log.size(), 1u);
  EXPECT_TRUE(select(april(), Mode::strict, request).log.empty());
}

TEST(Policies, ARequestedActivationFormFiltersTheAugustList) {
  const Policy& august = policy("2026-08-22", oracle::WeightFormat::mxfp4);
  Request request = gpt_oss_on("b200");
  request.layer.activation_key = ActivationKey::mxfp8;

  EXPECT_EQ(select(august, Mode::compat, request).backend->name, "FLASHINFER_TRTLLM_MXFP4_MXFP8");

  request.layer.activation_override = ActivationKey::mxfp4;
  const Selection conflict = select(august, Mode::compat, request);
  EXPECT_EQ(conflict.outcome, Outcome::error);
  EXPECT_TRUE(conflict.message.starts_with("checkpoint declares MoE activation=QuantKey("));

  request.layer.activation_override.reset();
  request.layer.backend = "triton";
  EXPECT_EQ(select(august, Mode::compat, request).message,
            "moe_backend='triton' does not support activation=QuantKey(f8e4m3fn,scale(u8,dynamic,"
            "GroupShape(row=1, col=32)),symmetric)");
}

TEST(Policies, VariablesReadAreThoseThePolicyLooksAt) {
  const auto in_april = oracle::variables_read(april());
  EXPECT_TRUE(in_april.contains(Variable::mxfp4_use_marlin));
  EXPECT_TRUE(in_april.contains(Variable::rocm_use_aiter));
  EXPECT_FALSE(in_april.contains(Variable::flashinfer_fp4));

  const auto august = oracle::variables_read(policy("2026-08-22", oracle::WeightFormat::mxfp4));
  EXPECT_FALSE(august.contains(Variable::mxfp4_use_marlin));
  EXPECT_TRUE(august.contains(Variable::b12x_force_a16));
  EXPECT_TRUE(august.contains(Variable::humming_gemm_type));
  EXPECT_TRUE(august.contains(Variable::use_deep_gemm));
}

}  // namespace policies_test
}  // namespace fp4moe::backends
