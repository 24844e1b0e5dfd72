// fp4moe matrix: what every kernel can do and which backend every well-known device gets. The page
// docs/matrix.md is this command's --markdown output.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/oracle/capability_words.hpp"
#include "fp4moe/oracle/explain/record.hpp"
#include "fp4moe/runtime/selection_request.hpp"

namespace fp4moe::cli {

Run declare_matrix(OptionSet& set);

namespace {

using oracle::Backend;
using oracle::ExpertsClass;
using oracle::Outcome;
using oracle::Policy;
using oracle::Request;

struct MatrixOptions {
  std::string policy{}, vllm{}, format{}, mode = "strict";
  bool markdown = false;
};

// A column of the table of choices: one thing about the layer or the deployment differs.
struct Situation {
  std::string_view title;
  void (*change)(Request&);
};
constexpr Situation kSituations[] = {
    {"gpt-oss",
     [](Request& request) {
       request.layer.activation = oracle::Activation::swigluoai;
       request.layer.has_bias = true;
     }},
    {"SwiGLU", [](Request&) {}},
    {"DeepSeek routing",
     [](Request& request) { request.layer.routing = oracle::Routing::deepseek_v3; }},
    {"no gate",
     [](Request& request) {
       request.layer.activation = oracle::Activation::relu2_no_mul;
       request.layer.gated = false;
     }},
    {"batched tokens",
     [](Request& request) {
       request.layer.parallel = oracle::derive(
           {.dp_size = 2, .enable_expert_parallel = true, .all2all_backend = "deepep_low_latency"});
     }},
    {"LoRA", [](Request& request) { request.layer.lora = true; }},
    {"batch invariant",
     [](Request& request) { request.environment.set(platform::Variable::batch_invariant, "1"); }},
};

Request request_for(const platform::Device& device, const Policy& policy,
                    const Situation& situation) {
  Request request{.device = installed(policy, device)};
  request.layer.activation = oracle::Activation::silu;
  if (policy.format == oracle::WeightFormat::nvfp4)
    request.layer.activation_key = oracle::ActivationKey::nvfp4;
  situation.change(request);
  return request;
}

// Switches that kernels ask for and that are off by default.
std::vector<platform::Variable> switches_of(const Policy& policy) {
  std::vector<platform::Variable> found;
  for (const platform::VariableRow& row : platform::variables()) {
    const bool is_asked_for = std::ranges::any_of(policy.backends, [&](const Backend* backend) {
      return std::ranges::any_of(backend->experts, [&](const ExpertsClass* experts) {
        return std::ranges::any_of(experts->devices, [&](const oracle::DeviceNeed& need) {
          return need.switches.contains(row.variable);
        });
      });
    });
    if (is_asked_for && !row.when_unset) found.push_back(row.variable);
  }
  return found;
}

std::string choice(const Policy& policy, oracle::Mode mode, const Request& request) {
  const oracle::Selection result = select(policy, mode, request);
  const bool is_served =
      result.outcome == Outcome::selected && oracle::checks_before(policy, request).empty();
  return is_served ? std::string(result.backend->name) : "-";
}

Result<std::vector<platform::Device>> all_devices() {
  std::vector<platform::Device> devices;
  for (const platform::DescribedDevice& part : platform::described_devices()) {
    Result<platform::Device> device = platform::describe_device(part.name);
    if (!device) return device.why();
    devices.push_back(*std::move(device));
  }
  return devices;
}

// A device as it is, or with a switch on that makes a difference there.
struct Setting {
  platform::Device device{};
  std::string environment{};  // "VLLM_ROCM_USE_AITER=1"; empty: nothing is set
  std::vector<std::string> choices{};
};

std::vector<std::string> choices_of(const Policy& policy, oracle::Mode mode,
                                    const platform::Device& device,
                                    std::optional<platform::Variable> on) {
  std::vector<std::string> choices;
  for (const Situation& situation : kSituations) {
    Request request = request_for(device, policy, situation);
    if (on) request.environment.set(*on, "1");
    choices.push_back(choice(policy, mode, request));
  }
  return choices;
}

std::vector<Setting> settings_of(const Policy& policy, oracle::Mode mode,
                                 const std::vector<platform::Device>& devices) {
  std::vector<Setting> settings;
  const std::vector<platform::Variable> switches = switches_of(policy);
  for (const platform::Device& device : devices) {
    settings.push_back({device, {}, choices_of(policy, mode, device, std::nullopt)});
    const std::vector<std::string> plain = settings.back().choices;
    for (const platform::Variable variable : switches) {
      std::vector<std::string> choices = choices_of(policy, mode, device, variable);
      if (choices != plain)
        settings.push_back(
            {device, fmt::format("{}=1", platform::row(variable).name), std::move(choices)});
    }
  }
  return settings;
}

// Devices that get the same backend in every situation.
struct ChoiceRow {
  std::vector<std::string> devices{};
  std::string environment{};
  std::vector<std::string> choices{};

  std::string names() const {
    return join(devices, ", ") + (environment.empty() ? "" : " with " + environment);
  }
};

std::vector<ChoiceRow> choices_by_device(const Policy& policy, oracle::Mode mode,
                                         const std::vector<platform::Device>& devices) {
  std::vector<ChoiceRow> rows;
  for (Setting& setting : settings_of(policy, mode, devices)) {
    const auto same = std::ranges::find_if(rows, [&](const ChoiceRow& row) {
      return row.choices == setting.choices && row.environment == setting.environment;
    });
    if (same == rows.end())
      rows.push_back({{setting.device.name}, setting.environment, std::move(setting.choices)});
    else
      same->devices.push_back(setting.device.name);
  }
  return rows;
}

std::string_view yes(bool is) { return is ? "yes" : ""; }

// One kernel, in words.
struct KernelWords {
  std::string backend, kernel, kind, tokens, devices, activations, input, routing, limits;
  bool not_gated = false, lora = false, invariant = false;
};

KernelWords describe(const Policy& policy, oracle::Mode mode, const Backend& backend,
                     const ExpertsClass& experts) {
  const bool repaired = mode == oracle::Mode::strict && !experts.strict_devices.empty();
  return {.backend = std::string(backend.name),
          .kernel = experts.name.empty() ? "(function)" : std::string(experts.name),
          .kind = experts.kind == oracle::Kind::monolithic ? "monolithic" : "modular",
          .tokens = std::string(oracle::name(experts.format)),
          .devices = oracle::device_words(repaired ? experts.strict_devices : experts.devices),
          .activations = oracle::activation_words(experts.activations),
          .input = oracle::input_words(experts.schemes, policy.format),
          .routing = oracle::routing_words(experts.routings),
          .limits = oracle::limit_words(experts.limits),
          .not_gated = experts.not_gated,
          .lora = experts.lora,
          .invariant = experts.batch_invariant};
}

// In trial order, then those that only LoRA by name reaches.
std::vector<const ExpertsClass*> kernels_of(const Backend& backend) {
  std::vector<const ExpertsClass*> kernels(backend.experts.begin(), backend.experts.end());
  for (const ExpertsClass* experts : backend.lora_experts)
    if (std::ranges::find(kernels, experts) == kernels.end()) kernels.push_back(experts);
  return kernels;
}

std::vector<KernelWords> describe_all(const Policy& policy, oracle::Mode mode) {
  std::vector<KernelWords> kernels;
  for (const Backend* backend : policy.backends)
    for (const ExpertsClass* experts : kernels_of(*backend))
      kernels.push_back(describe(policy, mode, *backend, *experts));
  return kernels;
}

void print_markdown(const Io& io, const Policy& policy, oracle::Mode mode,
                    const std::vector<platform::Device>& devices) {
  io.out << fmt::format("\n## {}, policy {}\n\n{}.\n\n", formats::name(policy.format), policy.name,
                        policy.summary);
  io.out << "Chosen automatically:\n\n| device |";
  for (const Situation& situation : kSituations) io.out << " " << situation.title << " |";
  io.out << "\n|---|";
  for (std::size_t i = 0; i < std::size(kSituations); ++i) io.out << "---|";
  io.out << "\n";
  for (const ChoiceRow& row : choices_by_device(policy, mode, devices))
    io.out << fmt::format("| {} | {} |\n", row.names(), join(row.choices, " | "));
  io.out
      << "\nWhat each kernel can do:\n\n"
         "| backend | kernel | kind | tokens | devices | activations | input | routing | no "
         "gate | LoRA | invariant | limits |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const KernelWords& words : describe_all(policy, mode))
    io.out << fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                          words.backend, words.kernel, words.kind, words.tokens, words.devices,
                          words.activations, words.input, words.routing, yes(words.not_gated),
                          yes(words.lora), yes(words.invariant), words.limits);
}

void print_text(const Io& io, const Policy& policy, oracle::Mode mode,
                const std::vector<platform::Device>& devices) {
  io.out << fmt::format("{} weights, policy {}: {}\n\n", formats::name(policy.format), policy.name,
                        policy.summary);
  std::vector<std::vector<std::string>> table;
  std::vector<std::string> header;
  for (const Situation& situation : kSituations) header.emplace_back(situation.title);
  header.emplace_back("devices");
  table.push_back(header);
  for (const ChoiceRow& row : choices_by_device(policy, mode, devices)) {
    // The devices of a row stand last, because there may be many.
    std::vector<std::string>& line = table.emplace_back(row.choices);
    line.push_back(row.names());
  }
  std::vector<std::size_t> widths(header.size());
  for (const auto& line : table)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  for (const auto& line : table) {
    std::string result;
    for (std::size_t i = 0; i < line.size(); ++i)
      result += fmt::format("{:<{}}  ", line[i], widths[i]);
    result.erase(result.find_last_not_of(' ') + 1);
    io.out << result << "\n";
  }
  io.out << "\n-: no backend of this policy; `fp4moe explain --device NAME` says why.\n";
}

Json to_json(const Policy& policy, oracle::Mode mode,
             const std::vector<platform::Device>& devices) {
  Json choices = Json::array(), kernels = Json::array();
  for (const Setting& setting : settings_of(policy, mode, devices))
    for (std::size_t i = 0; i < std::size(kSituations); ++i) {
      const std::string& backend = setting.choices[i];
      choices.push_back(
          {{"device", setting.device.name},
           {"environment", setting.environment.empty() ? Json() : Json(setting.environment)},
           {"situation", kSituations[i].title},
           {"backend", backend == "-" ? Json() : Json(backend)}});
    }
  for (const Backend* backend : policy.backends) {
    for (const ExpertsClass* experts : kernels_of(*backend)) {
      const KernelWords words = describe(policy, mode, *backend, *experts);
      Json refused = Json::object();  // by device, for the device's own reasons
      for (const platform::Device& device : devices) {
        const oracle::Verdict verdict =
            evaluate(policy, mode, request_for(device, policy, kSituations[1]), *backend, *experts,
                     backend->activation);
        if (!verdict.accepted() && verdict.refusals.front().check == oracle::Check::device)
          refused[device.name] = oracle::name(verdict.refusals.front().reason);
      }
      kernels.push_back({{"backend", words.backend},
                         {"kernel", words.kernel},
                         {"kind", words.kind},
                         {"token_format", words.tokens},
                         {"devices", words.devices},
                         {"refused_devices", std::move(refused)},
                         {"activations", words.activations},
                         {"input", words.input},
                         {"routing", words.routing},
                         {"not_gated", words.not_gated},
                         {"lora", words.lora},
                         {"batch_invariant", words.invariant},
                         {"limits", words.limits}});
    }
  }
  return {{"policy", policy.name},
          {"format", formats::name(policy.format)},
          {"mode", oracle::kModeNames[static_cast<std::size_t>(mode)]},
          {"choices", std::move(choices)},
          {"kernels", std::move(kernels)}};
}

// The policies of a word for each format and entry.
Result<std::vector<const Policy*>> policies_of_release(const std::string& word,
                                                       const std::string& format) {
  std::vector<const Policy*> chosen;
  for (std::size_t i = 0; i < formats::kWeightFormatNames.size(); ++i) {
    if (!format.empty() && formats::kWeightFormatNames[i] != format) continue;
    for (const auto entry : {backends::Entry::gpt_oss, backends::Entry::generic}) {
      const auto found =
          backends::require_policy(word, static_cast<oracle::WeightFormat>(i), entry);
      if (!found) return found.why();
      if (std::ranges::find(chosen, *found) == chosen.end()) chosen.push_back(*found);
    }
  }
  return chosen;
}

// The policies asked for: all of them, or those of one name or format.
Result<std::vector<const Policy*>> chosen_policies(const MatrixOptions& options, bool all) {
  const auto word = runtime::policy_word(
      options.policy.empty() ? std::string(backends::kNative) : options.policy, options.vllm);
  if (!word) return word.why();
  if (!options.vllm.empty() || *word == "latest") return policies_of_release(*word, options.format);
  const std::string_view name =
      options.policy.empty() && !all ? backends::kNative : std::string_view(options.policy);
  std::vector<const Policy*> chosen;
  for (const Policy& policy : backends::policies())
    if ((name.empty() || policy.name == name) &&
        (options.format.empty() || formats::name(policy.format) == options.format))
      chosen.push_back(&policy);
  if (!chosen.empty()) return chosen;
  const auto format = formats::weight_format_from_name(options.format);
  return backends::require_policy(name, format.value_or(oracle::WeightFormat::mxfp4)).why();
}

Result<int> run_matrix(const MatrixOptions& options, const Io& io) {
  const Result<std::vector<const Policy*>> policies =
      chosen_policies(options, options.markdown && options.policy.empty() && options.vllm.empty());
  if (!policies) return policies.why();
  const Result<std::vector<platform::Device>> devices = all_devices();
  if (!devices) return devices.why();
  const oracle::Mode mode = options.mode == "compat" ? oracle::Mode::compat : oracle::Mode::strict;
  Json result = Json::array();
  if (options.markdown && !io.json)
    io.out << "# Which backend runs what\n\nGenerated by `fp4moe matrix --markdown`. A kernel runs "
              "a layer when every column holds. Devices stand for their usual installation without "
              "variables; \"with VARIABLE=1\" is a row of its own where it makes a difference. "
              "Batched tokens are DeepEP's low-latency exchange.\n";
  for (const Policy* policy : *policies) {
    if (io.json)
      result.push_back(to_json(*policy, mode, *devices));
    else if (options.markdown)
      print_markdown(io, *policy, mode, *devices);
    else
      print_text(io, *policy, mode, *devices);
  }
  if (io.json) io.print({{"policies", std::move(result)}});
  return kDone;
}

}  // namespace

Run declare_matrix(OptionSet& set) {
  auto options = std::make_shared<MatrixOptions>();
  set.add("--policy", options->policy, "One policy, or latest (default: native)")
      .listed("policies");
  set.add("--vllm", options->vllm, "Those of a release of vLLM: a version, latest or auto")
      .listed("vllm");
  set.add("--format", options->format, "One weight format").one_of({"mxfp4", "nvfp4"});
  set.add("--mode", options->mode, "strict, or compat with the reference's mistakes")
      .one_of({"strict", "compat"})
      .show_default();
  set.add("--markdown", options->markdown, "The documentation's page, for every policy");
  return [options](const Io& io) { return run_matrix(*options, io); };
}

}  // namespace fp4moe::cli
