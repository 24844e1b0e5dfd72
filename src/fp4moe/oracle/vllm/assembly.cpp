#include "fp4moe/oracle/vllm/assembly.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/oracle/select.hpp"
#include "fp4moe/oracle/sizes.hpp"
#include "fp4moe/oracle/vllm/quant_config.hpp"

namespace fp4moe::oracle {
namespace {

constexpr EnumSet<PolicyDate> kUntilApril{PolicyDate::january_seed, PolicyDate::january_27,
                                          PolicyDate::march_20, PolicyDate::march_27,
                                          PolicyDate::april_24};

// Who of the reference's errors raises what.
struct Raised {
  std::string_view id, exception;
};
constexpr Raised kRaised[] = {
    {"assembly.exchange", "AssertionError"},
    {"assembly.mori", "AssertionError"},
    {"assembly.not_gated", "NotImplementedError"},
    {"assembly.eplb", "NotImplementedError"},
    {"assembly.no_class", "AssertionError"},
    {"assembly.not_valid", "ValueError"},
    {"assembly.unpacked", "ValueError"},
    {"assembly.token_format", "ValueError"},
    {"assembly.kinds", "ValueError"},
    {"assembly.inplace", "AssertionError"},
    {"sizes.exchange", "ValueError"},
};

// Shared experts are handed to the kernel ...
enum class SharedRule : std::uint8_t {
  when_batched,
  with_deepep_ll,
  with_all2all,
  when_async,  // offered always, kept only beside an exchange that overlaps
};
struct SharedRow {
  WeightFormat format;
  EnumSet<PolicyDate> policy_dates;
  SharedRule rule;
  bool needs_async;  // the modular kernel drops them otherwise
};
constexpr SharedRow kShared[] = {
    {WeightFormat::mxfp4, kMarch2026, SharedRule::with_deepep_ll, false},
    {WeightFormat::mxfp4, {PolicyDate::april_24}, SharedRule::when_batched, true},
    {WeightFormat::nvfp4, kJanuary2026, SharedRule::with_all2all, false},
    {WeightFormat::nvfp4, {PolicyDate::april_24}, SharedRule::when_async, true},
};

bool holds_shared(WeightFormat format, PolicyDate policy_date, const Parallel& parallel,
                  bool is_async) {
  const auto* row = std::ranges::find_if(kShared, [&](const SharedRow& candidate) {
    return candidate.format == format && candidate.policy_dates.contains(policy_date);
  });
  if (row == std::end(kShared) || (row->needs_async && !is_async)) return false;
  const Exchange used = exchange(parallel, policy_date);
  switch (row->rule) {
    case SharedRule::when_batched:
      return is_batched(used, policy_date);
    case SharedRule::with_deepep_ll:
      return used == Exchange::deepep_ll;
    case SharedRule::with_all2all:
      return used != Exchange::none;
    case SharedRule::when_async:
      return true;
  }
  return false;
}

bool has_aiter(const Request& request, PolicyDate policy_date) {
  const auto on = [&](Variable variable) {
    const Result<bool> flag = request.environment.flag(variable);
    return flag && *flag;
  };
  const platform::Device& device = request.device;
  const auto is = [&](std::string_view gfx) { return device.gfx.find(gfx) != std::string::npos; };
  return device.kind == PlatformKind::rocm && device.libraries.contains(Library::aiter) &&
         (is("gfx942") || is("gfx950") ||
          (kSinceAugust2026.contains(policy_date) && is("gfx1250"))) &&
         on(Variable::rocm_use_aiter) && on(Variable::rocm_use_aiter_moe);
}

// The class that would have to move experts between ranks; empty when it can.
std::string_view without_eplb(WeightFormat format, PolicyDate policy_date, Activation activation) {
  if (format != WeightFormat::mxfp4 || policy_date == PolicyDate::native) return {};
  if (kMarch2026.contains(policy_date)) return "Mxfp4MoEMethod";
  // Since summer only gpt-oss has a class of its own that cannot.
  if (kSinceAugust2026.contains(policy_date) && activation != Activation::swigluoai) return {};
  return "GptOssMxfp4MoEMethod";
}

Error refuse(std::string_view id, const std::string& message) {
  return error(ErrorCode::no_backend, id, message);
}

// The reference's checks of a layer outside its selection.
Result<Done> check_layer(const Policy& policy, const Request& request) {
  const Layer& layer = request.layer;
  if (policy.policy_date == PolicyDate::native) return Done{};
  if (exchange(layer.parallel, policy.policy_date) == Exchange::mori &&
      !has_aiter(request, policy.policy_date))
    return refuse("assembly.mori", "Mori needs to be used with aiter fused_moe for now.")
        .try_this("Set VLLM_ROCM_USE_AITER=1 on a device with AITER, or use another exchange");
  const PlatformKind kind = request.device.kind;
  const bool gpu = kind == PlatformKind::cuda || kind == PlatformKind::rocm;
  if (!layer.gated && !gpu && kUntilApril.contains(policy.policy_date))
    return refuse("assembly.not_gated",
                  "is_act_and_mul=False is supported only for CUDA and ROCm for now");
  if (!is_gated(layer.activation) && kind == PlatformKind::cpu &&
      kSinceAugust2026.contains(policy.policy_date))
    return refuse("assembly.not_gated",
                  "is_act_and_mul=False is supported only for CUDA, XPU and ROCm for now");
  const std::string_view method = without_eplb(policy.format, policy.policy_date, layer.activation);
  if (layer.parallel.enable_eplb && !method.empty())
    return refuse("assembly.eplb", fmt::format("EPLB is not supported {}.", method))
        .try_this("Switch expert load balancing off");
  return Done{};
}

Result<Done> check_pair(const PrepareFinalize& prepare, const ExpertsClass& experts) {
  if (prepare.format != experts.format)
    return refuse("assembly.token_format",
                  fmt::format("max_num_tokens and num_dispatchers {} be set for BatchedExperts "
                              "activation format.",
                              prepare.format == TokenFormat::batched ? "should only" : "must"))
        .expects(fmt::format("a kernel for {} tokens", name(prepare.format)),
                 fmt::format("{} takes {} tokens", experts.name, name(experts.format)));
  if (prepare.monolithic != (experts.kind == Kind::monolithic))
    return refuse("assembly.kinds",
                  fmt::format("prepare_finalize and fused_experts must both be either monolithic "
                              "or non-monolithic but got {} and {}",
                              prepare.name, experts.name));
  return Done{};
}

// MXFP4 until April: unless forbidden, and never with TRT-LLM's kernels.
bool wants_inplace(const Policy& policy, const Layer& layer, const Backend& backend) {
  return policy.format == WeightFormat::mxfp4 && kBeforeAugust2026.contains(policy.policy_date) &&
         !layer.disable_inplace && backend.family != "flashinfer_trtllm";
}

Sizes rounded(const Policy& policy, const Request& request, const Backend& backend) {
  const Layer& layer = request.layer;
  const Sizes before{layer.hidden, layer.intermediate};
  const auto sizes = layer_sizes(backend, request.device, rounding_activation(policy, layer),
                                 layer.parallel, policy.policy_date, layer.in_dtype, before);
  return sizes ? *sizes : before;
}

// The kernel against the layer with its sizes as they are now.
Result<Done> check_again(const Policy& policy, Mode mode, const Request& request, Sizes sizes,
                         const Backend& backend, const ExpertsClass& experts) {
  if (!policy.validates) return Done{};
  Request now = request;
  now.layer.hidden = sizes.hidden;
  now.layer.intermediate = sizes.intermediate;
  const std::string refusal = validate(policy, mode, now, backend, experts);
  if (refusal.empty()) return Done{};
  return refuse("assembly.not_valid", refusal).try_this("Name another backend");
}

}  // namespace

Result<KernelPlan> assemble(const Policy& policy, Mode mode, const Request& request,
                            const Backend* backend, const ExpertsClass* experts) {
  const Layer& layer = request.layer;
  if (const auto fine = check_layer(policy, request); !fine) return fine.why();
  KernelPlan plan;
  if (backend == nullptr || backend->family == "none") {
    plan.note = "no kernel: the weights stay as loaded and nothing can run them";
    plan.warnings.emplace_back(
        "the policy has no kernel for this device; the policy native computes on any CPU");
    return plan;
  }
  const QuantScheme scheme = scheme_of(*backend, mode, layer);
  if (scheme == QuantScheme::none) {
    plan.monolithic = !layer.parallel.enable_eplb;
    plan.note = plan.monolithic ? "a function is called directly, with the router's logits"
                                : "a function is called directly, with the chosen experts";
    return plan;
  }
  if (experts == nullptr || experts->name.empty())
    return refuse("assembly.no_class", "there are scales for a kernel, but no class to run them")
        .expects("an experts class", "none");

  const Sizes sizes = rounded(policy, request, *backend);
  if (const auto fine = check_again(policy, mode, request, sizes, *backend, *experts); !fine)
    return fine.why();
  plan.has_kernel = true;
  plan.monolithic = experts->kind == Kind::monolithic;
  const FromLayer form = form_from_layer(policy, request);
  const ActivationKey quantized = activations_of(scheme, form.activations);
  auto prepare = prepare_finalize({.parallel = layer.parallel,
                                   .policy_date = policy.policy_date,
                                   .monolithic = plan.monolithic,
                                   .activations = quantized,
                                   .max_num_tokens = layer.max_num_tokens,
                                   .hidden = sizes.hidden,
                                   .tokens = layer.in_dtype});
  if (!prepare) return prepare.why();
  if (const auto fine = check_pair(*prepare, *experts); !fine) return fine.why();
  plan.prepare = *std::move(prepare);
  plan.log = plan.prepare.log;
  if (policy.validates) plan.log.push_back(fmt::format("Using {}", experts->name));
  if (scheme == QuantScheme::from_layer && !form.log.empty()) plan.log.push_back(form.log);

  plan.inplace = wants_inplace(policy, layer, *backend);
  if (plan.inplace && plan.monolithic) {
    if (mode == Mode::compat)
      return refuse("assembly.inplace", "a kernel that routes by itself cannot work in place")
          .expects("disable_inplace", "in place");
    plan.inplace = false;
    plan.warnings.emplace_back(
        "not in place: a kernel that routes by itself cannot be (the reference stops here)");
  }
  const bool mori = exchange(layer.parallel, policy.policy_date) == Exchange::mori;
  plan.quantizes_input = quantized != ActivationKey::none &&
                         quantized != ActivationKey::nvfp4_token &&
                         (!experts->takes_unquantized || (mori && backend->family == "aiter"));
  plan.holds_shared_experts =
      layer.shared_experts && !plan.monolithic &&
      holds_shared(policy.format, policy.policy_date, layer.parallel, plan.prepare.is_async);
  plan.passes_expert_map = layer.parallel.use_ep && experts->expert_map;
  plan.routing_tables =
      needs_routing_tables(exchange(layer.parallel, policy.policy_date), policy.policy_date);
  return plan;
}

std::string_view reference_error(const Error& why) {
  if (why.id == "assembly.one_sided")
    return why.message.starts_with("The '") ? "ValueError" : "NotImplementedError";
  const auto* row = std::ranges::find(kRaised, why.id, &Raised::id);
  return row == std::end(kRaised) ? std::string_view{} : row->exception;
}

}  // namespace fp4moe::oracle
