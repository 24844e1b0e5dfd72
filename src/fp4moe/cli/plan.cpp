// fp4moe plan: what a model's MoE layers become on each rank, for one backend or all of a policy.
//
// Exit status: 0 there is a plan, 4 the split or the backend is impossible, 2 the request is
// wrong, 3 the checkpoint is.
#include "fp4moe/plan/plan.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/all.hpp"
#include "fp4moe/backends/names.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/selection_options.hpp"

namespace fp4moe::cli {

Run declare_plan(OptionSet& set);

namespace {

using plan::BackendPlan;
using plan::Plan;

struct PlanOptions {
  std::string path{}, model{}, format{}, backend{};
  std::string mode = "strict";
  SelectionOptions request{};  // device and policy
  plan::Ranks ranks{};
};

Result<plan::Model> resolve_model(const PlanOptions& options) {
  if (options.path.empty() == options.model.empty())
    return usage("plan.model", "plan needs a checkpoint or a model")
        .expects("either PATH or --model NAME", options.path.empty() ? "neither" : "both");
  return runtime::find_model(options.path.empty() ? options.model : options.path, options.format);
}

// Leaves the backend that was asked for, or all.
Result<Done> restrict_to(const std::string& name, Plan& result) {
  if (name.empty() || name == "all") return Done{};
  const oracle::Backend* found = backends::find_by_any_name(*result.policy, name);
  if (found == nullptr) return backends::unknown_backend(std::span(&result.policy, 1), name);
  std::erase_if(result.backends, [&](const BackendPlan& row) { return row.backend != found; });
  return Done{};
}

std::string padded(double percent) {
  return percent < 0.05 ? "none" : fmt::format("+{:.1f} %", percent);
}

void line(const Io& io, std::string_view key, const std::string& value) {
  io.out << fmt::format("  {:<11} {}\n", key, value);
}

std::string split_text(const Plan& result) {
  const plan::Split& split = result.split;
  if (split.ranks == 1) return "one rank";
  if (split.parallel.use_ep)
    return fmt::format("{} ranks, whole experts: {} each", split.ranks,
                       split.max_experts == split.min_experts
                           ? std::to_string(split.max_experts)
                           : fmt::format("{} or {}", split.max_experts, split.min_experts));
  std::string parts = std::to_string(split.max_intermediate);
  if (split.min_intermediate != split.max_intermediate)
    parts += split.min_intermediate == 0 ? ", the last without any"
                                         : fmt::format(", the last {}", split.min_intermediate);
  return fmt::format("{} ranks, every expert in parts of {}", split.ranks, parts);
}

std::string fit_text(const Plan& result, const BackendPlan& backend) {
  if (!backend.fits) return "the device's memory is not known";
  const double share = 100.0 * static_cast<double>(backend.rank_bytes) /
                       static_cast<double>(result.device.memory_bytes);
  std::string text = fmt::format("{}: MoE weights are {:.1f} % of {} on {}",
                                 *backend.fits ? "fits" : "DOES NOT FIT", share,
                                 human_bytes(result.device.memory_bytes), result.device.name);
  if (!*backend.fits && !result.that_fit.empty() && backend.chosen)
    text += fmt::format("; {} would fit", fmt::join(result.that_fit, " or "));
  return text;
}

void print_header(const Io& io, const Plan& result) {
  const checkpoint::MoeShape& shape = result.model.shape;
  io.out << fmt::format("{}: {}, {} of {} x {}, {}{}\n", result.model.name,
                        counted(result.model.layers, "MoE layer"), counted(shape.experts, "expert"),
                        shape.hidden, shape.intermediate, checkpoint::name(shape.format),
                        shape.gated() ? "" : ", without a gate");
  io.out << fmt::format("{}; {}, policy {}\n", split_text(result), text(result.device),
                        result.policy->name);
  for (const std::string& note : result.model.notes) io.out << "note: " << note << "\n";
  for (const std::string& note : result.split.notes) io.out << "note: " << note << "\n";
  if (!result.no_choice.empty())
    io.out << "note: no backend is chosen: "
           << (result.nearest_miss.empty() ? result.no_choice : result.nearest_miss) << "\n";
}

std::string sizes_text(const Plan& result, const BackendPlan& backend) {
  const auto one = [](std::uint64_t before, std::uint64_t after, double percent,
                      std::string_view where) {
    if (before == after && percent < 0.05) return fmt::format("{} without padding", before);
    return fmt::format("{} -> {} ({}{})", before, after, padded(percent), where);
  };
  return fmt::format(
      "hidden {}, intermediate {}",
      one(backend.before.hidden, backend.after.hidden, backend.hidden_padding, ""),
      one(backend.before.intermediate, backend.after.intermediate, backend.intermediate_padding,
          result.split.ranks > 1 ? " over all ranks" : ""));
}

std::string converting_text(const Plan& result, const BackendPlan& backend) {
  std::string text =
      fmt::format("{}: one expert as stored and as converted", human_bytes(backend.expert_peak));
  if (result.policy->policy_date != oracle::PolicyDate::native)
    text += fmt::format(
        "; the reference {}: {}", human_bytes(backend.layer_peak),
        backend.backend->layout.empty() ? "a layer as loaded" : "a layer and its converted copy");
  return text;
}

std::string_view state(const BackendPlan& backend) {
  if (backend.chosen) return "chosen";
  return backend.refused.empty() ? "would run" : "does not run here";
}

void print_detail(const Io& io, const Plan& result, const BackendPlan& backend) {
  io.out << "\n" << io.bold(fmt::format("{} ({})", backend.backend->name, state(backend))) << "\n";
  if (!backend.refused.empty()) line(io, "refused", backend.refused);
  if (backend.impossible) {
    constexpr std::size_t kIndent = 2;
    io.out << "  " << finding_text(*backend.impossible, io.columns, kIndent);
    return;
  }
  line(io, "per rank",
       fmt::format("{} in {}, {} in one", human_bytes(backend.rank_bytes),
                   counted(result.model.layers, "layer"), human_bytes(backend.layer_bytes)));
  line(io, "memory", fit_text(result, backend));
  line(io, "sizes", sizes_text(result, backend));
  line(io, "waste",
       fmt::format("work {}, memory {} ({} on all ranks, {} without padding)",
                   padded(100 * (backend.work - 1)), padded(100 * (backend.memory - 1)),
                   human_bytes(backend.all_ranks_bytes), human_bytes(backend.real_bytes)));
  line(io, "converting", converting_text(result, backend));
  for (const oracle::Buffer& buffer : backend.buffers)
    io.out << fmt::format("  {:<24} {:<8} {:<22} {:>10}\n", buffer.name, buffer.dtype,
                          fmt::format("[{}]", fmt::join(buffer.shape, ", ")),
                          human_bytes(buffer.bytes));
}

// `all`: also those that do not run, after the others.
void print_table(const Io& io, std::vector<BackendPlan> backends, bool all) {
  const auto runs = [](const BackendPlan& row) { return row.refused.empty() && !row.impossible; };
  const auto rest = std::stable_partition(backends.begin(), backends.end(), runs);
  const auto left_out = backends.end() - rest;
  if (!all) backends.erase(rest, backends.end());
  std::size_t width = 7;
  for (const BackendPlan& row : backends) width = std::max(width, row.backend->name.size());
  if (!backends.empty())
    io.out << fmt::format("\n{:<{}}  {:>13}  {:>10}  {:>8}  {:>8}\n", "backend", width, "H x I",
                          "per rank", "work", "memory");
  for (const BackendPlan& row : backends) {
    const std::string says = row.refused.empty() ? std::string(state(row)) : row.refused;
    if (row.impossible)
      io.out << fmt::format(
          "{:<{}}  impossible: {}, found {}{}\n", row.backend->name, width, row.impossible->message,
          row.impossible->found,
          row.nearest.empty() ? "" : fmt::format("; {} would do", fmt::join(row.nearest, " or ")));
    else
      io.out << fmt::format("{:<{}}  {:>13}  {:>10}  {:>8}  {:>8}  {}\n", row.backend->name, width,
                            fmt::format("{} x {}", row.after.hidden, row.after.intermediate),
                            human_bytes(row.rank_bytes), padded(100 * (row.work - 1)),
                            padded(100 * (row.memory - 1)), says);
  }
  if (!all && left_out > 0)
    io.out << fmt::format("{} more do not run here: --backend all shows them\n", left_out);
}

// Bytes between ranks, per token and layer.
void print_wire(const Io& io, const Plan& result) {
  if (result.wire.empty()) return;
  const auto bytes = [](double number) {
    return human_bytes(static_cast<std::uint64_t>(std::llround(number)));
  };
  io.out << fmt::format("\nsent per token, rank and layer (routing even over {} experts, top {})\n",
                        result.model.shape.experts, result.model.layer.experts_per_token);
  io.out << fmt::format("{:<18}  {:<12}  {:>10}  {:>10}  {:>10}  {:>10}\n", "exchange", "tokens as",
                        "there", "back", "sum", "at worst");
  for (const plan::WireRow& row : result.wire) {
    const moe::exchange::Cost& cost = row.cost;
    const bool is_quantized = cost.activations != oracle::ActivationKey::none;
    io.out << fmt::format("{:<18}  {:<12}  {:>10}  {:>10}  {:>10}  {:>10}{}\n", cost.exchange,
                          is_quantized ? oracle::name(cost.activations) : "bf16",
                          cost.dispatch > 0 ? bytes(cost.dispatch) : "-", bytes(cost.combine),
                          bytes(cost.sum()), bytes(cost.sum_at_worst()),
                          row.used ? "  this deployment" : "");
  }
}

Result<int> run_plan(const PlanOptions& options, const Io& io) {
  auto model = resolve_model(options);
  if (!model) return model.why();
  const auto word = runtime::policy_word(options.request.policy, options.request.vllm);
  if (!word) return word.why();
  const auto chosen = backends::choose_policy(*word, model->shape.format, plan::entry_of(*model));
  if (!chosen) return chosen.why();
  auto device = resolve_device(options.request, chosen->policy);
  if (!device) return device.why();
  plan::PlanRequest request{.model = *std::move(model), .ranks = options.ranks};
  request.device = *std::move(device);
  auto environment = runtime::resolve_environment(options.request);
  if (!environment) return environment.why();
  request.environment = *std::move(environment);
  request.policy = chosen->policy;
  const auto& release = chosen->release;
  if (release && !release->note.empty()) request.model.notes.push_back(release->note);
  request.mode = options.mode == "compat" ? oracle::Mode::compat : oracle::Mode::strict;
  auto result = plan::make_plan(request);
  if (!result) return result.why();
  if (const auto fine = restrict_to(options.backend, *result); !fine) return fine.why();

  if (io.json) {
    Json json = to_json(*result);
    if (release) json["vllm"] = to_json(*release);
    io.print(json);
  } else {
    print_header(io, *result);
    const bool all = options.backend.empty() || options.backend == "all";
    const bool detail = !all || (options.backend.empty() && result->backends.front().chosen);
    if (detail) print_detail(io, *result, result->backends.front());
    if (all) print_table(io, result->backends, options.backend == "all");
    if (options.backend.empty()) print_wire(io, *result);
  }
  // The deployment fails when what it gets is impossible, whatever else there is.
  const auto is_impossible = [](const BackendPlan& row) { return row.impossible.has_value(); };
  const bool chosen_fails = !result->backends.empty() && result->backends.front().chosen &&
                            is_impossible(result->backends.front());
  return chosen_fails || std::ranges::all_of(result->backends, is_impossible)
             ? static_cast<int>(ErrorCode::no_backend)
             : kDone;
}

}  // namespace

Run declare_plan(OptionSet& set) {
  const auto options = std::make_shared<PlanOptions>();
  constexpr std::uint64_t kMax = 1u << 16;
  set.add("PATH", options->path, "A checkpoint, a config.json or a model's name")
      .as(Form::path)
      .listed("models");
  set.add("--model", options->model, "A model instead: gpt-oss-120b, openai/gpt-oss-120b, ...")
      .listed("models");
  set.add("--format", options->format, "mxfp4 or nvfp4, where the model is not told to be one");
  set.add("--backend", options->backend,
          "One backend, or all (default: the chosen one in detail, and those that run)")
      .listed("backends");
  declare_policy(set, options->request);
  set.add("--mode", options->mode, "strict, or compat with the reference's mistakes")
      .one_of({"strict", "compat"})
      .show_default();
  set.add("--device", options->request.device,
          "This machine (auto) or a part: h100, mi355x, cpu, ...")
      .show_default()
      .listed("devices");
  set.add("--lib", options->request.libraries,
          "Packages it has: NAME,... instead of the usual, +NAME or -NAME to change them")
      .separated_by_commas("NAME");
  set.add("--env", options->request.variables, "NAME=VALUE of a variable that steers vLLM")
      .as(Form::pair);
  set.add("--tp", options->ranks.tp, "Ranks that share every expert").between(1, kMax);
  set.add("--ep", options->ranks.ep, "Ranks that share out whole experts").between(1, kMax);
  set.add("--dp", options->ranks.dp, "Data-parallel ranks").between(1, kMax);
  set.add("--all2all", options->ranks.all2all,
          "How ranks exchange tokens, e.g. deepep_low_latency");
  return [options](const Io& io) { return run_plan(*options, io); };
}

}  // namespace fp4moe::cli
