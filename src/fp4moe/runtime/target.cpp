#include "fp4moe/runtime/target.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/plan/plan.hpp"

namespace fp4moe::runtime {
namespace {

using oracle::Backend;
using oracle::Policy;

// Why no kernel of the backend runs on the device's hardware; empty: one does. Packages and
// variables can still change, and the layer is the same on every device.
std::string misfit(const Policy& policy, const Backend& backend, const Target& target) {
  oracle::Request request{.device = oracle::installed(policy, target.device)};
  request.layer = target.model.layer;
  const oracle::ActivationKey key =
      policy.asks_checkpoint ? request.layer.activation_key : backend.activation;
  std::string why;
  for (const oracle::ExpertsClass* experts : backend.experts) {
    const oracle::Verdict verdict =
        evaluate(policy, oracle::Mode::strict, request, backend, *experts, key);
    if (verdict.accepted()) return {};
    const oracle::Refusal first = by_cause(verdict).front();
    if (cause(verdict, first) != oracle::Cause::hardware) return {};
    if (why.empty()) why = decisive_reason(request, verdict);
  }
  return why;
}

bool depends_on_device(const Policy& policy, const Backend& backend) {
  std::set<std::string_view> generations;
  for (const platform::DescribedDevice& part : platform::described_devices()) {
    const auto device = platform::describe_device(part.name);
    if (!device) continue;
    const auto layout = backends::layout_of(
        {.backend = backend, .policy_date = policy.policy_date, .device = *device});
    if (layout) generations.insert((*layout)->generation);
  }
  return generations.size() > 1;
}

// A backend that reads the layout, of our own policy or of the newest that has one.
struct LayoutReader {
  const Policy* policy = nullptr;
  const Backend* backend = nullptr;
};
std::vector<LayoutReader> readers_of(std::string_view id) {
  std::vector<LayoutReader> found;
  for (const Policy& policy : backends::policies())
    for (const Backend* backend : policy.backends)
      if (backend->family != "none" && backends::layout_id(*backend) == id)
        found.push_back({&policy, backend});
  std::ranges::stable_sort(found, [](const LayoutReader& a, const LayoutReader& b) {
    return a.policy->policy_date > b.policy->policy_date;
  });
  return found;
}

Error not_there(std::string_view what, const std::string& why, const Target& target) {
  if (!target.is_given)
    return usage("target.device", fmt::format("the layout of {} depends on the device", what))
        .expects("--device NAME", fmt::format("none, and on this machine it {}", why))
        .try_this("name the device that will read the weights: --device h100");
  return error(ErrorCode::no_backend, "target.backend",
               fmt::format("{} does not run on {}", what, target.device.name))
      .expects("a device on which it runs, as its layout depends on that", why)
      .try_this("fp4moe explain --device NAME says what runs there");
}

// Why the backend does not take a share of so many ranks, as plan says; empty: it does.
std::string split_misfit(const Choice& choice, const Target& target) {
  const std::uint64_t tp = target.slice.tensor_parallel.size;
  const std::uint64_t ep = target.slice.expert_parallel.size;
  if (tp * ep == 1 || (tp > 1 && ep > 1)) return {};
  plan::PlanRequest request{.model = target.model,
                            .ranks = {.tp = ep > 1 ? ep : tp, .ep = ep},
                            .device = target.device,
                            .policy = choice.policy,
                            .mode = choice.mode};
  const auto plan = plan::make_plan(request);
  const auto words = [&](const Error& why) {
    return fmt::format("{} does not load a share of {} ranks: {}{}{}",
                       oracle::title(*choice.policy), tp * ep, why.message,
                       why.remedy.empty() ? "" : "; ", why.remedy);
  };
  if (!plan) return words(plan.why());
  const auto row = std::ranges::find(plan->backends, choice.backend, &plan::BackendPlan::backend);
  const bool is_cut = row == plan->backends.end() || !row->impossible || !row->refused.empty();
  return is_cut ? std::string() : words(*row->impossible);
}

}  // namespace

Result<std::vector<std::string>> check_target(const Choice& choice, const Target& target) {
  std::vector<std::string> warnings;
  const std::string why = misfit(*choice.policy, *choice.backend, target);
  if (!why.empty() && depends_on_device(*choice.policy, *choice.backend))
    return not_there(choice.backend->name, why, target);
  if (!why.empty() && target.is_given)
    warnings.push_back(
        fmt::format("{} does not run on {}: it {}", choice.backend->name, target.device.name, why));
  if (const std::string cut = split_misfit(choice, target); !cut.empty()) warnings.push_back(cut);
  return warnings;
}

Result<const layout::Layout*> layout_for_target(std::string_view id, const Target& target) {
  const auto newest = backends::require_layout(id, {});
  if (!newest) return newest;
  const std::vector<LayoutReader> readers = readers_of(id);
  std::string why;
  for (const LayoutReader& reader : readers) {
    if (reader.policy->policy_date != readers.front().policy->policy_date) break;
    if (!depends_on_device(*reader.policy, *reader.backend)) return newest;
    const std::string here = misfit(*reader.policy, *reader.backend, target);
    if (here.empty())
      return backends::layout_of({.backend = *reader.backend,
                                  .policy_date = reader.policy->policy_date,
                                  .device = target.device,
                                  .tp_size = target.slice.tensor_parallel.size});
    if (why.empty()) why = here;
  }
  if (why.empty()) return newest;
  return not_there(fmt::format("a backend that reads {}", id), why, target);
}

}  // namespace fp4moe::runtime
