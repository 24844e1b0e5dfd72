#include "fp4moe/cli/selection_options.hpp"

#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/oracle/layer_fields.hpp"

namespace fp4moe::cli {
namespace {

using platform::Device;
using platform::Library;

constexpr std::uint64_t kMaxRanks = 1u << 16;

template <class Names>
std::vector<std::string> names_of(const Names& names) {
  return {names.begin(), names.end()};
}

// "VLLM_BATCH_INVARIANT="
std::vector<std::string> variables_to_set() {
  std::vector<std::string> result;
  for (const platform::VariableRow& row : platform::variables())
    result.push_back(std::string(row.name) + "=");
  return result;
}

// The words of "silu, gelu".
std::vector<std::string> words_in(std::string_view text) {
  std::vector<std::string> result;
  for (const std::string_view part : split(text, ',')) {
    const std::size_t begin = part.find_first_not_of(' ');
    if (begin != part.npos) result.emplace_back(part.substr(begin));
  }
  return result;
}

}  // namespace

void declare_policy(OptionSet& set, SelectionOptions& options) {
  set.add("--policy", options.policy,
          options.policy.empty() ? "Whose rules: native, a policy of vLLM, or latest (default: "
                                   "native here, latest for a described device)"
                                 : "Whose rules: native, a policy of vLLM, or latest")
      .show_default()
      .listed("policies");
  set.add("--vllm", options.vllm,
          "The rules of this release of vLLM instead: a version, latest, or auto for the installed")
      .listed("vllm");
}

void declare_selection(OptionSet& set, SelectionOptions& options) {
  set.group = "Device";
  set.add("--device", options.device, "This machine (auto) or a part: h100, mi355x, cpu, ...")
      .show_default()
      .listed("devices");
  set.add("--platform", options.platform, "Describe a device: cuda, rocm, xpu or cpu")
      .offering(names_of(platform::kPlatformNames));
  set.add("--capability", options.capability, "Its compute capability, e.g. 9.0").as(Form::number);
  set.add("--gfx", options.gfx, "Its AMD architecture, e.g. gfx950");
  set.add("--lib", options.libraries,
          "Packages it has: NAME,... instead of the usual, +NAME or -NAME to change them")
      .separated_by_commas("NAME")
      .offering(names_of(platform::kLibraryNames));
  set.add("--env", options.variables, "NAME=VALUE of a variable that steers vLLM")
      .as(Form::pair)
      .offering(variables_to_set());
  set.group = "Rules";
  declare_policy(set, options);
  set.add("--mode", options.mode, "strict, or compat with the reference's mistakes")
      .show_default()
      .offering(names_of(oracle::kModeNames));
  set.group = "Layer";
  set.add("--format", options.format, "mxfp4 or nvfp4 (default: the model's)")
      .offering(names_of(formats::kWeightFormatNames));
  set.add("--model", options.model,
          "The model: gpt-oss-20b, openai/gpt-oss-120b, a checkpoint or a config.json")
      .listed("models");
  set.add("--config", options.config, "Take the layer's fields, or the model, from a JSON file")
      .as(Form::path);
  for (const oracle::LayerField& field : oracle::layer_fields()) {
    const std::string option(field.option), help(field.help);
    const std::string accepted = field.accepted();
    if (accepted == "true, false") {
      set.add("--" + option, options.on[field.key], help);
      set.add("--no-" + option, options.off[field.key], "not: " + help);
    } else {
      const bool is_number = accepted.ends_with("number") || accepted.starts_with("a whole number");
      Option& added = set.add("--" + option, options.fields[field.key], help)
                          .as(is_number ? Form::number : Form::word)
                          .listed(option == "backend" ? "backends" : "");
      if (!is_number && option != "backend") added.offering(words_in(accepted));
    }
  }
  set.group = "Ranks";
  set.add("--tp", options.tp, "Tensor-parallel size").between(1, kMaxRanks);
  set.add("--pcp", options.pcp, "Prefill-context-parallel size").between(1, kMaxRanks);
  set.add("--dp", options.dp, "Data-parallel size").between(1, kMaxRanks);
  set.add("--sp", options.sp, "Sequence-parallel size").between(1, kMaxRanks);
  set.add("--ep", options.ep, "Ranks that share out whole experts; alone: all ranks there are")
      .between(std::uint64_t{0}, kMaxRanks)
      .or_alone("0");
  set.add("--eplb", options.eplb, "Balance the experts' load");
  set.add("--all2all", options.all2all, "How ranks exchange tokens, e.g. deepep_low_latency")
      .offering(names_of(oracle::exchange_names(oracle::PolicyDate::vllm_033)));
  set.group = "";
}

std::string text(const Device& device) {
  std::string result = fmt::format("{} ({}", device.name, platform::name(device.kind));
  if (!device.gfx.empty())
    result += " " + device.gfx;
  else if (device.capability)
    result += " " + platform::text(*device.capability);
  std::vector<std::string> libraries;
  for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i)
    if (device.libraries.contains(static_cast<Library>(i)))
      libraries.emplace_back(platform::kLibraryNames[i]);
  if (!libraries.empty()) result += "; " + join(libraries, ", ");
  return result + ")";
}

}  // namespace fp4moe::cli
