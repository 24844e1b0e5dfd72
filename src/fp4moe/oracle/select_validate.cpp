// The check of the chosen kernel before it is made.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/oracle/select.hpp"

namespace fp4moe::oracle {
namespace {

// In the order in which the reference looks for a form of activations that the kernel takes.
constexpr ActivationKey kTried[] = {ActivationKey::mxfp4, ActivationKey::mxfp8,
                                    ActivationKey::fp8_block128, ActivationKey::fp8_static_tensor,
                                    ActivationKey::none};

// The pair of formats that is checked.
struct Checked {
  ActivationKey activation{};
  bool int4 = false;  // INT4 weights in groups of 32, which the kernel takes instead of MXFP4
};

Checked checked_pair(const Policy& policy, Mode mode, const Request& request,
                     const Backend& backend, const ExpertsClass& experts) {
  const Layer& layer = request.layer;
  if (mode == Mode::strict)
    return {backend.any_activation ? layer.activation_override.value_or(layer.activation_key)
                                   : backend.activation};
  const auto* found = std::ranges::find_if(kTried, [&](ActivationKey key) {
    return takes(experts, policy.format, key, request.device);
  });
  if (found != std::end(kTried)) return {*found};
  const bool int4 = !experts.int4_groups_on.empty() &&
                    request.device.gfx.find(experts.int4_groups_on) != std::string::npos;
  return {int4 ? ActivationKey::none : backend.activation, int4};
}

bool columns_hold(const Verdict& verdict) {
  return verdict.accepted() || verdict.refusals.front().check == Check::rule_after;
}

}  // namespace

std::string validate(const Policy& policy, Mode mode, const Request& request,
                     const Backend& backend, const ExpertsClass& experts) {
  if (!policy.validates) return {};
  const Checked pair = checked_pair(policy, mode, request, backend, experts);
  Verdict verdict = evaluate(policy, mode, request, backend, experts, pair.activation);
  if (pair.int4) {
    const Refusals all = std::exchange(verdict.refusals, {});
    for (const Refusal& refusal : all)
      if (refusal.check != Check::scheme) verdict.refusals.add(refusal);
  }
  const std::span<const std::string_view> names = experts.configured_names;
  if (!names.empty() && columns_hold(verdict) &&
      std::ranges::find(names, request.layer.backend) == names.end())
    return fmt::format("'{}' is not a FlashInfer MoE-EP backend; expected one of ['{}']",
                       request.layer.backend, fmt::join(names, "', '"));
  if (verdict.accepted()) return {};
  return fmt::format(fmt::runtime(policy.wording.not_valid), experts.name,
                     reference_reason(policy, request, verdict));
}

}  // namespace fp4moe::oracle
