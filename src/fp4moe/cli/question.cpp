#include "fp4moe/cli/question.hpp"

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

void declare_question(OptionSet& set, SelectionOptions& options) {
  set.group = "Device";
  set.add("--device", options.device, "This machine (auto) or a part: h100, mi355x, cpu, ...")
      .show_default()
      .listed("devices");
  set.add("--platform", options.platform, "Describe a device: cuda, rocm, xpu or cpu");
  set.add("--capability", options.capability, "Its compute capability, e.g. 9.0").as(Form::number);
  set.add("--gfx", options.gfx, "Its AMD architecture, e.g. gfx950");
  set.add("--lib", options.libraries,
          "Packages it has: NAME,... instead of the usual, +NAME or -NAME to change them")
      .separated_by_commas("NAME");
  set.add("--env", options.variables, "NAME=VALUE of a variable that steers vLLM").as(Form::pair);
  set.group = "Rules";
  declare_policy(set, options);
  set.add("--mode", options.mode, "strict, or compat with the reference's mistakes").show_default();
  set.group = "Layer";
  set.add("--format", options.format, "mxfp4 or nvfp4 (default: the model's)");
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
      set.add("--" + option, options.fields[field.key], help)
          .as(accepted.ends_with("number") || accepted.starts_with("a whole number") ? Form::number
                                                                                     : Form::word)
          .listed(option == "backend" ? "backends" : "");
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
  set.add("--all2all", options.all2all, "How ranks exchange tokens, e.g. deepep_low_latency");
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
