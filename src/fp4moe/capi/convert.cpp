// fp4moe_convert: what the command convert does, without its terminal.
#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/backends/layouts.hpp"
#include "fp4moe/capi/border.hpp"
#include "fp4moe/convert/folder/convert_folder.hpp"
#include "fp4moe/plan/model.hpp"
#include "fp4moe/runtime/choice.hpp"
#include "fp4moe/runtime/target.hpp"

namespace fp4moe::capi {
namespace {

// The layout that was asked for, or the one the backend's kernels read.
Result<convert::Recipe> make_recipe(const checkpoint::Checkpoint& source, const std::string& path,
                                    const fp4moe_convert_options& options) {
  const Result<checkpoint::Rank> tp = rank_of(options.tp_rank, options.tp_size, "tensor-parallel");
  if (!tp) return tp.why();
  const Result<checkpoint::Rank> ep = rank_of(options.ep_rank, options.ep_size, "expert-parallel");
  if (!ep) return ep.why();
  convert::Recipe recipe{.slice = {.tensor_parallel = *tp, .expert_parallel = *ep}};
  const std::string backend = text_or(options.backend, ""), layout = text_or(options.layout, "");
  const std::string generation = text_or(options.generation, "");
  if (!layout.empty() && !backend.empty())
    return usage("convert.layout", "both a backend and a layout are given")
        .expects("either a backend or a layout", "both");
  if (!layout.empty() && !generation.empty()) {
    const auto found = backends::require_layout(layout, generation);
    if (!found) return found.why();
    recipe.layout = *found;
    return recipe;
  }
  const Result<platform::Device> device = device_of(options.device);
  if (!device) return device.why();
  const Result<plan::Model> model = plan::model_from_checkpoint(source, path);
  if (!model) return model.why();
  const runtime::Target target{*model, recipe.slice, *device,
                               text_or(options.device, "auto") != "auto"};
  if (!layout.empty()) {
    const auto found = runtime::layout_for_target(layout, target);
    if (!found) return found.why();
    recipe.layout = *found;
    return recipe;
  }
  const Result<runtime::Choice> choice =
      runtime::choose(*model, recipe.slice,
                      {.policy = text_or(options.policy, "native"),
                       .backend = backend.empty() ? "auto" : backend,
                       .generation = generation,
                       .device = *device,
                       .takes_external = false});
  if (!choice) return choice.why();
  if (!backend.empty() && generation.empty()) {
    const auto warnings = runtime::check_target(*choice, target);
    if (!warnings) return warnings.why();
    log_all(FP4MOE_LOG_WARNING, *warnings);
  }
  return choice->recipe(recipe.slice, model->layer.activation);
}

struct ConvertCall {
  const char *checkpoint, *out;
  const fp4moe_convert_options* options;
  char** report;
};

Result<Done> convert_checkpoint(const ConvertCall& call) {
  if (call.report != nullptr) *call.report = nullptr;
  const Result<std::string> path = require_text(call.checkpoint, "the checkpoint's path");
  if (!path) return path.why();
  const Result<std::string> out = require_text(call.out, "the new folder's path");
  if (!out) return out.why();
  const auto options = take_options(call.options, "fp4moe_convert_options");
  if (!options) return options.why();
  const Result<std::size_t> backend_request = threads_of(options->threads);
  if (!backend_request) return backend_request.why();
  const Result<checkpoint::Checkpoint> source = checkpoint::Checkpoint::open(*path);
  if (!source) return source.why();
  const Result<convert::Recipe> recipe = make_recipe(*source, *path, *options);
  if (!recipe) return recipe.why();
  Result<convert::FolderPlan> plan =
      convert::plan_folder(*source, *path, *recipe, {.experts_only = options->experts_only != 0});
  if (!plan) return plan.why();
  const auto threads = convert::threads_within(*plan, *backend_request, options->max_memory);
  if (!threads) return threads.why();
  Json json{{"layout", plan->manifest.layout},
            {"generation", plan->manifest.generation},
            {"backend", plan->manifest.backend},
            {"dialect", plan->manifest.dialect},
            {"tp", convert::text(plan->manifest.slice.tensor_parallel)},
            {"ep", convert::text(plan->manifest.slice.expert_parallel)}};
  const auto report = convert::convert_folder(
      *source, *std::move(plan), *out,
      {.threads = *threads, .max_memory = options->max_memory, .resume = options->resume != 0});
  if (!report) return report.why();
  log_all(FP4MOE_LOG_WARNING, report->warnings);
  log_all(FP4MOE_LOG_NOTE, report->losses);
  if (call.report == nullptr) return Done{};
  json.update({{"out", *out},
               {"layers", report->layers},
               {"experts", report->experts},
               {"expert_bytes", report->expert_bytes},
               {"other_bytes", report->other_bytes},
               {"files", report->files},
               {"resumed_files", report->resumed_files},
               {"damaged_files", report->damaged_files},
               {"threads", report->threads},
               {"losses", report->losses},
               {"warnings", report->warnings},
               {"seconds", report->seconds}});
  return give(json, call.report);
}

}  // namespace
}  // namespace fp4moe::capi

extern "C" fp4moe_status fp4moe_convert(const char* checkpoint, const char* out,
                                        const fp4moe_convert_options* options, char** report) {
  return fp4moe::capi::guarded([&] {
    return fp4moe::capi::convert_checkpoint({checkpoint, out, options, report});
  });
}
