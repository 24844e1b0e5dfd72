#include "fp4moe/runtime/answer.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/remedy.hpp"
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

// How far another number of ranks is looked for.
constexpr int kReach = 64;

std::optional<Error> load_error(const Question& question, const oracle::Request& request,
                                const Backend& backend) {
  if (!question.split) return std::nullopt;
  const auto split = plan::plan_split(question.model, request.layer.parallel, question.policy->era);
  if (!split) return split.why();
  plan::PlanRequest wanted{.model = question.model, .device = request.device};
  wanted.policy = question.policy;
  wanted.mode = question.mode;
  return plan::plan_backend(wanted, *split, backend).impossible;
}

bool is_taken(const Question& question, const Selection& selection) {
  return selection.outcome == Outcome::selected &&
         !load_error(question, question.request, *selection.backend);
}

// Other arrangements of the same ranks, then other numbers of them.
struct OtherSplit {
  std::string says{};
  std::vector<std::string> asks{};
  Deployment deployment{};
};

std::vector<OtherSplit> other_splits(const Deployment& now) {
  std::vector<OtherSplit> made;
  const int ranks = now.tp_size * now.dp_size * now.pcp_size;
  const auto add = [&](std::string says, std::vector<std::string> asks, auto&& change) {
    made.push_back({std::move(says), std::move(asks), now});
    change(made.back().deployment);
  };
  if (ranks > 1 && now.enable_expert_parallel)
    add("leave --enable-expert-parallel out", {},
        [](Deployment& d) { d.enable_expert_parallel = false; });
  else if (ranks > 1)
    add("--enable-expert-parallel", {"--ep"},
        [](Deployment& d) { d.enable_expert_parallel = true; });
  if (now.dp_size > 1) {
    const int all = now.tp_size * now.dp_size;
    add(fmt::format("--tensor-parallel-size {} --data-parallel-size 1", all),
        {"--tp", std::to_string(all), "--dp", "1"}, [all](Deployment& d) {
          d.tp_size = all;
          d.dp_size = 1;
        });
  }
  return made;
}

OtherSplit with_ranks(const Deployment& now, int ranks) {
  OtherSplit made{
      fmt::format("--tensor-parallel-size {}", ranks), {"--tp", std::to_string(ranks)}, now};
  made.deployment.tp_size = ranks;
  return made;
}

std::vector<Change> split_changes(const Question& question) {
  std::vector<Change> changes;
  if (!question.deployment) return changes;
  for (OtherSplit& other : other_splits(*question.deployment)) {
    Question changed = question;
    deploy(other.deployment, changed);
    if (!*changed.split) continue;
    changes.push_back({std::move(other.says), std::move(other.asks),
                       [layer = changed.request.layer](oracle::Request& request) {
                         request.layer.parallel = layer.parallel;
                         request.layer.intermediate = layer.intermediate;
                         request.layer.num_local_experts = layer.num_local_experts;
                       }});
  }
  return changes;
}

// The backend that is taken and loads with another split; null: none.
const Backend* taken_with(const Question& question, const OtherSplit& other) {
  Question changed = question;
  deploy(other.deployment, changed);
  const Selection made = select(*changed.policy, changed.mode, changed.request);
  return is_taken(changed, made) ? made.backend : nullptr;
}

// Splits that load: the nearest numbers of ranks below and above, and whole experts instead.
void add_splits(Answer& answer) {
  const Question& question = answer.question;
  if (!question.deployment) return;
  const Deployment& now = *question.deployment;
  const auto add = [&](const OtherSplit& other) {
    const Backend* taken = taken_with(question, other);
    if (taken != nullptr) answer.to_change.push_back({taken, {{other.says}, other.asks}});
    return taken != nullptr;
  };
  for (int ranks = now.tp_size - 1; ranks >= std::max(1, now.tp_size - kReach); --ranks)
    if (add(with_ranks(now, ranks))) break;
  for (int ranks = now.tp_size + 1; ranks <= now.tp_size + kReach; ++ranks)
    if (add(with_ranks(now, ranks))) break;
  for (OtherSplit& other : other_splits(now)) {
    const Backend* taken = taken_with(question, other);
    if (taken != nullptr)
      answer.to_change.push_back({taken, {{other.says}, other.asks, !other.asks.empty()}});
  }
}

void add_changes(Answer& answer) {
  const Question& question = answer.question;
  add_remedies(answer.record, split_changes(question),
               [&](const oracle::Request& request, const Backend& backend) {
                 return oracle::checks_before(*question.policy, request).empty() &&
                        !load_error(question, request, backend);
               });
  if (answer.impossible) add_splits(answer);
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
  std::vector<std::string> made;
  for (const Refusal& refusal : by_cause(verdict)) {
    const oracle::Sentence words = oracle::sentence(record.request, verdict, refusal);
    made.push_back(words.requirement + "; " + words.fact);
  }
  return made;
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

Alternative ask_other(const Question& question, const Policy& policy, oracle::Mode mode) {
  Question other = question;
  other.policy = &policy;
  other.mode = mode;
  if (&policy != question.policy) {
    other.request.layer.backend = "auto";
    other.request.device = oracle::installed(policy, other.request.device);
  }
  if (other.deployment) deploy(*other.deployment, other);
  Alternative made{.policy = &policy, .selection = select(policy, mode, other.request)};
  made.loads = is_taken(other, made.selection);
  return made;
}

bool is_same(const Selection& a, const Selection& b) {
  return a.outcome == b.outcome && a.backend == b.backend && a.experts == b.experts;
}

// Why the selection ended without a backend, in one reason: of what was insisted on, else of the
// nearest backend.
std::string decisive(const Answer& answer) {
  const Selection& selection = answer.record.selection;
  const oracle::Layer& layer = answer.record.request.layer;
  const bool insisted = layer.backend != "auto" && !selection.evaluated.empty();
  const Verdict* verdict = insisted ? &selection.evaluated.back() : nullptr;
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
  Json made{{"policy", other.policy->name},
            {"title", oracle::title(*other.policy)},
            {"mode", oracle::kModeNames[static_cast<std::size_t>(selection.mode)]},
            {"outcome", kOutcomes[static_cast<std::size_t>(selection.outcome)]},
            {"backend", selection.backend == nullptr ? Json() : Json(selection.backend->name)},
            {"experts", is_class ? Json(selection.experts->name) : Json()},
            {"loads", other.loads}};
  if (!selection.message.empty()) made["message"] = selection.message;
  return made;
}

Json split_json(const Answer& answer) {
  if (!answer.question.split) return {};
  Json made{{"possible", !answer.impossible}};
  if (!answer.impossible) return made;
  const Error& why = *answer.impossible;
  made.update({{"id", why.id},
               {"message", why.message},
               {"expected", why.expected},
               {"found", why.found},
               {"remedy", why.remedy}});
  return made;
}

}  // namespace

Answer answer(Question question) {
  Answer made;
  made.question = std::move(question);
  const Question& asked = made.question;
  made.record = make_record(*asked.policy, asked.mode, asked.request);
  const Selection& selection = made.record.selection;
  if (asked.split && !*asked.split)
    made.impossible = asked.split->why();
  else if (selection.outcome == Outcome::selected)
    made.impossible = load_error(asked, asked.request, *selection.backend);
  add_changes(made);
  add_near_misses(made);
  const bool is_native = asked.policy->era == oracle::Era::native;
  if (!is_native && asked.mode == oracle::Mode::strict) {
    Alternative released = ask_other(asked, *asked.policy, oracle::Mode::compat);
    if (!is_same(released.selection, selection)) made.as_released = std::move(released);
  }
  const Policy* other = is_native ? &newest_vllm(asked.model)
                                  : backends::find_policy(backends::kNative, asked.policy->format);
  if (other != nullptr) made.alternatives.push_back(ask_other(asked, *other, oracle::Mode::strict));
  return made;
}

std::string place(const Question& question) {
  const oracle::Parallel& layout = question.request.layer.parallel;
  const int ranks = layout.tp_size * layout.ep_size;
  if (ranks <= 1) return question.request.device.name;
  return fmt::format("{} x {} ({} parallel)", ranks, question.request.device.name,
                     layout.use_ep ? "expert" : "tensor");
}

std::string refusal(const Answer& answer) {
  if (answer.is_served()) return {};
  if (answer.impossible)
    return fmt::format("{} (expected {}, found {})", answer.impossible->message,
                       answer.impossible->expected, answer.impossible->found);
  return decisive(answer);
}

std::string summary(const Answer& answer) {
  const Question& question = answer.question;
  const Selection& selection = answer.record.selection;
  const std::string who =
      question.release ? "vLLM " + question.release->asked : oracle::title(*question.policy);
  const std::string what =
      fmt::format("{} ({}) on {}", question.model.name.empty() ? "the layer" : question.model.name,
                  formats::name(question.policy->format), place(question));
  const auto before = oracle::checks_before(*question.policy, question.request);
  const bool is_selected = selection.outcome == Outcome::selected;
  std::string made;
  if (answer.impossible)
    made = fmt::format("{} cannot serve {}: {}.", who, what, refusal(answer));
  else if (!before.empty() && is_selected)
    made = fmt::format("{} would run {} with {}, but refuses it before: {}", who, what,
                       selection.backend->name, before.front());
  else if (!before.empty())
    made = fmt::format("{} refuses {} before it selects: {}", who, what, before.front());
  else if (is_selected)
    made = fmt::format("{} runs {} with {}.", who, what, selection.backend->name);
  else
    made = fmt::format("{} has no backend for {}: {}.", who, what, refusal(answer));
  if (!answer.as_released) return made;
  const Backend* released = answer.as_released->selection.backend;
  return made + fmt::format(" As released it takes {} (--mode compat).",
                            released != nullptr ? released->name : "nothing");
}

std::vector<std::string> assumed(const Question& question) {
  std::vector<std::string> made;
  if (question.model_assumed)
    made.push_back(fmt::format("model {} (--model)", question.model.name));
  if (question.packages_assumed) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i)
      if (question.request.device.libraries.contains(static_cast<platform::Library>(i)))
        names.emplace_back(platform::kLibraryNames[i]);
    made.push_back(fmt::format("packages {} (--lib)", names.empty() ? "none" : join(names, ", ")));
  }
  if (question.variables_assumed) made.emplace_back("no VLLM_* variables (--env)");
  return made;
}

Json to_json(const Answer& answer) {
  Json made = oracle::to_json(answer.record);
  Json changes = Json::array(), misses = Json::array(), others = Json::array();
  for (const ToChange& to : answer.to_change)
    changes.push_back({{"backend", to.backend->name},
                       {"steps", to.remedy.steps},
                       {"asks", to.remedy.can_be_asked ? Json(to.remedy.asks) : Json()}});
  for (const NearMiss& miss : answer.near_misses)
    misses.push_back({{"backend", miss.backend->name}, {"reasons", miss.reasons}});
  for (const Alternative& other : answer.alternatives) others.push_back(selection_json(other));
  const Question& question = answer.question;
  made["summary"] = summary(answer);
  made["title"] = oracle::title(*question.policy);
  made["model"] = {{"name", question.model.name.empty() ? Json() : Json(question.model.name)},
                   {"assumed", question.model_assumed}};
  made["served"] = answer.is_served();
  made["to_change"] = std::move(changes);
  made["near_misses"] = std::move(misses);
  made["alternatives"] = std::move(others);
  made["as_released"] = answer.as_released ? selection_json(*answer.as_released) : Json();
  made["split"] = split_json(answer);
  made["assumed"] = assumed(question);
  made["notes"] = question.notes;
  if (question.release) made["vllm"] = oracle::to_json(*question.release);
  return made;
}

}  // namespace fp4moe::runtime
