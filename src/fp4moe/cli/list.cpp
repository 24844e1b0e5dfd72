// fp4moe list SUBJECT: the names that options take, each with what it stands for.
#include "fp4moe/cli/list.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/backends/names.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/oracle/releases.hpp"
#include "fp4moe/platform/device.hpp"
#include "fp4moe/platform/environment.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::cli {

Run declare_list(OptionSet& set);

namespace {

std::vector<ListRow> list_models() {
  std::vector<ListRow> rows;
  for (const checkpoint::ModelRow& model : checkpoint::models())
    rows.push_back(
        {std::string(model.name),
         fmt::format("{}, {} experts of {} x {}, top {}, usually {}",
                     counted(checkpoint::moe_layer_count(model), "MoE layer"), model.experts,
                     model.hidden, model.intermediate, model.top_k, formats::name(model.format))});
  return rows;
}

std::vector<ListRow> list_devices() {
  std::vector<ListRow> rows;
  for (const platform::DescribedDevice& device : platform::described_devices()) {
    std::string what = fmt::format("{}, {}", device.title, platform::name(device.kind));
    if (!device.gfx.empty())
      what += fmt::format(" {}", device.gfx);
    else if (device.capability)
      what += " " + platform::text(*device.capability);
    if (device.memory_gib != 0) what += fmt::format(", {} GiB", device.memory_gib);
    rows.push_back({std::string(device.name), std::move(what)});
  }
  return rows;
}

// One row for a name, with what `add` says each time that the name occurs.
void add_to(std::vector<ListRow>& rows, std::string_view name, std::string_view lead,
            std::string_view more) {
  const auto found = std::ranges::find(rows, name, &ListRow::name);
  if (found == rows.end())
    rows.push_back({std::string(name), fmt::format("{}{}", lead, more)});
  else if (found->what.find(more) == found->what.npos)
    found->what += fmt::format("; {}", more);
}

std::vector<ListRow> list_policies() {
  std::vector<ListRow> rows;
  for (const oracle::Policy& policy : backends::policies())
    add_to(rows, policy.name, "",
           fmt::format("{}: {}", formats::name(policy.format), policy.summary));
  return rows;
}

// "mxfp4 since 2026-03-20, in words flashinfer_trtllm"
std::vector<ListRow> list_backends() {
  struct Known {
    std::string_view name;
    oracle::WeightFormat format;
    std::vector<std::string> policies{}, words{};
  };
  std::vector<Known> all;
  for (const oracle::Policy& policy : backends::policies())
    for (const oracle::Backend* backend : policy.backends) {
      const auto names = backends::backend_names(policy);
      if (std::ranges::find(names, backend->name) == names.end()) continue;
      auto found = std::ranges::find_if(all, [&](const Known& known) {
        return known.name == backend->name && known.format == policy.format;
      });
      if (found == all.end()) {
        all.push_back({.name = backend->name, .format = policy.format});
        found = all.end() - 1;
      }
      found->policies.emplace_back(policy.name);
      for (const std::string_view word : backends::words_for(policy, *backend))
        if (std::ranges::find(found->words, word) == found->words.end())
          found->words.emplace_back(word);
    }
  std::ranges::stable_sort(all, {}, &Known::name);
  std::vector<ListRow> rows;
  for (const Known& known : all)
    add_to(rows, known.name, "",
           fmt::format("{} in {}{}", formats::name(known.format), join(known.policies, ", "),
                       known.words.empty() ? "" : ", vLLM's word " + join(known.words, " or ")));
  return rows;
}

std::vector<ListRow> list_layouts() {
  std::vector<ListRow> rows;
  for (const layout::Layout& layout : backends::layouts())
    add_to(rows, layout.id, "read by ", layout.reads);
  return rows;
}

std::vector<ListRow> list_dialects() {
  std::vector<ListRow> rows;
  for (const checkpoint::DialectRow& dialect : checkpoint::dialects())
    add_to(rows, dialect.name, "", formats::name(dialect.format));
  return rows;
}

std::string release_text(std::string_view format, const oracle::ReleasePolicy& policy) {
  return policy.match == oracle::Match::none
             ? fmt::format("no {} oracle", format)
             : fmt::format("{} {} {}", format, oracle::name(policy.match), policy.policy);
}

std::vector<ListRow> list_releases() {
  std::vector<ListRow> rows;
  for (const oracle::Release& release : oracle::vllm_releases())
    rows.push_back({std::string(release.version),
                    fmt::format("{}; {}; {}", release.date, release_text("mxfp4", release.mxfp4),
                                release_text("nvfp4", release.nvfp4))});
  return rows;
}

// Ours, then those of vLLM that a selection looks at, each with the policies that do.
std::vector<ListRow> list_variables() {
  std::vector<ListRow> rows;
  for (const platform::SettingRow& setting : platform::setting_rows())
    rows.push_back({std::string(setting.name),
                    fmt::format("fp4moe: {} ({})", setting.effect, setting.accepted)});
  for (const platform::VariableRow& variable : platform::variables()) {
    std::vector<std::string> policies;
    for (const oracle::Policy& policy : backends::policies())
      if (oracle::variables_read(policy).contains(variable.variable) &&
          std::ranges::find(policies, policy.name) == policies.end())
        policies.emplace_back(policy.name);
    rows.push_back({std::string(variable.name),
                    fmt::format("{}: {} ({})", policies.empty() ? "none" : join(policies, ", "),
                                variable.effect, variable.accepted)});
  }
  return rows;
}

struct Subject {
  std::string_view name, what;
  std::vector<ListRow> (*rows)();
};
constexpr Subject kSubjects[] = {
    {"models", "what --model takes", list_models},
    {"devices", "what --device takes, beside auto", list_devices},
    {"policies", "what --policy takes", list_policies},
    {"vllm", "what --vllm takes, beside latest and auto: releases and their policies",
     list_releases},
    {"backends", "what --backend takes, in any case and with - or _", list_backends},
    {"layouts", "what --layout takes; fp4moe layouts ID draws one", list_layouts},
    {"dialects", "what --to and --dialect take", list_dialects},
    {"engines", "what --engine takes, beside auto", list_engines},
    {"variables", "environment variables: who reads them, what they do, what they take",
     list_variables},
};

void print_rows(const Io& io, const std::vector<ListRow>& rows) {
  std::size_t width = 0;
  for (const ListRow& row : rows) width = std::max(width, row.name.size());
  const std::size_t from = width + 2;
  for (const ListRow& row : rows)
    io.out << wrapped(fmt::format("{:<{}}{}", row.name, from, row.what), io.columns, from) << "\n";
}

Json rows_json(const std::vector<ListRow>& rows) {
  Json result = Json::array();
  for (const ListRow& row : rows) result.push_back({{"name", row.name}, {"what", row.what}});
  return result;
}

Result<int> run_list(const std::string& subject, const Io& io) {
  std::vector<ListRow> rows;
  for (const Subject& known : kSubjects) {
    if (subject.empty()) rows.push_back({std::string(known.name), std::string(known.what)});
    if (known.name == subject) rows = known.rows();
  }
  if (io.json)
    io.print({{"command", "list"},
              {"subject", subject.empty() ? Json() : Json(subject)},
              {"rows", rows_json(rows)}});
  else
    print_rows(io, rows);
  return kDone;
}

}  // namespace

std::vector<std::string> listed_names(std::string_view subject) {
  std::vector<std::string> names;
  for (const Subject& known : kSubjects)
    if (known.name == subject)
      for (ListRow& row : known.rows()) names.push_back(std::move(row.name));
  return names;
}

Run declare_list(OptionSet& set) {
  const auto subject = std::make_shared<std::string>();
  std::vector<std::string> names;
  for (const Subject& known : kSubjects) names.emplace_back(known.name);
  set.add("SUBJECT", *subject, "What to list (default: say what there is)").one_of(names);
  return [subject](const Io& io) { return run_list(*subject, io); };
}

}  // namespace fp4moe::cli
