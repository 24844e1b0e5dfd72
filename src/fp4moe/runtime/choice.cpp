#include "fp4moe/runtime/choice.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/backends/names.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/oracle/vllm/quant_config.hpp"
#include "fp4moe/plan/plan.hpp"

namespace fp4moe::runtime {
namespace {

using oracle::Backend;
using oracle::Policy;

Choice choice_of(const Policy& policy, const Backend& backend) {
  Choice result{.policy = &policy, .backend = &backend};
  if (!backend.experts.empty()) result.experts = backend.experts.front();
  return result;
}

// Policies of a format, our own first, then the newest.
std::vector<const Policy*> newest_first(oracle::WeightFormat format) {
  std::vector<const Policy*> result;
  for (const Policy& policy : backends::policies())
    if (policy.format == format) result.push_back(&policy);
  std::ranges::stable_sort(
      result, [](const Policy* a, const Policy* b) { return a->policy_date > b->policy_date; });
  return result;
}

Result<Choice> select_for(const plan::Model& model, const checkpoint::Slice& slice,
                          const BackendRequest& backend_request, const Policy& policy) {
  const std::uint64_t ep = slice.expert_parallel.size;
  plan::PlanRequest request{.model = model,
                            .device = oracle::installed(policy, backend_request.device),
                            .policy = &policy};
  request.environment = backend_request.environment;
  request.mode = backend_request.mode;
  request.ranks = {.tp = ep > 1 ? ep : slice.tensor_parallel.size, .ep = ep};
  const auto result = plan::make_plan(request);
  if (!result) return result.why();
  for (const plan::BackendPlan& row : result->backends)
    if (row.chosen) {
      Choice choice = choice_of(policy, *row.backend);
      choice.why = fmt::format("policy {} selects {} on {}", policy.name, row.backend->name,
                               backend_request.device.name);
      return choice;
    }
  return error(ErrorCode::no_backend, "choice.backend", "the policy selects no backend here")
      .expects("a backend that computes the model on this device",
               result->nearest_miss.empty() ? result->no_choice : result->nearest_miss)
      .try_this("name one: --backend NAME, or a layout: --layout ID");
}

// The generation of our own CPU layouts that this machine's kernels read.
std::string_view tiles_here() {
  using namespace kernels::cpu;  // NOLINT(google-build-using-namespace): the list and its pick
  return pick(gemm_kernels(), machine_features()).tiles->generation;
}

// The layout that the backend's kernels read; where its library lays weights out by itself, they
// stay as loaded.
Result<const layout::Layout*> layout_for(const Choice& choice, std::uint64_t tp_size,
                                         oracle::Activation activation,
                                         const BackendRequest& backend_request) {
  auto found = backends::layout_of({.backend = *choice.backend,
                                    .policy_date = choice.policy->policy_date,
                                    .device = choice.device,
                                    .tp_size = tp_size,
                                    .activation = activation});
  const bool elsewhere =
      !found && (found.why().id == "layout.external" || found.why().id == "layout.unspecified");
  if (elsewhere && backend_request.takes_external)
    found = backends::require_layout(
        fmt::format("as_loaded.{}", formats::name(choice.backend->format)), {});
  if (found && backend_request.generation.empty() && (*found)->id.starts_with("cpu_native."))
    return backends::require_layout((*found)->id, tiles_here());
  if (!found || backend_request.generation.empty()) return found;
  return backends::require_layout((*found)->id, backend_request.generation);
}

// Activations quantized by scales that the checkpoint must hold.
bool needs_input_scales(const Backend& backend) {
  const oracle::ActivationKey key =
      oracle::activations_of(backend.scheme, oracle::ActivationKey::none);
  return key == oracle::ActivationKey::nvfp4 || key == oracle::ActivationKey::fp8_static_tensor;
}

}  // namespace

convert::Recipe Choice::recipe(const checkpoint::Slice& slice,
                               oracle::Activation activation) const {
  convert::Recipe result{.layout = layout, .slice = slice};
  result.sizing.backend = backend;
  result.sizing.device = device;
  if (policy != nullptr && policy->is_generic) result.sizing.activation = activation;
  return result;
}

Result<Choice> find_backend(std::string_view name, std::string_view policy,
                            oracle::WeightFormat format) {
  const auto own = backends::require_policy(policy, format);
  if (!own) return own.why();
  const std::vector<const Policy*> asked =
      policy == backends::kNative ? newest_first(format) : std::vector{*own};
  for (const Policy* each : asked)
    if (const Backend* found = backends::find_by_any_name(*each, name))
      return choice_of(*each, *found);
  return backends::unknown_backend(asked, name);
}

Result<Choice> choose(const plan::Model& model, const checkpoint::Slice& slice,
                      const BackendRequest& backend_request) {
  const auto found =
      backends::choose_policy(backend_request.policy, model.shape.format, plan::entry_of(model));
  if (!found) return found.why();
  const Policy& policy = *found->policy;
  const bool is_named = backend_request.backend != "auto" && !backend_request.backend.empty();
  Result<Choice> choice =
      is_named ? find_backend(backend_request.backend, policy.name, model.shape.format)
               : select_for(model, slice, backend_request, policy);
  if (!choice) return choice.why();
  if (is_named) choice->why = fmt::format("named; policy {}", choice->policy->name);
  choice->mode = backend_request.mode;
  choice->device = oracle::installed(*choice->policy, backend_request.device);
  choice->release = found->release;
  const auto layout =
      layout_for(*choice, slice.tensor_parallel.size, model.layer.activation, backend_request);
  if (!layout) return layout.why();
  choice->layout = *layout;
  return choice;
}

Result<Choice> backend_of_folder(std::string_view backend, const layout::Layout& layout,
                                 std::string_view policy_name, bool has_input_scales) {
  const auto named = backends::require_policy(policy_name, layout.format);
  if (!named) return named.why();
  const auto first = [&](const auto& fits) -> std::optional<Choice> {
    for (const Policy* policy : newest_first(layout.format)) {
      if (policy_name != backends::kNative && policy != *named) continue;
      for (const Backend* row : policy->backends)
        if (fits(*row)) return choice_of(*policy, *row);
    }
    return std::nullopt;
  };
  const auto is_own = [&](const Backend& row) { return backends::layout_id(row) == layout.id; };
  // Libraries that lay weights out by themselves are given them as loaded.
  const auto reads = [&](const Backend& row) {
    return is_own(row) ||
           (layout.id.starts_with("as_loaded.") &&
            layout::find_layout(backends::layouts(), backends::layout_id(row), {}) == nullptr);
  };
  std::optional<Choice> found;
  if (!backend.empty()) {
    found = first([&](const Backend& row) { return row.name == backend && reads(row); });
  } else {
    found = first([&](const Backend& row) { return is_own(row) && !needs_input_scales(row); });
    if (!found && !has_input_scales)
      found = first([&](const Backend& row) { return reads(row) && !needs_input_scales(row); });
    if (!found) found = first(is_own);
  }
  if (!found)
    return invalid("choice.backend", "no backend here reads the folder's layout")
        .expects(fmt::format("a backend with layout {}", layout.id),
                 backend.empty() ? "none" : std::string(backend));
  // The row of the table, which stays; the argument may be a copy.
  const auto kept = backends::require_layout(layout.id, layout.generation);
  if (!kept) return kept.why();
  found->layout = *kept;
  found->why =
      fmt::format("the folder is in layout {}, which {} reads", layout.id, found->backend->name);
  return *std::move(found);
}

}  // namespace fp4moe::runtime
