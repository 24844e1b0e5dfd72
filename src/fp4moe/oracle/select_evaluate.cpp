// One kernel against one request: reads the columns of Experts in the reference's order of checks.
// All refusals are kept; one that only repeats an earlier one stays silent.
#include <algorithm>
#include <optional>

#include "fp4moe/oracle/select.hpp"

namespace fp4moe::oracle {
namespace {

struct LimitRow {
  ParallelLimit limit;
  Reason reason;
  bool (*broken)(const Parallel&, Exchange, PolicyDate);
};

constexpr LimitRow kLimits[] = {
    {ParallelLimit::no_expert_parallel, Reason::expert_parallel,
     [](const Parallel& p, Exchange, PolicyDate) { return p.use_ep; }},
    {ParallelLimit::one_expert_rank, Reason::expert_parallel,
     [](const Parallel& p, Exchange, PolicyDate) { return p.ep_size != 1; }},
    {ParallelLimit::no_all2all, Reason::all2all,
     [](const Parallel& p, Exchange, PolicyDate policy_date) {
       return uses_all2all(p, policy_date);
     }},
    {ParallelLimit::no_eplb, Reason::eplb,
     [](const Parallel& p, Exchange, PolicyDate) { return p.enable_eplb; }},
    {ParallelLimit::no_data_parallel, Reason::data_parallel,
     [](const Parallel& p, Exchange, PolicyDate) { return p.dp_size > 1; }},
    {ParallelLimit::no_flashinfer_two_sided, Reason::exchange,
     [](const Parallel&, Exchange e, PolicyDate) { return e == Exchange::flashinfer_two_sided; }},
    {ParallelLimit::no_flashinfer_one_sided, Reason::exchange,
     [](const Parallel&, Exchange e, PolicyDate) { return e == Exchange::flashinfer_one_sided; }},
    {ParallelLimit::no_deepep_high_throughput, Reason::exchange,
     [](const Parallel&, Exchange e, PolicyDate) { return e == Exchange::deepep_ht; }},
    {ParallelLimit::only_expert_parallel, Reason::expert_parallel,
     [](const Parallel& p, Exchange, PolicyDate) { return !p.use_ep; }},
    {ParallelLimit::no_batched_tokens, Reason::exchange,
     [](const Parallel&, Exchange e, PolicyDate policy_date) {
       return is_batched(e, policy_date);
     }},
    {ParallelLimit::no_sequence_parallel, Reason::sequence_parallel,
     [](const Parallel& p, Exchange, PolicyDate) { return p.is_sequence_parallel(); }},
};

bool contains_one(std::string_view gfx, std::span<const std::string_view> names) {
  return std::ranges::any_of(names,
                             [&](std::string_view name) { return gfx.find(name) != gfx.npos; });
}

bool is_in(const std::optional<Capability>& capability, std::span<const CapabilityRange> ranges) {
  return capability && std::ranges::any_of(ranges, [&](CapabilityRange range) {
           return range.contains(*capability);
         });
}

// How many of the refusals only another device helps against.
std::ptrdiff_t hardware_in(const Refusals& refusals) {
  return std::ranges::count_if(
      refusals, [](const Refusal& refusal) { return cause(refusal.reason) == Cause::hardware; });
}

bool fits_device(const Scheme& scheme, const platform::Device& device) {
  const bool any_capability = scheme.capability.from == Capability{};
  return (any_capability ||
          (device.capability && scheme.capability.contains(*device.capability))) &&
         (scheme.gfx.empty() || device.gfx.find(scheme.gfx) != device.gfx.npos);
}

class Evaluation {
 public:
  Evaluation(const Policy& policy, const Request& request, Verdict& verdict)
      : policy_(policy), request_(request), verdict_(verdict), experts_(*verdict.experts) {}

  void run() {
    rules(Check::rule_before);
    device();
    columns();
    parallel();
    routes();
    routing();
    if (verdict_.format != experts_.format) refuse(Reason::token_format, Check::format);
    if (policy_.checks_invariance && !experts_.batch_invariant &&
        request_.environment.is_true(Variable::batch_invariant))
      refuse(Reason::batch_invariance, Check::batch_invariance);
    if (policy_.checks_lora && request_.layer.lora && !experts_.lora)
      refuse(Reason::lora, Check::lora);
    rules(Check::rule_after);
  }

 private:
  void refuse(Reason reason, Check check, std::size_t detail = 0, std::size_t need = 0) {
    verdict_.refusals.add(
        {reason, check, static_cast<std::uint8_t>(detail), static_cast<std::uint8_t>(need)});
  }

  void rules(Check check) {
    const Asked asked{request_, *verdict_.backend, experts_, policy_.format, verdict_.activation};
    for (std::size_t i = 0; i < experts_.rules.size(); ++i) {
      const Rule& rule = experts_.rules[i];
      if (rule.after == (check == Check::rule_after) && !rule.holds(asked))
        refuse(rule.reason, check, i);
    }
  }

  // Any need will do. When none is met, the one that asks least for other hardware says what is
  // missing; of equals the first.
  void device() {
    std::optional<Refusals> nearest;
    for (std::size_t i = 0; i < verdict_.needs.size(); ++i) {
      const DeviceNeed& need = verdict_.needs[i];
      if (!need.kinds.empty() && !need.kinds.contains(request_.device.kind)) continue;
      const Refusals found = missing(need, i);
      if (found.empty()) return;
      if (!nearest || hardware_in(found) < hardware_in(*nearest)) nearest = found;
    }
    if (!nearest) return refuse(Reason::platform, Check::device);
    for (const Refusal& refusal : *nearest) verdict_.refusals.add(refusal);
  }

  Refusals missing(const DeviceNeed& need, std::size_t which) const {
    const platform::Device& device = request_.device;
    Refusals found;
    const auto add = [&](Reason reason, std::size_t detail = 0) {
      found.add({reason, Check::device, static_cast<std::uint8_t>(detail),
                 static_cast<std::uint8_t>(which)});
    };
    if (!need.capabilities.empty() && !is_in(device.capability, need.capabilities))
      add(Reason::capability);
    if ((!need.gfx.empty() && !contains_one(device.gfx, need.gfx)) ||
        contains_one(device.gfx, need.not_gfx))
      add(Reason::architecture);
    for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i) {
      const auto library = static_cast<Library>(i);
      if (need.libraries.contains(library) && !device.libraries.contains(library))
        add(Reason::library, i);
    }
    for (std::size_t i = 0; i < platform::kVariables && !need.switches.empty(); ++i) {
      const auto variable = static_cast<Variable>(i);
      if (!need.switches.contains(variable)) continue;
      const Result<bool> on = request_.environment.flag(variable);
      if (!on || !*on) add(Reason::environment, i);
    }
    const bool other_processor =
        need.architecture != CpuArchitecture::unknown && need.architecture != device.architecture;
    if (other_processor || !device.cpu.contains_all(need.cpu)) add(Reason::cpu_feature);
    return found;
  }

  void columns() {
    const Layer& layer = request_.layer;
    const bool gated = policy_.gate_from_activation ? is_gated(layer.activation) : layer.gated;
    if (!gated && !experts_.not_gated) refuse(Reason::not_gated, Check::not_gated);
    if (!experts_.activations.contains(layer.activation))
      refuse(Reason::activation, Check::activation);
    if (!has_scheme()) refuse(Reason::scheme, Check::scheme);
  }

  // If the device's hardware is refused anyway, only the pair of formats counts.
  bool has_scheme() const {
    const bool device_refused = hardware_in(verdict_.refusals) > 0;
    return std::ranges::any_of(experts_.schemes, [&](const Scheme& scheme) {
      return scheme.weights == policy_.format && scheme.activations.contains(verdict_.activation) &&
             (device_refused || fits_device(scheme, request_.device));
    });
  }

  void parallel() {
    if (experts_.limits.empty()) return;
    const Parallel& layout = request_.layer.parallel;
    const Exchange by = exchange(layout, policy_.policy_date);
    for (const LimitRow& row : kLimits) {
      if (!experts_.limits.contains(row.limit) || !row.broken(layout, by, policy_.policy_date))
        continue;
      const auto said = [&](const Refusal& refusal) { return refusal.reason == row.reason; };
      if (std::ranges::any_of(verdict_.refusals, said)) continue;
      refuse(row.reason, Check::parallel, static_cast<std::size_t>(row.limit));
    }
  }

  // Kernels that route by themselves see neither a table of tokens nor what happens to routes later.
  void routes() {
    if (!policy_.checks_routes || experts_.kind != Kind::monolithic) return;
    const Layer& layer = request_.layer;
    if (layer.hash_routing && !experts_.hash_routing)
      refuse(Reason::hash_routing, Check::hash_routing);
    if (layer.decomposed) refuse(Reason::adjusted_routes, Check::adjusted_routes);
  }

  void routing() {
    const Layer& layer = request_.layer;
    if (!experts_.routings.empty() && !experts_.routings.contains(layer.routing))
      refuse(Reason::routing, Check::routing);
    const ScalarType logits = layer.router_logits_dtype;
    const bool fits =
        experts_.logits == LogitsRule::any ||
        (experts_.logits == LogitsRule::bfloat16_or_float32 && logits != ScalarType::float16) ||
        (experts_.logits == LogitsRule::float32_for_some_routings &&
         (logits != ScalarType::float32 || layer.routing == Routing::deepseek_v3 ||
          layer.routing == Routing::simulated));
    if (!fits) refuse(Reason::logits_dtype, Check::logits);
  }

  const Policy& policy_;
  const Request& request_;
  Verdict& verdict_;
  const ExpertsClass& experts_;
};

}  // namespace

bool takes(const ExpertsClass& experts, WeightFormat weights, ActivationKey activation,
           const platform::Device& device) {
  return std::ranges::any_of(experts.schemes, [&](const Scheme& scheme) {
    return scheme.weights == weights && scheme.activations.contains(activation) &&
           fits_device(scheme, device);
  });
}

Verdict evaluate(const Policy& policy, Mode mode, const Request& request, const Backend& backend,
                 const ExpertsClass& experts, ActivationKey activation) {
  const Exchange by = exchange(request.layer.parallel, policy.policy_date);
  const bool repaired = mode == Mode::strict && !experts.strict_devices.empty();
  Verdict verdict{
      .backend = &backend,
      .experts = &experts,
      .needs = repaired ? experts.strict_devices : experts.devices,
      .activation = activation,
      .format = is_batched(by, policy.policy_date) ? TokenFormat::batched : TokenFormat::standard};
  Evaluation(policy, request, verdict).run();
  return verdict;
}

}  // namespace fp4moe::oracle
