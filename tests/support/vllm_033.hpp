// Requests under release 0.33.0 and what comes of them, for the tests of its rules.
#pragma once
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/oracle/select.hpp"
#include "fp4moe/platform/device.hpp"

namespace fp4moe::backends::vllm_033 {

using oracle::Activation;
using oracle::ActivationKey;
using oracle::Mode;
using oracle::Outcome;
using oracle::Policy;
using oracle::Request;
using oracle::Routing;
using oracle::Selection;
using oracle::WeightFormat;
using platform::Library;
using platform::Variable;

constexpr auto kMxfp4 = WeightFormat::mxfp4;
constexpr auto kNvfp4 = WeightFormat::nvfp4;

inline const Policy& gpt_oss() { return newest_vllm_policy(kMxfp4); }
inline const Policy& generic() { return newest_vllm_policy(kMxfp4, Entry::generic); }
inline const Policy& nvfp4() { return newest_vllm_policy(kNvfp4); }

// A device with what the release's wheel installs.
inline Request on(std::string_view name, const Policy& policy) {
  const auto found = platform::describe_device(name);
  EXPECT_TRUE(found) << name;
  Request request{.device = oracle::installed(policy, found ? *found : platform::Device{})};
  request.layer.has_bias = policy.format == kMxfp4 && !policy.is_generic;
  if (policy.format == kNvfp4 || policy.is_generic) request.layer.activation = Activation::silu;
  if (policy.format == kNvfp4) request.layer.activation_key = ActivationKey::nvfp4;
  return request;
}

inline std::string chosen(const Policy& policy, const Request& request, Mode mode = Mode::compat) {
  const Selection result = select(policy, mode, request);
  if (result.outcome != Outcome::selected) return result.message;
  return std::string(result.backend->name) + " " + std::string(result.experts->name);
}

inline const oracle::ExpertsClass& experts_of(const Policy& policy, std::string_view backend,
                                              std::string_view name) {
  static const oracle::ExpertsClass kNone{};
  const oracle::Backend* row = oracle::find_backend(policy, backend);
  EXPECT_NE(row, nullptr) << backend;
  if (row == nullptr) return kNone;
  for (const auto list : {row->experts, row->lora_experts})
    for (const oracle::ExpertsClass* experts : list)
      if (experts->name == name) return *experts;
  ADD_FAILURE() << backend << " has no " << name;
  return kNone;
}

inline std::string refusal(const Policy& policy, const Request& request, std::string_view backend,
                           std::string_view experts, Mode mode = Mode::compat) {
  const oracle::Backend& row = *oracle::find_backend(policy, backend);
  return validate(policy, mode, request, row, experts_of(policy, backend, experts));
}

inline oracle::Parallel expert_parallel(std::string_view all2all, int dp = 2) {
  return oracle::derive({.tp_size = dp == 1 ? 2 : 1,
                         .dp_size = dp,
                         .enable_expert_parallel = true,
                         .all2all_backend = std::string(all2all)});
}

}  // namespace fp4moe::backends::vllm_033
