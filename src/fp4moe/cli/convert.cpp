// fp4moe convert: a checkpoint into a backend's layout, for one rank or for all of them.
//
// Exit status: 0 done, 2 the request is wrong, 3 the checkpoint is, 4 no backend, 6 no memory or
// disk, 130 interrupted (go on with --resume).
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/defects.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/progress.hpp"
#include "fp4moe/cli/rank_folders.hpp"
#include "fp4moe/cli/selection_options.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "fp4moe/convert/folder/model_files.hpp"
#include "fp4moe/plan/model.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "fp4moe/runtime/target.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::cli {

Run declare_convert(OptionSet& set);

namespace {

using convert::FolderPlan;
using convert::PlannedLayer;
using convert::Recipe;

struct ConvertOptions {
  std::string path{}, out{};
  std::string backend{}, layout{}, generation{};
  std::string tp = "1", ep = "1", placement = "linear";
  std::optional<std::uint64_t> rank{};
  std::string params_dtype = "bf16";
  SelectionOptions request{};  // device and policy
  std::optional<std::uint64_t> pad_hidden{}, pad_intermediate{};
  std::size_t threads = 0;
  std::uint64_t max_memory = 0;
  bool resume = false, dry_run = false, experts_only = false;
};

// The value of --tp or --ep: "8" is a group of eight, "3/8" its rank 3.
struct RankGroup {
  std::uint64_t size = 1;
  std::optional<std::uint64_t> rank{};
};

Result<RankGroup> parse_group(std::string_view option, const std::string& given) {
  if (const auto rank = convert::rank_from_text(given)) return RankGroup{rank->size, rank->rank};
  if (const auto rank = convert::rank_from_text("0/" + given)) return RankGroup{.size = rank->size};
  return usage("convert.rank",
               fmt::format("{} is neither a number of ranks nor one of them", option))
      .expects("N, or R/N with R below N, e.g. 8 or 0/8", "'" + printable(given) + "'");
}

// The slices to convert: one, or every rank's of a group without a chosen rank.
Result<std::vector<checkpoint::Slice>> parse_slices(const ConvertOptions& options) {
  Result<RankGroup> tp = parse_group("--tp", options.tp);
  if (!tp) return tp.why();
  Result<RankGroup> ep = parse_group("--ep", options.ep);
  if (!ep) return ep.why();
  if (tp->size > 1 && ep->size > 1 && (!tp->rank || !ep->rank))
    return usage("convert.rank", "of two groups each needs a rank")
        .expects("--tp R/N --ep R/N", fmt::format("--tp {} --ep {}", options.tp, options.ep));
  RankGroup& split = ep->size > 1 ? *ep : *tp;
  if (options.rank && (split.rank || *options.rank >= split.size))
    return usage("convert.rank", "--rank is no rank of a group")
        .expects("--tp N or --ep N, and --rank below N",
                 fmt::format("--tp {} --ep {} --rank {}", options.tp, options.ep, *options.rank));
  if (options.rank) split.rank = options.rank;
  std::vector<checkpoint::Slice> slices;
  const std::uint64_t first = split.rank.value_or(0), last = split.rank.value_or(split.size - 1);
  for (split.rank = first; *split.rank <= last; ++*split.rank)
    slices.push_back({.tensor_parallel = {tp->rank.value_or(0), tp->size},
                      .expert_parallel = {ep->rank.value_or(0), ep->size},
                      .placement = convert::placement_from_name(options.placement)
                                       .value_or(checkpoint::Placement::linear)});
  return slices;
}

// How to convert, and the release of vLLM that decided it, where one was asked for.
struct ChosenRecipe {
  Recipe recipe{};
  std::optional<oracle::ReleaseChoice> release{};
  std::vector<std::string> warnings{};  // about the device
};

// The layout that was asked for, or the one the backend's kernels read.
Result<Done> choose_layout(const ConvertOptions& options, const checkpoint::Checkpoint& source,
                           ChosenRecipe& chosen) {
  Recipe& recipe = chosen.recipe;
  if (!options.layout.empty() && !options.backend.empty())
    return usage("convert.layout", "both a backend and a layout are given")
        .expects("either --backend or --layout", "both");
  if (!options.layout.empty() && !options.generation.empty()) {
    const auto layout = backends::require_layout(options.layout, options.generation);
    if (!layout) return layout.why();
    recipe.layout = *layout;
    return Done{};
  }
  const Result<platform::Device> device = resolve_device(options.request);
  if (!device) return device.why();
  const Result<plan::Model> model = plan::model_from_checkpoint(source, options.path);
  if (!model) return model.why();
  const runtime::Target target{*model, recipe.slice, *device, options.request.device != "auto"};
  if (!options.layout.empty()) {
    const auto layout = runtime::layout_for_target(options.layout, target);
    if (!layout) return layout.why();
    recipe.layout = *layout;
    return Done{};
  }
  Result<std::string> policy = runtime::policy_word(options.request.policy, options.request.vllm);
  if (!policy) return policy.why();
  const Result<runtime::Choice> choice =
      runtime::choose(*model, recipe.slice,
                      {.policy = *std::move(policy),
                       .backend = options.backend.empty() ? "auto" : options.backend,
                       .generation = options.generation,
                       .device = *device,
                       .environment = runtime::environment_for(options.request),
                       .takes_external = false});
  if (!choice) return choice.why();
  if (!options.backend.empty() && options.generation.empty()) {
    const auto found = runtime::check_target(*choice, target);
    if (!found) return found.why();
    chosen.warnings = *found;
  }
  recipe = choice->recipe(recipe.slice, model->layer.activation);
  chosen.release = choice->release;
  return Done{};
}

Result<ChosenRecipe> make_recipe(const ConvertOptions& options,
                                 const checkpoint::Checkpoint& source,
                                 const checkpoint::Slice& slice) {
  ChosenRecipe chosen;
  Recipe& recipe = chosen.recipe;
  recipe.slice = slice;
  if (Result<Done> done = choose_layout(options, source, chosen); !done) return done.why();
  recipe.params_type = options.params_dtype == "f16" ? tensor::DType::f16 : tensor::DType::bf16;
  recipe.sizing.hidden = options.pad_hidden;
  recipe.sizing.intermediate = options.pad_intermediate;
  return chosen;
}

std::string padding_text(std::uint64_t real, std::uint64_t padded) {
  return real == padded ? std::to_string(real) : fmt::format("{} -> {}", real, padded);
}

std::string rank_text(const checkpoint::Slice& slice) {
  std::string result;
  if (slice.tensor_parallel.size > 1)
    result += fmt::format(", tensor-parallel rank {}", convert::text(slice.tensor_parallel));
  if (slice.expert_parallel.size > 1)
    result += fmt::format(", expert-parallel rank {} ({})", convert::text(slice.expert_parallel),
                          convert::name(slice.placement));
  return result;
}

void print_plan(const Io& io, const FolderPlan& plan, std::size_t threads) {
  const convert::Manifest& manifest = plan.manifest;
  const PlannedLayer& first = plan.layers.front();
  const convert::Problem& problem = first.record.problem;
  io.out << fmt::format("{} -> {}{}{}: {}, {}{}, {}{}\n", manifest.dialect,
                        convert::layout_text(manifest.layout, manifest.generation),
                        manifest.backend.empty() ? "" : fmt::format(" for {}", manifest.backend),
                        rank_text(manifest.slice), counted(plan.layers.size(), "MoE layer"),
                        counted(problem.experts, "expert"), plan.layers.size() == 1 ? "" : " each",
                        human_bytes(plan.expert_bytes),
                        plan.other_bytes == 0 ? std::string()
                                              : fmt::format(" and {} of other tensors",
                                                            human_bytes(plan.other_bytes)));
  io.out << fmt::format("hidden {}, intermediate {}; at most {} of memory with {}\n",
                        padding_text(problem.real.hidden, problem.padded.hidden),
                        padding_text(problem.real.intermediate, problem.padded.intermediate),
                        human_bytes(convert::memory_of(plan, threads)), counted(threads, "thread"));
  if (!plan.recipe.layout->note.empty())
    io.out << fmt::format("note: {}\n", plan.recipe.layout->note);
}

void print_tensors(const Io& io, const FolderPlan& plan) {
  const PlannedLayer& first = plan.layers.front();
  io.out << fmt::format("{}:\n", first.record.file);
  for (const convert::PackedTensorSpec& tensor : first.tensors)
    io.out << fmt::format("  {:<14} {:<9} {:<24} {:>11}\n", tensor.name, tensor::name(tensor.dtype),
                          tensor::text(tensor.shape), human_bytes(tensor.bytes));
}

Json plan_json(const FolderPlan& plan, std::size_t threads) {
  Json layers = Json::array();
  for (const PlannedLayer& layer : plan.layers) {
    const convert::Problem& problem = layer.record.problem;
    Json tensors = Json::array();
    for (const convert::PackedTensorSpec& tensor : layer.tensors)
      tensors.push_back({{"name", tensor.name},
                         {"dtype", tensor::name(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"kernel_shape", tensor.kernel.extents},
                         {"bytes", tensor.bytes}});
    layers.push_back({{"index", layer.record.index},
                      {"prefix", layer.record.prefix},
                      {"file", layer.record.file},
                      {"experts", problem.experts},
                      {"hidden", problem.real.hidden},
                      {"hidden_padded", problem.padded.hidden},
                      {"intermediate", problem.real.intermediate},
                      {"intermediate_padded", problem.padded.intermediate},
                      {"tensors", std::move(tensors)}});
  }
  const convert::Manifest& manifest = plan.manifest;
  return {{"command", "convert"},
          {"layout", manifest.layout},
          {"generation", manifest.generation},
          {"backend", manifest.backend},
          {"dialect", manifest.dialect},
          {"tp", convert::text(manifest.slice.tensor_parallel)},
          {"ep", convert::text(manifest.slice.expert_parallel)},
          {"placement", convert::name(manifest.slice.placement)},
          {"expert_bytes", plan.expert_bytes},
          {"other_bytes", plan.other_bytes},
          {"threads", threads},
          {"memory_bytes", convert::memory_of(plan, threads)},
          {"layers", std::move(layers)}};
}

std::string resumed_text(const convert::ConvertReport& report) {
  if (report.resumed_files + report.damaged_files == 0) return {};
  return fmt::format(" ({} found finished{})", report.resumed_files,
                     report.damaged_files == 0 ? ""
                                               : fmt::format(", {} found damaged and written again",
                                                             report.damaged_files));
}

void print_report(const Io& io, const convert::ConvertReport& report, const std::string& out) {
  for (const std::string& loss : report.losses)
    io.out << fmt::format("cannot be undone: {}\n", loss);
  for (const std::string& warning : report.warnings)
    io.out << fmt::format("warning: {} (fp4moe lint --fix reconcile-global-scale)\n", warning);
  const double bytes = static_cast<double>(report.expert_bytes + report.other_bytes);
  io.out << fmt::format(
      "{}: {} of tensors{} in {:.2f} s, {}/s\n", out, counted(report.files, "file"),
      resumed_text(report), report.seconds,
      human_bytes(static_cast<std::uint64_t>(report.seconds > 0 ? bytes / report.seconds : 0)));
}

// One slice into one folder.
Result<Json> convert_slice(const ConvertOptions& options, const checkpoint::Checkpoint& source,
                           const checkpoint::Slice& slice, const std::string& out,
                           const std::string& sibling, const Io& io) {
  const Result<ChosenRecipe> chosen = make_recipe(options, source, slice);
  if (!chosen) return chosen.why();
  // Opening read headers all over the files; their pages are not needed again.
  for (const tensor::MappedFile& file : source.store().files()) file.drop(file.bytes());
  Result<FolderPlan> plan = convert::plan_folder(source, options.path, chosen->recipe,
                                                 {.experts_only = options.experts_only});
  if (!plan) return plan.why();
  const auto threads = convert::threads_within(
      *plan, options.threads == 0 ? io.threads : options.threads, options.max_memory);
  if (!threads) return threads.why();
  Json json = plan_json(*plan, *threads);
  json["dry_run"] = options.dry_run;
  json["device_warnings"] = chosen->warnings;
  if (chosen->release) json["vllm"] = to_json(*chosen->release);
  if (chosen->release && !io.json && !chosen->release->note.empty())
    io.out << fmt::format("note: {}\n", chosen->release->note);
  if (!io.json) print_plan(io, *plan, *threads);
  for (const std::string& warning : chosen->warnings)
    if (!io.json) io.out << "warning: " << warning << "\n";
  if (options.dry_run) {
    if (!io.json) print_tensors(io, *plan);
    return json;
  }
  const Result<convert::ConvertReport> report = [&] {
    Progress progress(io, "convert", plan->expert_bytes + plan->other_bytes);
    return convert::convert_folder(
        source, *std::move(plan), out,
        {.threads = *threads,
         .max_memory = options.max_memory,
         .resume = options.resume,
         .sibling = sibling,
         .progress = [&progress](std::uint64_t bytes) { progress.add(bytes); }});
  }();
  if (!report) return report.why();
  if (!io.json) print_report(io, *report, out);
  json.update({{"out", out},
               {"files", report->files},
               {"resumed_files", report->resumed_files},
               {"damaged_files", report->damaged_files},
               {"linked_files", report->linked_files},
               {"losses", report->losses},
               {"warnings", report->warnings},
               {"seconds", report->seconds}});
  return json;
}

// OUT/rank-3 of a group whose ranks are all converted; with --resume those that are there stay.
// Tensors that all ranks have lie on the disk once, and OUT itself is the model folder.
Result<Json> convert_ranks(const ConvertOptions& options, const checkpoint::Checkpoint& source,
                           const std::vector<checkpoint::Slice>& slices, const Io& io) {
  tensor::ParentFolder parent;
  if (!options.dry_run) {
    Result<tensor::ParentFolder> result = tensor::ParentFolder::create(options.out);
    if (!result) return result.why();
    parent = *std::move(result);
  }
  std::error_code code;
  const std::string first = rank_folder_name(0);
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < slices.size(); ++rank) {
    const std::string out = fmt::format("{}/{}", options.out, rank_folder_name(rank));
    if (options.resume && std::filesystem::exists(out, code)) {
      if (!io.json) io.out << fmt::format("{}: found finished\n", out);
      ranks.push_back({{"out", out}, {"found_finished", true}});
      continue;
    }
    const std::string sibling = rank == 0 ? "" : options.out + "/" + first;
    Result<Json> done = convert_slice(options, source, slices[rank], out, sibling, io);
    if (!done) return done.why();
    ranks.push_back(*std::move(done));
  }
  if (!options.dry_run)
    if (Result<Done> done = convert::write_parent(options.out, first); !done) return done.why();
  return Json{{"command", "convert"}, {"out", options.out}, {"ranks", std::move(ranks)}};
}

Result<int> run_convert(const ConvertOptions& options, const Io& io) {
  if (options.out.empty() && !options.dry_run)
    return usage("convert.out", "say where to write: -o OUT");
  const Result<std::vector<checkpoint::Slice>> slices = parse_slices(options);
  if (!slices) return slices.why();
  const Result<checkpoint::Checkpoint> source = checkpoint::Checkpoint::open(options.path);
  if (!source) return source.why();
  const checkpoint::LintOptions scalars{.scalars_only = true, .threads = io.threads};
  warn_of_defects(checkpoint::lint(source->store(), options.path, scalars), io);
  const InterruptGuard guard;
  const Result<Json> json =
      slices->size() == 1 ? convert_slice(options, *source, slices->front(), options.out, {}, io)
                          : convert_ranks(options, *source, *slices, io);
  if (!json) return json.why();
  if (options.dry_run) {
    if (io.json)
      io.print(*json);
    else
      io.out << "nothing was written (--dry-run)\n";
    return kDone;
  }
  if (io.json) io.print(*json);
  return kDone;
}

}  // namespace

Run declare_convert(OptionSet& set) {
  const auto options = std::make_shared<ConvertOptions>();
  set.add("PATH", options->path, "Checkpoint: folder, index or file").as(Form::path).required();
  set.add("-o,--out", options->out, "Folder to create").as(Form::path);
  set.add("--backend", options->backend,
          "Backend to convert for (default: what the policy selects on the device)")
      .listed("backends");
  set.add("--layout", options->layout, "A layout instead, e.g. marlin.mxfp4").listed("layouts");
  set.add("--generation", options->generation,
          "Of the layout (default: the backend's, or the newest)");
  declare_policy(set, options->request);
  set.add("--device", options->request.device,
          "This machine (auto) or a part: h100, mi355x, cpu, ...")
      .show_default()
      .listed("devices");
  set.add("--tp", options->tp, "Ranks that share every expert; R/N: rank R of N alone")
      .as(Form::rank)
      .show_default();
  set.add("--ep", options->ep, "Ranks that share out whole experts; R/N: rank R of N alone")
      .as(Form::rank)
      .show_default();
  set.add("--rank", options->rank,
          "Convert this rank of --tp N or --ep N alone (default: all, into OUT/rank-0, ...)");
  set.add("--placement", options->placement, "Which experts a rank gets")
      .one_of({"linear", "round-robin"})
      .show_default();
  set.add("--pad-hidden", options->pad_hidden, "Padded hidden size, by hand");
  set.add("--pad-intermediate", options->pad_intermediate,
          "Padded intermediate size of a rank, by hand");
  set.add("--params-dtype", options->params_dtype, "Type of the model's parameters")
      .one_of({"bf16", "f16"})
      .show_default();
  set.add_threads(options->threads);
  set.add("--max-memory", options->max_memory, "Memory to stay within, e.g. 2GB")
      .in_bytes("no limit");
  set.add("--resume", options->resume,
          "Go on where a stopped run left off; finished files are read once and checked");
  set.add("--experts-only", options->experts_only, "Leave the other tensors out");
  set.add("--dry-run", options->dry_run, "Say what would be written, write nothing");
  return [options](const Io& io) { return run_convert(*options, io); };
}

}  // namespace fp4moe::cli
