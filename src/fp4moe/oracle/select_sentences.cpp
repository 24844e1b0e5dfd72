// The words for a refusal: the reference's own, so that logs can be compared, and ours, so that a
// person knows what is required, what was found and what to do.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/capability_words.hpp"
#include "fp4moe/oracle/select.hpp"

namespace fp4moe::oracle {
namespace {

std::string found_capability(const platform::Device& device) {
  return device.capability ? "this device is " + platform::text(*device.capability)
                           : "this device has no capability";
}

// The platforms of all needs together, without what else they ask for.
std::string platforms(const Verdict& verdict) {
  DeviceNeed all;
  for (const DeviceNeed& need : verdict.needs)
    for (std::size_t i = 0; i < platform::kPlatformNames.size(); ++i)
      if (need.kinds.contains(static_cast<PlatformKind>(i)))
        all.kinds.insert(static_cast<PlatformKind>(i));
  return device_words({&all, 1});
}

Sentence about_device(const Request& request, const Verdict& verdict, const Refusal& refusal) {
  const platform::Device& device = request.device;
  if (refusal.reason == Reason::platform)
    return {
        "needs " + platforms(verdict), fmt::format("this is {}", platform::name(device.kind)), {}};
  const DeviceNeed& need = verdict.needs[refusal.need];
  switch (refusal.reason) {
    case Reason::capability:
      return {
          "needs capability " + capability_words(need.capabilities), found_capability(device), {}};
    case Reason::architecture: {
      std::string names = join(std::vector<std::string>(need.gfx.begin(), need.gfx.end()), ", ");
      if (!need.not_gfx.empty())
        names += " but not " +
                 join(std::vector<std::string>(need.not_gfx.begin(), need.not_gfx.end()), ", ");
      return {"needs " + names,
              device.gfx.empty() ? "this device has no gfx name" : "this device is " + device.gfx,
              {}};
    }
    case Reason::library: {
      const std::string_view library = platform::kLibraryNames[refusal.detail];
      return {fmt::format("needs the package {}", library), "it is not installed",
              fmt::format("install {}", library)};
    }
    case Reason::environment: {
      const platform::VariableRow& row = platform::row(static_cast<Variable>(refusal.detail));
      const auto& value = request.environment.text(row.variable);
      return {fmt::format("needs {} to be on", row.name),
              value ? fmt::format("it is '{}'", printable(*value)) : "it is unset",
              fmt::format("set {}=1", row.name)};
    }
    default: {
      const std::string_view cpu = need.architecture == CpuArchitecture::x86   ? "an x86 CPU"
                                   : need.architecture == CpuArchitecture::arm ? "an Arm CPU"
                                                                               : "a CPU";
      return {fmt::format("needs {} with {}", cpu, platform::text(need.cpu)),
              "this one has " + platform::text(device.cpu),
              {}};
    }
  }
}

Sentence about_parallel(const Request& request, const Refusal& refusal) {
  const Parallel& layout = request.layer.parallel;
  const LimitWords& limit = words(static_cast<ParallelLimit>(refusal.detail));
  std::string fact;
  switch (refusal.reason) {
    case Reason::all2all:
    case Reason::exchange:
      fact = fmt::format("this deployment exchanges tokens with {}", layout.all2all_backend);
      break;
    case Reason::eplb:
      fact = "it is on";
      break;
    case Reason::data_parallel:
      fact = fmt::format("the size is {}", layout.dp_size);
      break;
    case Reason::sequence_parallel:
      fact = fmt::format("the size is {}", layout.sp_size);
      break;
    case Reason::expert_parallel:
      if (!layout.use_ep) {
        fact = "it is off";
        break;
      }
      [[fallthrough]];
    default:
      fact = layout.ep_size > 1 ? fmt::format("{} ranks share them", layout.ep_size) : "it is on";
  }
  return {"needs " + std::string(limit.demand), fact, std::string(limit.remedy)};
}

std::string scheme_text(WeightFormat weights, ActivationKey activation) {
  return fmt::format("{} weights with {} activations", formats::name(weights),
                     key_words(activation));
}

// True if the kernel computes the pair of formats, perhaps on other devices only.
bool has_pair(const Verdict& verdict) {
  return std::ranges::any_of(verdict.experts->schemes, [&](const Scheme& scheme) {
    return scheme.weights == verdict.backend->format &&
           scheme.activations.contains(verdict.activation);
  });
}

Sentence about_scheme(const Request& request, const Verdict& verdict) {
  const WeightFormat weights = verdict.backend->format;
  const std::string known = input_words(verdict.experts->schemes, weights);
  const std::string requirement =
      known.empty() ? fmt::format("does not compute {} weights", formats::name(weights))
                    : fmt::format("takes {} weights with input: {}", formats::name(weights), known);
  if (!has_pair(verdict))
    return {requirement, "asked for " + scheme_text(weights, verdict.activation), {}};
  return {requirement,
          request.device.gfx.empty() ? found_capability(request.device)
                                     : "this device is " + request.device.gfx,
          {}};
}

Sentence about_column(const Request& request, const Verdict& verdict, const Refusal& refusal) {
  const Layer& layer = request.layer;
  const ExpertsClass& experts = *verdict.experts;
  switch (refusal.reason) {
    case Reason::not_gated:
      return {"computes only layers with a gate", "this layer has none", {}};
    case Reason::activation:
      return {"computes " + activation_words(experts.activations),
              fmt::format("the layer has {}", name(layer.activation)),
              {}};
    case Reason::scheme:
      return about_scheme(request, verdict);
    case Reason::hash_routing:
      return {"routes by itself, without a table of tokens", "the layer routes by such a table",
              "a modular kernel takes routes made elsewhere"};
    case Reason::adjusted_routes:
      return {"routes by itself", "the routes are changed before the experts see them",
              "a modular kernel takes routes made elsewhere"};
    case Reason::routing:
      return {
          (experts.kind == Kind::monolithic ? "routes by itself, with " : "takes routes of ") +
              routing_words(experts.routings),
          fmt::format("the layer routes with {}", name(layer.routing)),
          experts.kind == Kind::monolithic ? "a modular kernel takes routes made elsewhere" : ""};
    case Reason::logits_dtype:
      return {experts.logits == LogitsRule::bfloat16_or_float32
                  ? "needs router logits in bfloat16 or float32"
                  : "takes float32 router logits only with DeepSeekV3 or Simulated routing",
              fmt::format("they are {}", name(layer.router_logits_dtype)),
              "keep the router's logits in bfloat16"};
    case Reason::token_format:
      return {fmt::format("takes tokens in the {} format", name(experts.format)),
              fmt::format("this deployment delivers {}", name(verdict.format)),
              verdict.format == TokenFormat::batched
                  ? "choose an exchange that keeps tokens in order, such as allgather_reducescatter"
                  : "it is meant for deepep_low_latency and nixl_ep"};
    case Reason::batch_invariance:
      return {"its results depend on the batch", "VLLM_BATCH_INVARIANT is on",
              "unset VLLM_BATCH_INVARIANT, or take a kernel that is invariant"};
    default:
      return {"has no LoRA path", "the deployment has LoRA on",
              "merge the adapter, or take a kernel with LoRA"};
  }
}

Asked asked(const Request& request, const Verdict& verdict) {
  return {request, *verdict.backend, *verdict.experts, verdict.backend->format, verdict.activation};
}

std::string reference_parallel(const Policy& policy, const Request& request) {
  return "parallel config " + printed(request.layer.parallel, policy.policy_date);
}

// The words after "kernel does not support ". January's reasons name no values.
std::string object(const Policy& policy, const Request& request, const Verdict& verdict,
                   const Refusal& refusal) {
  const bool terse = policy.wording.terse_reasons;
  const Layer& layer = request.layer;
  switch (refusal.check) {
    case Check::device:
      return terse ? "current device"
                   : fmt::format("current device {}", platform::name(request.device.kind));
    case Check::not_gated:
      return "no act_and_mul MLP layer";
    case Check::activation:
      return terse ? fmt::format("{} activation", name(layer.activation))
                   : fmt::format(
                         "MoEActivation.{} activation",
                         kActivationWords[static_cast<std::size_t>(layer.activation)].printed);
    case Check::scheme:
      return terse ? "quantization scheme"
                   : fmt::format("quantization scheme {}x{}",
                                 printed(policy.format, request.device.gfx),
                                 printed(verdict.activation, request.device.gfx));
    case Check::parallel:
      return terse ? "parallel config" : reference_parallel(policy, request);
    case Check::routing: {
      if (terse) return "routing method";
      const RoutingWord& word = kRoutingWords[static_cast<std::size_t>(layer.routing)];
      return fmt::format("routing method {}", kSinceAugust2026.contains(policy.policy_date)
                                                  ? word.august_number
                                                  : word.number);
    }
    case Check::hash_routing:
      return "hash routing";
    case Check::adjusted_routes:
      return "routes adjusted after routing";
    case Check::logits:
      return fmt::format("router logits dtype torch.{}", name(layer.router_logits_dtype));
    case Check::format:
      if (verdict.experts->name.empty()) return "activation format";
      return fmt::format("{} activation format",
                         kTokenFormatWords[static_cast<std::size_t>(verdict.format)].printed);
    case Check::batch_invariance:
      return "batch invariance";
    default:
      return "LoRA";
  }
}

}  // namespace

Cause cause(Reason reason) {
  switch (reason) {
    case Reason::platform:
    case Reason::capability:
    case Reason::architecture:
    case Reason::cpu_feature:
      return Cause::hardware;
    case Reason::all2all:
    case Reason::eplb:
    case Reason::data_parallel:
    case Reason::exchange:
    case Reason::sequence_parallel:
    case Reason::expert_parallel:
    case Reason::token_format:
    case Reason::batch_invariance:
    case Reason::lora:
      return Cause::deployment;
    case Reason::library:
    case Reason::environment:
    case Reason::kernel_variant:
      return Cause::software;
    default:
      return Cause::layer;
  }
}

Cause cause(const Verdict& verdict, const Refusal& refusal) {
  if (refusal.reason == Reason::scheme && has_pair(verdict)) return Cause::hardware;
  return cause(refusal.reason);
}

std::vector<Refusal> by_cause(const Verdict& verdict) {
  std::vector<Refusal> ordered(verdict.refusals.begin(), verdict.refusals.end());
  std::ranges::stable_sort(ordered, {},
                           [&](const Refusal& refusal) { return cause(verdict, refusal); });
  return ordered;
}

std::string reference_reason(const Policy& policy, const Request& request, const Verdict& verdict) {
  if (verdict.accepted()) return {};
  const Refusal& first = verdict.refusals.front();
  constexpr std::string_view kPrefix = "kernel does not support ";
  const bool is_rule = first.check == Check::rule_before || first.check == Check::rule_after;
  std::string reason;
  if (is_rule && verdict.experts->one_sentence) {
    std::vector<std::string> parts;
    for (const Refusal& refusal : verdict.refusals)
      parts.push_back(verdict.experts->rules[refusal.detail].reference(asked(request, verdict)));
    reason = std::string(kPrefix) + join(parts, ", ");
  } else if (is_rule) {
    reason = verdict.experts->rules[first.detail].reference(asked(request, verdict));
  } else {
    reason = std::string(kPrefix) + object(policy, request, verdict, first);
  }
  bool off = false;
  for (const Refusal& refusal : verdict.refusals) off = off || refusal.check == Check::device;
  if (off) reason += verdict.experts->refusal_note;
  return reason;
}

Sentence sentence(const Request& request, const Verdict& verdict, const Refusal& refusal) {
  switch (refusal.check) {
    case Check::rule_before:
    case Check::rule_after: {
      const Rule& rule = verdict.experts->rules[refusal.detail];
      const Asked what = asked(request, verdict);
      return {rule.requirement(what), rule.fact(what), {}};
    }
    case Check::device:
      return about_device(request, verdict, refusal);
    case Check::parallel:
      return about_parallel(request, refusal);
    default:
      return about_column(request, verdict, refusal);
  }
}

}  // namespace fp4moe::oracle
