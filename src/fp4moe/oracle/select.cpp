// The walk over a policy: LoRA, the explicit name, the variables, the automatic list, the last
// tries, the ending. Each step either ends the walk or lets the next one speak.
#include "fp4moe/oracle/select.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace fp4moe::oracle {
namespace {

// The reference asks for this range wherever it means Triton's kernels.
constexpr CapabilityRange kTritonRange{{9, 0}, {11, 0}};

// ['a', 'b']
template <class Items, class Name>
std::string python_list(const Items& items, Name name) {
  std::string result = "[";
  for (const auto& item : items) {
    if (result.size() > 1) result += ", ";
    result += fmt::format("'{}'", name(item));
  }
  return result + "]";
}

// 7 -> "7.0"
std::string python_float(double value) {
  std::string result = fmt::format("{}", value);
  if (result.find_first_not_of("-0123456789") == result.npos) result += ".0";
  return result;
}

template <class... Args>
std::string filled_in(std::string_view form, const Args&... args) {
  return fmt::format(fmt::runtime(form), args...);
}

std::string_view value_of(const Backend* backend) { return backend->name; }

class Walk {
 public:
  Walk(const Policy& policy, Mode mode, const Request& request)
      : policy_(policy), request_(request), layer_(request.layer) {
    result_.policy = &policy;
    result_.mode = mode;
    const Exchange by = exchange(layer_.parallel, policy.policy_date);
    result_.format =
        is_batched(by, policy.policy_date) ? TokenFormat::batched : TokenFormat::standard;
  }

  Selection run() {
    const bool over = has_malformed_variable() || dies_on_absent_capability() || lora() ||
                      resolve_request() || list_candidates() || explicit_name() ||
                      only_flashinfer() || forced_by_variable() || automatic() || last_try();
    if (!over) end();
    return std::move(result_);
  }

 private:
  bool strict() const { return result_.mode == Mode::strict; }
  bool is_batched_format() const { return result_.format == TokenFormat::batched; }

  bool fail(ErrorKind kind, std::string message) {
    result_.outcome = Outcome::error;
    result_.error = kind;
    result_.message = std::move(message);
    return true;
  }

  // The reference logs a line of this kind once.
  void log_once(std::string line) {
    if (std::ranges::find(result_.log, line) == result_.log.end())
      result_.log.push_back(std::move(line));
  }

  void log_choice(const Backend& backend) {
    const std::string_view form = policy_.wording.using_backend;
    const bool lists = form.find("{1}") != form.npos;
    result_.log.push_back(
        filled_in(form, backend.name, lists ? python_list(available_, value_of) : std::string()));
  }

  bool choose(const Backend& backend, const ExpertsClass* experts, ActivationKey activation) {
    result_.outcome = Outcome::selected;
    result_.backend = &backend;
    result_.experts = experts;
    result_.activation = activation;
    result_.message.clear();
    warn_of_fallback(backend);
    return true;
  }

  // A form of activations was asked for and 16 bits are what there is.
  void warn_of_fallback(const Backend& backend) {
    const bool has_its_own = backend.activation != ActivationKey::none || backend.any_activation ||
                             (backend.takes_override && layer_.activation_override);
    if (!policy_.request_falls_back || asked_ == ActivationKey::none || has_its_own) return;
    result_.warned.push_back(
        filled_in(policy_.wording.falls_back, printed(asked_, request_.device.gfx), backend.name));
  }

  // Null when the reference stops here because a variable it reads has no meaning.
  const Verdict* judge(const Backend& backend, const ExpertsClass& experts,
                       ActivationKey activation) {
    if (!strict() && stops_at_switch(experts)) return nullptr;
    const Verdict verdict = evaluate(policy_, result_.mode, request_, backend, experts, activation);
    const auto came_to = [&](Check check) {
      return verdict.accepted() || verdict.refusals.front().check >= check;
    };
    if (!strict() && policy_.checks_invariance && came_to(Check::batch_invariance) &&
        is_malformed(Variable::batch_invariant))
      return nullptr;
    if (!strict() && experts.announces != nullptr && came_to(Check::rule_after))
      log_once(experts.announces({request_, backend, experts, policy_.format, activation}));
    return &result_.evaluated.emplace_back(verdict);
  }

  bool stops_at_switch(const ExpertsClass& experts) {
    for (const DeviceNeed& need : experts.devices)
      for (const platform::VariableRow& row : platform::variables())
        if (need.switches.contains(row.variable) && is_malformed(row.variable)) return true;
    return false;
  }

  std::string unsupported(const Backend& backend, const Verdict* last) const {
    if (last == nullptr) return filled_in(policy_.wording.unsupported, backend.name);
    return filled_in(policy_.wording.since, backend.name,
                     reference_reason(policy_, request_, *last));
  }

  // The first kernel that passes; else the error of the last one tried. Always ends the walk.
  bool try_backend(const Backend& backend, ActivationKey activation) {
    return try_kernels(backend, backend.experts, activation);
  }

  bool try_kernels(const Backend& backend, std::span<const ExpertsClass* const> kernels,
                   ActivationKey activation) {
    const Verdict* last = nullptr;
    for (const ExpertsClass* experts : kernels) {
      last = judge(backend, *experts, activation);
      if (last == nullptr) return true;
      if (!last->accepted()) continue;
      log_choice(backend);
      return choose(backend, experts, activation);
    }
    return fail(ErrorKind::value, unsupported(backend, last));
  }

  // By name a backend may have other kernels for LoRA, or none.
  bool try_named(const Backend& backend, ActivationKey activation) {
    if (!layer_.lora) return try_backend(backend, activation);
    if (!backend.lora_refusal.empty())
      return fail(ErrorKind::value,
                  filled_in(policy_.wording.since, backend.name, backend.lora_refusal));
    return try_kernels(
        backend, backend.lora_experts.empty() ? backend.experts : backend.lora_experts, activation);
  }

  const Backend& batched_variant(const Backend& backend) const {
    if (!is_batched_format() || backend.batched.empty()) return backend;
    const Backend* variant = find_backend(policy_, backend.batched);
    return variant == nullptr ? backend : *variant;
  }

  ActivationKey key_for(const Backend& backend) const {
    return policy_.asks_checkpoint ? asked_ : backend.activation;
  }

  // The reference stops only when it comes to read the variable; strict mode says so at once.
  bool has_malformed_variable() {
    if (!strict()) return false;
    for (const platform::VariableRow& row : platform::variables()) {
      if (!request_.environment.is_set(row.variable)) continue;
      const Result<bool> value = request_.environment.flag(row.variable);
      if (value || !variables_read(policy_).contains(row.variable)) continue;
      return fail(ErrorKind::value, fmt::format("{}: expected {}, found {}", row.name,
                                                value.why().expected, value.why().found));
    }
    return false;
  }

  bool dies_on_absent_capability() {
    const platform::Device& device = request_.device;
    if (strict() || !policy_.compares_absent_capability || device.capability ||
        !device.libraries.contains(Library::triton_kernels))
      return false;
    return fail(ErrorKind::type, "'<=' not supported between instances of 'tuple' and 'NoneType'");
  }

  bool lora() {
    if (!policy_.lora || !layer_.lora) return false;
    const platform::Device& device = request_.device;
    if (device.kind != PlatformKind::cuda)
      return fail(ErrorKind::not_implemented, std::string(policy_.lora->only_cuda));
    const bool has_triton = device.libraries.contains(Library::triton_kernels) &&
                            device.capability && kTritonRange.contains(*device.capability);
    if (is_malformed(Variable::mxfp4_use_marlin)) return true;
    const bool triton = has_triton && request_.environment.is_false(Variable::mxfp4_use_marlin);
    const Backend& backend = triton ? *policy_.lora->triton : *policy_.lora->marlin;
    const ExpertsClass& experts = *backend.experts.front();
    if (strict()) {
      const Verdict* verdict = judge(backend, experts, backend.activation);
      if (!verdict->accepted()) return fail(ErrorKind::value, unsupported(backend, verdict));
    }
    result_.log.push_back(
        fmt::format("Using {} backend for mxfp4 lora", triton ? "Triton" : "Marlin"));
    return choose(backend, &experts, backend.activation);
  }

  bool resolve_request() {
    if (policy_.ignores_request) return false;
    asked_ = layer_.activation_key;
    if (!layer_.activation_override) return false;
    const ActivationKey wanted = *layer_.activation_override;
    if (asked_ != ActivationKey::none && asked_ != wanted)
      return fail(
          ErrorKind::value,
          fmt::format("checkpoint declares MoE activation={} but "
                      "quantization_config.moe.activation={}; remove the override or align "
                      "it with the checkpoint.",
                      printed(asked_, request_.device.gfx), printed(wanted, request_.device.gfx)));
    asked_ = wanted;
    return false;
  }

  // Candidates whose form of activations is the requested one, and where 16 bits may stand in for
  // it, those behind them; without a request those with 16-bit activations, if there are any.
  void filter_by_request(std::vector<const Backend*>& candidates) const {
    const auto quantizes = [](const Backend* b) { return b->activation != ActivationKey::none; };
    if (asked_ == ActivationKey::none) {
      if (!std::ranges::all_of(candidates, quantizes)) std::erase_if(candidates, quantizes);
      return;
    }
    const auto is_asked_for = [&](const Backend* backend) {
      return backend->activation == asked_ || backend->any_activation;
    };
    // clang 14 has no std::ranges::stable_partition with libstdc++ 12.
    const auto others = std::stable_partition(candidates.begin(), candidates.end(), is_asked_for);
    candidates.erase(
        policy_.request_falls_back ? std::remove_if(others, candidates.end(), quantizes) : others,
        candidates.end());
  }

  bool list_candidates() {
    if (const AutomaticList* list = find_list(policy_, request_)) available_ = list->backends;
    if (policy_.request_filters && !policy_.ignores_request) filter_by_request(available_);
    if (layer_.swiglu_limit && !policy_.wording.no_clamp.empty())
      std::erase_if(available_, [](const Backend* backend) { return !backend->applies_clamp; });
    return false;
  }

  bool explicit_name() {
    if (layer_.backend == "auto" || policy_.names.empty()) return false;
    const auto named = std::ranges::find(policy_.names, layer_.backend, &NamedChoice::name);
    if (named == policy_.names.end())
      return fail(
          ErrorKind::value,
          filled_in(policy_.wording.unknown_name, layer_.backend,
                    python_list(policy_.names, [](const NamedChoice& n) { return n.name; })));
    std::vector<const Backend*> candidates = named->backends;
    if (named->force_16_bit && is_malformed(*named->force_16_bit)) return true;
    const bool in_16_bits =
        named->force_16_bit && request_.environment.is_true(*named->force_16_bit);
    if (in_16_bits && policy_.asks_checkpoint) asked_ = ActivationKey::none;
    if (policy_.request_filters) {
      if (in_16_bits)
        std::erase_if(candidates, [](auto* b) { return b->activation != ActivationKey::none; });
      else if (!named->keep_all || asked_ != ActivationKey::none)
        filter_by_request(candidates);
    }
    if (candidates.empty())
      return fail(ErrorKind::value,
                  fmt::format("moe_backend='{}' does not support activation={}", layer_.backend,
                              printed(asked_, request_.device.gfx)));
    for (const Backend* candidate : candidates) {
      const Backend& backend = batched_variant(*candidate);
      if (layer_.swiglu_limit && !backend.applies_clamp && !policy_.wording.no_clamp.empty())
        return fail(ErrorKind::value,
                    filled_in(policy_.wording.no_clamp, python_float(*layer_.swiglu_limit),
                              layer_.backend));
      const bool emulates = policy_.request_filters && backend.any_activation;
      try_named(backend, emulates ? asked_ : key_for(backend));
      if (result_.outcome == Outcome::selected) break;
    }
    return true;
  }

  // The reference turns text into a number at this moment, and stops when it is none.
  bool is_malformed(Variable variable) {
    if (!request_.environment.is_set(variable) || request_.environment.flag(variable)) return false;
    return fail(ErrorKind::value, fmt::format("invalid literal for int() with base 10: '{}'",
                                              *request_.environment.text(variable)));
  }

  void remove(const std::vector<const Backend*>& gone) {
    std::erase_if(available_, [&](const Backend* backend) {
      return std::ranges::find(gone, backend) != gone.end();
    });
  }

  bool only_flashinfer() {
    if (!policy_.flashinfer_only) return false;
    const platform::Environment& environment = request_.environment;
    if (!environment.is_set(Variable::flashinfer_fp4)) return false;
    if (is_malformed(Variable::flashinfer_fp4)) return true;
    const FlashinferOnly& rule = *policy_.flashinfer_only;
    if (environment.is_false(Variable::flashinfer_fp4)) {
      remove(rule.candidates);
      return false;
    }
    if (environment.is_set(Variable::flashinfer_moe_backend)) return named_flashinfer(rule);
    if (!strict() && rule.taken_unseen != nullptr) {
      const Backend& backend = *rule.taken_unseen;
      const ExpertsClass& experts = *backend.experts.front();
      judge(backend, experts, asked_);
      log_choice(backend);
      return choose(backend, &experts, asked_);
    }
    for (const Backend* backend : rule.candidates) {
      for (const ExpertsClass* experts : backend->experts) {
        const Verdict* verdict = judge(*backend, *experts, asked_);
        if (verdict == nullptr) return true;
        if (!verdict->accepted()) continue;
        log_choice(*backend);
        const bool forgotten = !strict() && rule.loses_the_class;
        return choose(*backend, forgotten ? nullptr : experts, asked_);
      }
    }
    return fail(ErrorKind::not_implemented, std::string(policy_.wording.no_flashinfer));
  }

  bool named_flashinfer(const FlashinferOnly& rule) {
    const std::string& kind = *request_.environment.text(Variable::flashinfer_moe_backend);
    const std::optional<Capability>& capability = request_.device.capability;
    const Backend* backend = kind == "throughput"    ? rule.throughput
                             : kind == "latency"     ? rule.latency
                             : kind == "masked_gemm" ? rule.masked_gemm
                                                     : nullptr;
    if (backend == nullptr)
      return fail(ErrorKind::value,
                  fmt::format("Invalid value '{}' for VLLM_FLASHINFER_MOE_BACKEND. Valid options: "
                              "['throughput', 'latency', 'masked_gemm'].",
                              kind));
    if (backend == rule.latency && !(capability && family(10).contains(*capability))) {
      result_.log.emplace_back(
          "Flashinfer TRTLLM MOE backend is only supported on SM100 and later, using CUTLASS "
          "backend instead");
      backend = rule.throughput;
    }
    return try_backend(*backend, asked_);
  }

  bool forced_by_variable() {
    for (const EnvironmentStep& step : policy_.steps) {
      if (!request_.environment.is_set(step.variable)) continue;
      if (is_malformed(step.variable)) return true;
      if (request_.environment.is_false(step.variable)) {
        remove(step.removed_when_false);
        continue;
      }
      for (const Forced& forced : step.when_true) {
        const std::optional<Capability>& capability = request_.device.capability;
        if (forced.on && !(capability && forced.on->contains(*capability))) continue;
        const Backend& backend =
            strict() && step.like_a_name ? batched_variant(*forced.backend) : *forced.backend;
        return try_backend(backend, key_for(backend));
      }
      if (!step.otherwise.empty()) return fail(ErrorKind::value, std::string(step.otherwise));
    }
    return false;
  }

  bool automatic() {
    for (const Backend* backend : available_) {
      // If 16 bits may stand in, only a backend of any form is asked for the requested one.
      const bool requested = policy_.request_filters && asked_ != ActivationKey::none &&
                             (!policy_.request_falls_back || backend->any_activation);
      const ActivationKey key = requested ? asked_ : key_for(*backend);
      for (const ExpertsClass* experts : backend->experts) {
        const Verdict* verdict = judge(*backend, *experts, key);
        if (verdict == nullptr) return true;
        if (verdict->accepted()) {
          log_choice(*backend);
          return choose(*backend, experts, key);
        }
        if (policy_.wording.refusals_are_info)
          result_.log.push_back(unsupported(*backend, verdict));
      }
    }
    return false;
  }

  bool last_try() {
    for (const Fallback& fallback : policy_.fallbacks) {
      if (fallback.kind != request_.device.kind) continue;
      if (fallback.unchecked) {
        log_choice(*fallback.backend);
        return choose(*fallback.backend, nullptr, ActivationKey::none);
      }
      if (!strict()) log_choice(*fallback.backend);  // before anything is known
      return try_backend(*fallback.backend, ActivationKey::none);
    }
    return false;
  }

  void end() {
    const PlatformKind kind = request_.device.kind;
    const bool on_gpu = kind == PlatformKind::cuda || kind == PlatformKind::rocm;
    if (policy_.ending == Ending::none_off_gpu && !on_gpu) {
      result_.outcome = Outcome::none;
      return;
    }
    const std::string_view form = policy_.wording.nothing_supports;
    if (form.find('{') == form.npos) {
      fail(ErrorKind::not_implemented, std::string(form));
      return;
    }
    std::string entries;
    for (const Verdict& verdict : result_.evaluated) {
      if (!entries.empty()) entries += "; ";
      entries += filled_in(policy_.wording.entry, verdict.backend->name,
                           reference_reason(policy_, request_, verdict));
    }
    fail(ErrorKind::not_implemented,
         filled_in(form, printed(layer_.activation_key, request_.device.gfx),
                   python_list(available_, value_of), entries));
  }

  const Policy& policy_;
  const Request& request_;
  const Layer& layer_;
  Selection result_{};
  ActivationKey asked_{};                    // the form of activations that counts
  std::vector<const Backend*> available_{};  // the automatic list as it stands
};

}  // namespace

Selection select(const Policy& policy, Mode mode, const Request& request) {
  return Walk(policy, mode, request).run();
}

std::vector<Verdict> survey(const Policy& policy, Mode mode, const Request& request) {
  std::vector<const Backend*> order;
  const auto add = [&](const Backend* backend) {
    if (std::ranges::find(order, backend) == order.end()) order.push_back(backend);
  };
  if (const AutomaticList* list = find_list(policy, request))
    for (const Backend* backend : list->backends) add(backend);
  for (const Backend* backend : policy.backends) add(backend);
  std::vector<Verdict> verdicts;
  for (const Backend* backend : order) {
    const ActivationKey asked =
        request.layer.activation_override.value_or(request.layer.activation_key);
    const bool as_asked =
        policy.asks_checkpoint || (policy.request_filters && backend->any_activation);
    const bool for_lora = request.layer.lora && !backend->lora_experts.empty();
    for (const ExpertsClass* experts : for_lora ? backend->lora_experts : backend->experts)
      verdicts.push_back(evaluate(policy, mode, request, *backend, *experts,
                                  as_asked ? asked : backend->activation));
  }
  return verdicts;
}

}  // namespace fp4moe::oracle
