#include "fp4moe/oracle/explain/remedy.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace fp4moe::oracle {
namespace {

// The exchange that keeps tokens in order, and one that batches them.
constexpr std::string_view kOtherExchanges[] = {"allgather_reducescatter", "deepep_low_latency"};

// Names of packages in the index they are installed from, if not as they are imported.
constexpr std::pair<Library, std::string_view> kDistributions[] = {
    {Library::flashinfer, "flashinfer-python"},
    {Library::quark, "amd-quark"},
};

std::string install(Library library) {
  for (const auto& [which, name] : kDistributions)
    if (which == library) return fmt::format("pip install {}", name);
  return fmt::format("install the package {}", platform::name(library));
}

Change set_variable(Variable variable, std::string_view value) {
  const std::string pair = fmt::format("{}={}", platform::row(variable).name, value);
  return {.says = "set " + pair,
          .asks = {"--env", pair},
          .apply = [=, v = std::string(value)](Request& request) {
            request.environment.set(variable, v);
          }};
}

// Packages that are missing and variables that are off, or on where that keeps kernels out.
void add_software(const Policy& policy, const Request& request, std::vector<Change>& changes) {
  for (const platform::VariableRow& row : platform::variables()) {
    if (row.parsing == platform::Parsing::choice || !variables_read(policy).contains(row.variable))
      continue;
    const Result<bool> on = request.environment.flag(row.variable);
    changes.push_back(set_variable(row.variable, on && *on ? "0" : "1"));
  }
  for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i) {
    const auto library = static_cast<Library>(i);
    if (request.device.libraries.contains(library)) continue;
    changes.push_back({.says = install(library),
                       .asks = {fmt::format("--lib=+{}", platform::name(library))},
                       .apply = [=](Request& r) { r.device.libraries.insert(library); }});
  }
}

void add_deployment(const Policy& policy, const Request& request, std::vector<Change>& changes) {
  const Layer& layer = request.layer;
  if (layer.lora)
    changes.push_back({.says = "serve without LoRA (fp4moe merge puts an adapter into the weights)",
                       .asks = {"--no-lora"},
                       .apply = [](Request& r) { r.layer.lora = false; }});
  if (layer.parallel.enable_eplb)
    changes.push_back({.says = "leave --enable-eplb out",
                       .apply = [](Request& r) { r.layer.parallel.enable_eplb = false; }});
  if (layer.parallel.is_sequence_parallel())
    changes.push_back({.says = "switch sequence parallelism off",
                       .asks = {"--sp", "1"},
                       .apply = [](Request& r) { r.layer.parallel.sp_size = 1; }});
  if (!uses_all2all(layer.parallel, policy.policy_date)) return;
  for (const std::string_view exchange : kOtherExchanges)
    if (layer.parallel.all2all_backend != exchange)
      changes.push_back(
          {.says = fmt::format("--all2all-backend {}", exchange),
           .asks = {"--all2all", std::string(exchange)},
           .apply = [=](Request& r) { r.layer.parallel.all2all_backend = exchange; }});
}

// Changes that send the selection to a backend that would run: a name, or a variable if there are
// none.
std::vector<Change> selectors(const Policy& policy, const Request& request) {
  std::vector<Change> result{{.apply = [](Request&) {}}};
  const std::string_view flag =
      policy.policy_date == PolicyDate::native ? "--backend" : "--moe-backend";
  if (request.layer.backend != "auto")
    result.push_back({.says = fmt::format("leave {} out", flag),
                      .asks = {"--backend", "auto"},
                      .apply = [](Request& r) { r.layer.backend = "auto"; }});
  for (const NamedChoice& named : policy.names)
    if (named.name != request.layer.backend)
      result.push_back({.says = fmt::format("{} {}", flag, named.name),
                        .asks = {"--backend", std::string(named.name)},
                        .apply = [name = named.name](Request& r) { r.layer.backend = name; }});
  for (const EnvironmentStep& step : policy.steps)
    for (const std::string_view value : {"1", "0"})
      if (request.environment.text(step.variable) != value)
        result.push_back(set_variable(step.variable, value));
  if (policy.flashinfer_only) {
    for (const std::string_view value : {"0", "1"})
      if (request.environment.text(Variable::flashinfer_fp4) != value)
        result.push_back(set_variable(Variable::flashinfer_fp4, value));
    for (const std::string_view word : {"throughput", "latency", "masked_gemm"}) {
      const Change on = set_variable(Variable::flashinfer_fp4, "1"),
                   which = set_variable(Variable::flashinfer_moe_backend, word);
      result.push_back({.says = on.says + " and " + which.says.substr(4),
                        .asks = {"--env", on.asks[1], "--env", which.asks[1]},
                        .apply = [=](Request& r) { on.apply(r), which.apply(r); }});
    }
  }
  return result;
}

struct Attempt {
  Request request{};
  Remedy remedy{};

  void take(const Change& change) {
    change.apply(request);
    if (!change.says.empty()) remedy.steps.push_back(change.says);
    remedy.asks.insert(remedy.asks.end(), change.asks.begin(), change.asks.end());
    remedy.can_be_asked = remedy.can_be_asked && (change.says.empty() || !change.asks.empty());
  }
};

// Changes until the kernel accepts the request, each of which removes a refusal.
std::optional<Attempt> repair(const Record& record, const Verdict& refused,
                              std::span<const Change> changes) {
  const Selection& asked = record.selection;
  Attempt attempt{.request = record.request};
  const auto judged = [&](const Request& request) {
    return evaluate(*asked.policy, asked.mode, request, *refused.backend, *refused.experts,
                    refused.activation);
  };
  Verdict verdict = refused;
  while (!verdict.accepted()) {
    const bool is_hopeless = std::ranges::any_of(verdict.refusals, [&](const Refusal& refusal) {
      return cause(verdict, refusal) == Cause::hardware;
    });
    if (is_hopeless) return std::nullopt;
    const auto helps = std::ranges::find_if(changes, [&](const Change& change) {
      Request changed = attempt.request;
      change.apply(changed);
      return judged(changed).refusals.size() < verdict.refusals.size();
    });
    if (helps == changes.end()) return std::nullopt;
    attempt.take(*helps);
    verdict = judged(attempt.request);
  }
  return attempt;
}

bool takes(const Record& record, const Request& request, const Backend* backend,
           const Loads& loads) {
  const Selection result = select(*record.selection.policy, record.selection.mode, request);
  return result.outcome == Outcome::selected && result.backend == backend &&
         (!loads || loads(request, *backend));
}

}  // namespace

std::vector<Change> possible_changes(const Policy& policy, const Request& request,
                                     std::span<const Change> more) {
  std::vector<Change> changes;
  add_software(policy, request, changes);
  add_deployment(policy, request, changes);
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

std::optional<Remedy> find_remedy(const Record& record, const BackendRow& row,
                                  std::span<const Change> changes, const Loads& loads) {
  const Policy& policy = *record.selection.policy;
  std::vector<Change> before{{.apply = [](Request&) {}}};
  // LoRA may decide before names do.
  if (policy.lora && record.request.layer.lora)
    before.push_back({.says = "serve without LoRA", .asks = {"--no-lora"}, .apply = [](Request& r) {
                        r.layer.lora = false;
                      }});
  std::optional<Remedy> best;
  for (const Verdict* verdict : row.verdicts) {
    const std::optional<Attempt> repaired = repair(record, *verdict, changes);
    if (!repaired) continue;
    for (const Change& first : before) {
      for (const Change& selector : selectors(policy, record.request)) {
        Attempt attempt = *repaired;
        attempt.take(first);
        attempt.take(selector);
        if (best && attempt.remedy.steps.size() >= best->steps.size()) continue;
        if (takes(record, attempt.request, row.backend, loads)) best = std::move(attempt.remedy);
      }
    }
  }
  return best;
}

void add_remedies(Record& record, std::span<const Change> more, const Loads& loads) {
  const std::vector<Change> changes =
      possible_changes(*record.selection.policy, record.request, more);
  for (BackendRow& row : record.rows)
    if (row.backend != record.selection.backend)
      row.remedy = find_remedy(record, row, changes, loads);
}

}  // namespace fp4moe::oracle
