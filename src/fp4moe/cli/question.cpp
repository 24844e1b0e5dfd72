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

constexpr std::uint64_t kMostRanks = 1u << 16;

}  // namespace

void declare_question(CLI::App& app, QuestionOptions& options) {
  add_option(app, "--device", options.device,
             "This machine (auto) or a part: h100, mi355x, cpu, ...")
      .show_default();
  add_option(app, "--platform", options.platform, "Describe a device: cuda, rocm, xpu or cpu");
  add_option(app, "--capability", options.capability, "Its compute capability, e.g. 9.0");
  add_option(app, "--gfx", options.gfx, "Its AMD architecture, e.g. gfx950");
  add_option(app, "--lib", options.libraries,
             "Packages it has: NAME,... instead of the usual, +NAME or =-NAME to change them")
      .separated_by_commas("NAME");
  add_option(app, "--env", options.variables, "NAME=VALUE of a variable that steers vLLM");
  add_option(app, "--policy", options.policy, "Whose rules: native, or a date of vLLM")
      .show_default();
  add_option(app, "--mode", options.mode, "strict, or compat with the reference's mistakes")
      .show_default();
  add_option(app, "--format", options.format, "mxfp4 or nvfp4 (default: the model's)");
  add_option(app, "--model", options.model, "Take the layer from a model: gpt-oss-20b, ...");
  add_option(app, "--config", options.config, "Take the layer from a JSON file");
  for (const oracle::LayerField& field : oracle::layer_fields()) {
    const std::string option(field.option), help(field.help);
    if (field.accepted() == "true, false") {
      add_flag(app, "--" + option, options.on[field.key], help);
      add_flag(app, "--no-" + option, options.off[field.key], "not: " + help);
    } else {
      add_option(app, "--" + option, options.fields[field.key], help);
    }
  }
  add_option(app, "--tp", options.tp, "Tensor-parallel size").between(1, kMostRanks);
  add_option(app, "--pcp", options.pcp, "Prefill-context-parallel size").between(1, kMostRanks);
  add_option(app, "--dp", options.dp, "Data-parallel size").between(1, kMostRanks);
  add_option(app, "--sp", options.sp, "Sequence-parallel size").between(1, kMostRanks);
  add_flag(app, "--ep", options.expert_parallel, "Split the experts over all ranks");
  add_flag(app, "--eplb", options.eplb, "Balance the experts' load");
  add_option(app, "--all2all", options.all2all,
             "How ranks exchange tokens, e.g. deepep_low_latency");
}

std::string text(const Device& device) {
  std::string made = fmt::format("{} ({}", device.name, platform::name(device.kind));
  if (!device.gfx.empty())
    made += " " + device.gfx;
  else if (device.capability)
    made += " " + platform::text(*device.capability);
  std::vector<std::string> libraries;
  for (std::size_t i = 0; i < platform::kLibraryNames.size(); ++i)
    if (device.libraries.contains(static_cast<Library>(i)))
      libraries.emplace_back(platform::kLibraryNames[i]);
  if (!libraries.empty()) made += "; " + join(libraries, ", ");
  return made + ")";
}

}  // namespace fp4moe::cli
