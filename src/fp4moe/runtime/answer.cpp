#include "fp4moe/runtime/answer.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/explain/remedy.hpp"
#include "fp4moe/plan/other_splits.hpp"
#include "fp4moe/plan/plan.hpp"

namespace fp4moe::runtime {
namespace {

using oracle::Backend;
using oracle::BackendRow;
using oracle::Change;
using oracle::Deployment;
using oracle::Outcome;
using oracle::Policy;
using oracle::Refusal;
using oracle::Selection;
using oracle::Verdict;

std::optional<Error> load_error(const SelectionRequest& request, const oracle::Request& changed,
                                const Backend& backend) {
  if (!request.split) return std::nullopt;
  const auto split =
      plan::plan_split(request.model, changed.layer.parallel, request.policy->policy_date);
  if (!split) return split.why();
  plan::PlanRequest wanted{.model = request.model, .device = changed.device};
  wanted.policy = request.policy;
  wanted.mode = request.mode;
  return plan::plan_backend(wanted, *split, backend).impossible;
}

bool is_taken(const SelectionRequest& request, const Selection& selection) {
  return selection.outcome == Outcome::selected &&
         oracle::checks_before(*request.policy, request.request).empty() &&
         !load_error(request, request.request, *selection.backend);
}

std::vector<Change> split_changes(const SelectionRequest& request) {
  std::vector<Change> changes;
  if (!request.deployment) return changes;
  for (plan::OtherSplit& other : plan::other_arrangements(*request.deployment)) {
    SelectionRequest changed = request;
    deploy(other.deployment, changed);
    if (!*changed.split) continue;
    changes.push_back({std::move(other.says), std::move(other.asks),
                       [layer = changed.request.layer](oracle::Request& to) {
                         to.layer.parallel = layer.parallel;
                         to.layer.intermediate = layer.intermediate;
                         to.layer.num_local_experts = layer.num_local_experts;
                       }});
  }
  return changes;
}

// The backend that is taken and loads with another split; null: none.
const Backend* taken_with(const SelectionRequest& request, const Deployment& other) {
  SelectionRequest changed = request;
  deploy(other, changed);
  const Selection result = select(*changed.policy, changed.mode, changed.request);
  return is_taken(changed, result) ? result.backend : nullptr;
}

void add_splits(Answer& answer) {
  const SelectionRequest& request = answer.request;
  if (!request.deployment) return;
  std::vector<const Backend*> backends;
  const auto found = plan::other_splits(*request.deployment, [&](const Deployment& other) {
    const Backend* taken = taken_with(request, other);
    if (taken != nullptr) backends.push_back(taken);
    return taken != nullptr;
  });
  for (std::size_t i = 0; i < found.size(); ++i)
    answer.to_change.push_back(
        {backends[i], {{found[i].says}, found[i].asks, !found[i].asks.empty()}});
  if (!found.empty()) answer.impossible->remedy = plan::advice(found);
}

// The type of the tokens may be all that is refused before.
void add_dtype(Answer& answer) {
  SelectionRequest changed = answer.request;
  changed.request.layer.in_dtype = oracle::ScalarType::bfloat16;
  const Selection result = select(*changed.policy, changed.mode, changed.request);
  if (is_taken(changed, result))
    answer.to_change.push_back(
        {result.backend, {{"--dtype bfloat16"}, {"--in-dtype", "bfloat16"}}});
}

void add_changes(Answer& answer) {
  const SelectionRequest& request = answer.request;
  add_remedies(answer.record, split_changes(request),
               [&](const oracle::Request& changed, const Backend& backend) {
                 return oracle::checks_before(*request.policy, changed).empty() &&
                        !load_error(request, changed, backend);
               });
  if (answer.impossible) add_splits(answer);
  if (!answer.refused_before.empty()) add_dtype(answer);
  std::vector<ToChange> found;
  for (const BackendRow& row : answer.record.rows)
    if (row.remedy) found.push_back({row.backend, *row.remedy});
  std::ranges::stable_sort(found, {}, [](const ToChange& to) { return to.remedy.steps.size(); });
  answer.to_change.insert(answer.to_change.end(), found.begin(), found.end());
}

bool is_elsewhere(const Verdict& verdict) {
  return std::ranges::any_of(verdict.refusals, [](const Refusal& refusal) {
    return refusal.reason == oracle::Reason::platform;
  });
}

std::vector<std::string> reasons(const oracle::Record& record, const Verdict& verdict) {
  std::vector<std::string> result;
  for (const Refusal& refusal : by_cause(verdict)) {
    const oracle::Sentence words = oracle::sentence(record.request, verdict, refusal);
    result.push_back(words.requirement + "; " + words.fact);
  }
  return result;
}

// Backends of another platform are near only where there are no others.
void add_near_misses(Answer& answer) {
  std::vector<const BackendRow*> rows;
  for (const BackendRow& row : answer.record.rows)
    if (row.nearest != nullptr && !row.would_run() && !row.remedy &&
        row.backend != answer.record.selection.backend)
      rows.push_back(&row);
  const auto here = [](const BackendRow* row) { return !is_elsewhere(*row->nearest); };
  if (std::ranges::any_of(rows, here)) std::erase_if(rows, std::not_fn(here));
  std::ranges::stable_sort(rows, {}, [](const BackendRow* row) {
    return std::pair(!row->automatic, row->nearest->refusals.size());
  });
  for (const BackendRow* row : rows)
    answer.near_misses.push_back(
        {row->backend, reasons(answer.record, *row->nearest), is_elsewhere(*row->nearest)});
}

Alternative ask_other(const SelectionRequest& request, const Policy& policy, oracle::Mode mode) {
  SelectionRequest other = request;
  other.policy = &policy;
  other.mode = mode;
  if (&policy != request.policy) {
    other.request.layer.backend = "auto";
    other.request.device = oracle::installed(policy, other.request.device);
  }
  if (other.deployment) deploy(*other.deployment, other);
  Alternative result{.policy = &policy, .selection = select(policy, mode, other.request)};
  result.loads = is_taken(other, result.selection);
  return result;
}

bool is_same(const Selection& a, const Selection& b) {
  return a.outcome == b.outcome && a.backend == b.backend && a.experts == b.experts;
}

// Why the selection ended without a backend, in one reason: of the backend that was requested
// explicitly, else of the nearest.
std::string decisive(const Answer& answer) {
  const Selection& selection = answer.record.selection;
  const oracle::Layer& layer = answer.record.request.layer;
  const bool is_requested = layer.backend != "auto" && !selection.evaluated.empty();
  const Verdict* verdict = is_requested ? &selection.evaluated.back() : nullptr;
  if (verdict == nullptr && selection.error == oracle::ErrorKind::value &&
      selection.outcome == Outcome::error) {
    // A variable or LoRA decided: what was tried last, or the sentence itself.
    if (selection.evaluated.empty()) return selection.message;
    verdict = &selection.evaluated.back();
  }
  if (verdict != nullptr)
    return fmt::format("{}: {}", verdict->backend->name,
                       decisive_reason(answer.record.request, *verdict));
  // A repair that exists is nearer than any miss.
  for (const ToChange& to : answer.to_change) {
    const auto row = std::ranges::find(answer.record.rows, to.backend, &BackendRow::backend);
    if (row != answer.record.rows.end() && row->nearest != nullptr && !row->would_run())
      return fmt::format("{}: {}", to.backend->name,
                         decisive_reason(answer.record.request, *row->nearest));
  }
  if (!answer.near_misses.empty())
    return fmt::format("{}: {}", answer.near_misses.front().backend->name,
                       answer.near_misses.front().reasons.front());
  return selection.message.empty() ? "nothing here computes this layer" : selection.message;
}

Json selection_json(const Alternative& other) {
  const Selection& selection = other.selection;
  constexpr std::string_view kOutcomes[] = {"selected", "none", "error"};
  const bool is_class = selection.experts != nullptr && !selection.experts->name.empty();
  Json result{{"policy", other.policy->name},
              {"title", oracle::title(*other.policy)},
              {"mode", oracle::kModeNames[static_cast<std::size_t>(selection.mode)]},
              {"outcome", kOutcomes[static_cast<std::size_t>(selection.outcome)]},
              {"backend", selection.backend == nullptr ? Json() : Json(selection.backend->name)},
              {"experts", is_class ? Json(selection.experts->name) : Json()},
              {"loads", other.loads}};
  if (!selection.message.empty()) result["message"] = selection.message;
  return result;
}

Json split_json(const Answer& answer) {
  if (!answer.request.split) return {};
  Json result{{"possible", !answer.impossible}};
  if (!answer.impossible) return result;
  const Error& why = *answer.impossible;
  result.update({{"id", why.id},
                 {"message", why.message},
                 {"expected", why.expected},
                 {"found", why.found},
                 {"remedy", why.remedy}});
  return result;
}

}  // namespace

Answer answer(SelectionRequest request) {
  Answer result;
  result.request = std::move(request);
  const SelectionRequest& asked = result.request;
  result.record = make_record(*asked.policy, asked.mode, asked.request);
  const Selection& selection = result.record.selection;
  result.refused_before = oracle::checks_before(*asked.policy, asked.request);
  if (asked.split && !*asked.split)
    result.impossible = asked.split->why();
  else if (selection.outcome == Outcome::selected)
    result.impossible = load_error(asked, asked.request, *selection.backend);
  add_changes(result);
  add_near_misses(result);
  const bool is_native = asked.policy->policy_date == oracle::PolicyDate::native;
  if (!is_native && asked.mode == oracle::Mode::strict) {
    Alternative released = ask_other(asked, *asked.policy, oracle::Mode::compat);
    if (!is_same(released.selection, selection)) result.as_released = std::move(released);
  }
  const Policy* other = is_native ? &newest_vllm(asked.model)
                                  : backends::find_policy(backends::kNative, asked.policy->format);
  if (other != nullptr)
    result.alternatives.push_back(ask_other(asked, *other, oracle::Mode::strict));
  return result;
}

std::string place(const SelectionRequest& request) {
  const oracle::Parallel& layout = request.request.layer.parallel;
  const int ranks = layout.tp_size * layout.ep_size;
  if (ranks <= 1) return request.request.device.name;
  return fmt::format("{} x {} ({} parallel)", ranks, request.request.device.name,
                     layout.use_ep ? "expert" : "tensor");
}

std::string refusal(const Answer& answer) {
  if (answer.is_served()) return {};
  if (answer.impossible)
    return fmt::format("{} (expected {}, found {})", answer.impossible->message,
                       answer.impossible->expected, answer.impossible->found);
  if (!answer.refused_before.empty()) return answer.refused_before.front();
  return decisive(answer);
}

std::string summary(const Answer& answer) {
  const SelectionRequest& request = answer.request;
  const Selection& selection = answer.record.selection;
  const std::string who =
      request.release ? "vLLM " + request.release->asked : oracle::title(*request.policy);
  const std::string what =
      fmt::format("{} ({}) on {}", request.model.name.empty() ? "the layer" : request.model.name,
                  formats::name(request.policy->format), place(request));
  const std::vector<std::string>& before = answer.refused_before;
  const bool is_selected = selection.outcome == Outcome::selected;
  std::string result;
  if (answer.impossible)
    result = fmt::format("{} cannot serve {}: {}.", who, what, refusal(answer));
  else if (!before.empty() && is_selected)
    result = fmt::format("{} would run {} with {}, but refuses it before: {}", who, what,
                         selection.backend->name, before.front());
  else if (!before.empty())
    result = fmt::format("{} refuses {} before it selects: {}", who, what, before.front());
  else if (is_selected)
    result = fmt::format("{} runs {} with {}.", who, what, selection.backend->name);
  else
    result = fmt::format("{} has no backend for {}: {}.", who, what, refusal(answer));
  if (!answer.as_released) return result;
  const Backend* released = answer.as_released->selection.backend;
  return result + fmt::format(" As released it takes {} (--mode compat).",
                              released != nullptr ? released->name : "nothing");
}

std::vector<std::string> assumed(const SelectionRequest& request) {
  std::vector<std::string> result;
  if (request.model_assumed)
    result.push_back(fmt::format("model {} (--model)", request.model.name));
  if (request.format_assumed)
    result.push_back(
        fmt::format("quantized to {} (--format)", formats::name(request.policy->format)));
  if (request.packages_assumed) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i)
      if (request.request.device.libraries.contains(static_cast<platform::Library>(i)))
        names.emplace_back(platform::kLibraryNames[i]);
    result.push_back(
        fmt::format("packages {} (--lib)", names.empty() ? "none" : join(names, ", ")));
  }
  if (request.variables_assumed) result.emplace_back("no VLLM_* variables (--env)");
  return result;
}

Json to_json(const Answer& answer) {
  Json result = oracle::to_json(answer.record);
  Json changes = Json::array(), misses = Json::array(), others = Json::array();
  for (const ToChange& to : answer.to_change)
    changes.push_back({{"backend", to.backend->name},
                       {"steps", to.remedy.steps},
                       {"asks", to.remedy.can_be_asked ? Json(to.remedy.asks) : Json()}});
  for (const NearMiss& miss : answer.near_misses)
    misses.push_back({{"backend", miss.backend->name}, {"reasons", miss.reasons}});
  for (const Alternative& other : answer.alternatives) others.push_back(selection_json(other));
  const SelectionRequest& request = answer.request;
  result["summary"] = summary(answer);
  result["title"] = oracle::title(*request.policy);
  result["model"] = {{"name", request.model.name.empty() ? Json() : Json(request.model.name)},
                     {"assumed", request.model_assumed}};
  result["served"] = answer.is_served();
  result["refused_before"] = answer.refused_before;
  result["to_change"] = std::move(changes);
  result["near_misses"] = std::move(misses);
  result["alternatives"] = std::move(others);
  result["as_released"] = answer.as_released ? selection_json(*answer.as_released) : Json();
  result["split"] = split_json(answer);
  result["assumed"] = assumed(request);
  result["notes"] = request.notes;
  if (request.release) result["vllm"] = oracle::to_json(*request.release);
  return result;
}

}  // namespace fp4moe::runtime
