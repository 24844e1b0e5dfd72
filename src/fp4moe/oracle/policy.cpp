#include "fp4moe/oracle/policy.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp4moe::oracle {
namespace {

template <class Enum>
void insert_all(EnumSet<Enum>& into, EnumSet<Enum> more) {
  for (std::size_t i = 0; i < 64; ++i)
    if (more.contains(static_cast<Enum>(i))) into.insert(static_cast<Enum>(i));
}

}  // namespace

std::string title(const Policy& policy) {
  if (policy.policy_date == PolicyDate::native) return "fp4moe";
  constexpr std::string_view kRelease = "vllm-", kOtherEntry = "-deepseek-v4";
  std::string_view name = policy.name;
  if (name.ends_with(kOtherEntry)) name.remove_suffix(kOtherEntry.size());
  if (name.starts_with(kRelease)) return fmt::format("vLLM {}", name.substr(kRelease.size()));
  return fmt::format("vLLM of {}", name);
}

const Backend* find_backend(const Policy& policy, std::string_view name) {
  const auto found = std::ranges::find(policy.backends, name,
                                       [](const Backend* backend) { return backend->name; });
  return found == policy.backends.end() ? nullptr : *found;
}

const AutomaticList* find_list(const Policy& policy, const Request& request) {
  const auto found = std::ranges::find_if(policy.automatic, [&](const AutomaticList& list) {
    const std::optional<Capability>& capability = request.device.capability;
    return (list.kinds.empty() || list.kinds.contains(request.device.kind)) &&
           (!list.capability || (capability && list.capability->contains(*capability))) &&
           (list.routings.empty() || list.routings.contains(request.layer.routing));
  });
  return found == policy.automatic.end() ? nullptr : &*found;
}

platform::Device installed(const Policy& policy, platform::Device device) {
  if (device.usual && device.kind == PlatformKind::cuda)
    insert_all(device.libraries, policy.brings);
  device.usual = false;
  return device;
}

std::optional<Activation> rounding_activation(const Policy& policy, const Layer& layer) {
  return policy.is_generic ? std::optional(layer.activation) : std::nullopt;
}

EnumSet<Variable> variables_read(const Policy& policy) {
  EnumSet<Variable> read;
  for (const EnvironmentStep& step : policy.steps) read.insert(step.variable);
  if (policy.flashinfer_only)
    insert_all(read, {Variable::flashinfer_fp4, Variable::flashinfer_moe_backend});
  if (policy.lora) read.insert(Variable::mxfp4_use_marlin);
  if (policy.checks_invariance) read.insert(Variable::batch_invariant);
  for (const NamedChoice& named : policy.names)
    if (named.force_16_bit) read.insert(*named.force_16_bit);
  for (const Backend* backend : policy.backends) {
    for (const std::span<const ExpertsClass* const> list :
         {backend->experts, backend->lora_experts})
      for (const ExpertsClass* experts : list) {
        insert_all(read, experts->reads);
        for (const DeviceNeed& need : experts->devices) insert_all(read, need.switches);
      }
  }
  return read;
}

}  // namespace fp4moe::oracle
