#include "fp4moe/checkpoint/lint/lint.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/parallel.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/lint/lint_expert.hpp"
#include "fp4moe/checkpoint/survey.hpp"

namespace fp4moe::checkpoint {
namespace {

// clang-format off
constexpr LintRule kRules[] = {
    {"scale.nan", Severity::error, "a block scale is NaN: every value of its block would be NaN",
     "Fetch the file again; if it is as published, report it to its publisher", ""},
    {"scale.negative_gguf", Severity::error, "a block scale has a sign, which GGUF scales do not have",
     "Write the file again from its source", ""},
    {"scale.global", Severity::error, "a global scale is zero, negative, infinite or NaN",
     "Export the checkpoint again: the scale cannot be recovered from the codes", ""},
    {"scale.input_missing", Severity::error, "an expert has no input scale though others of its layer have: calibration never reached it, and kernels divide by what happens to be there",
     "Fill it with the largest of the layer, or drop input scales", "fill-input-scale"},
    {"scale.input", Severity::error, "an input scale is zero, negative, infinite or NaN",
     "Fill it with the largest of the layer, or drop input scales", "fill-input-scale"},
    {"bias.not_finite", Severity::error, "a bias is infinite or NaN",
     "Fetch the file again; if it is as published, report it to its publisher", ""},
    {"scale.global_inverted", Severity::warning, "a global scale looks like its own reciprocal: the two conventions were mixed up",
     "Compare with the source; if it is so, invert it", "invert-global-scale"},
    {"scale.global_mismatch", Severity::warning, "gate and up have different global scales: engines that fuse them use the gate's for both",
     "Give both the same global scale", "reconcile-global-scale"},
    {"scale.negative", Severity::warning, "a block scale is negative: legal in E4M3, but no quantizer writes it and GGUF cannot hold it",
     "Compare with the source", ""},
    {"scale.zero_row", Severity::warning, "a row has codes, but all its block scales are zero",
     "Compare with the source", ""},
    {"expert.zero", Severity::warning, "an expert has only zero weights",
     "Compare with the source", ""},
    {"padding.not_zero", Severity::warning, "the tensors are larger than the configuration says, and the rest is not zero",
     "Compare the sizes with the source's configuration", ""},
    {"index.total_size", Severity::warning, "the index gives a wrong total size",
     "Write the index again", "total-size"},
    {"index.unreadable", Severity::warning, "the index cannot be read, though the tensors were found",
     "Write the index again", "total-size"},
    {"config.excluded", Severity::warning, "the configuration excludes experts that are quantized: engines will look for unquantized ones",
     "Take the pattern out of the list", ""},
    {"config.not_excluded", Severity::warning, "a layer's experts are not FP4, and the configuration does not exclude them",
     "Add them to the list of excluded modules", ""},
    {"layer.gap", Severity::warning, "layers are missing between the first and the last",
     "Fetch the missing shards", ""},
    {"layer.shape", Severity::warning, "a layer's shape differs from that of the layers before it",
     "Make sure that all files are of one model", ""},
    {"tensor.extra", Severity::warning, "a tensor of an expert has no known use",
     "Make sure that no quantizer's leftovers remain", ""},
    {"scale.zero_block", Severity::note, "a block has codes but a zero scale: its values are zero",
     "Nothing to do if the source's weights are tiny there", ""},
    {"scale.input_none", Severity::note, "no input scales: activations will be scaled dynamically or kept in 16 bits",
     "None needed for weight-only use", ""},
};
// clang-format on

const LintRule* find_rule(std::string_view code) {
  for (const LintRule& rule : kRules) {
    if (rule.code == code) return &rule;
  }
  return nullptr;
}

class Collector {
 public:
  explicit Collector(LintReport& report) : report_(report) {}

  // A finding of a known rule.
  void add(std::string_view code, Finding finding) {
    const LintRule* rule = find_rule(code);
    finding.code = code;
    if (rule != nullptr) {
      finding.severity = rule->severity;
      finding.remedy = rule->remedy;
      finding.fix = rule->fix;
    }
    keep(std::move(finding));
  }
  void add(const Error& why, std::string file = {}) {
    if (why.code == ErrorCode::exhausted) {  // no defect of the checkpoint
      if (!report_.exhausted) report_.exhausted = why;
      return;
    }
    std::string fact = why.message;
    if (!why.expected.empty()) fact += "; expected " + why.expected;
    if (!why.found.empty()) fact += (why.expected.empty() ? "; found " : ", found ") + why.found;
    keep({.code = why.id,
          .severity = Severity::error,
          .file = why.path.empty() ? std::move(file) : why.path,
          .tensor = why.tensor,
          .fact = std::move(fact),
          .remedy = why.remedy});
  }
  // Errors first; within a code as they came, which is by layer and expert.
  void finish() {
    std::stable_sort(report_.findings.begin(), report_.findings.end(),
                     [](const Finding& a, const Finding& b) {
                       return std::tie(a.severity, a.code) < std::tie(b.severity, b.code);
                     });
  }

 private:
  void keep(Finding finding) {
    if (finding.file.empty()) finding.file = report_.path;
    ++(finding.severity == Severity::error     ? report_.errors
       : finding.severity == Severity::warning ? report_.warnings
                                               : report_.notes);
    if (++report_.counts[finding.code] <= LintReport::kMaxFindings) {
      report_.findings.push_back(std::move(finding));
    }
  }
  LintReport& report_;
};

void check_index(const tensor::Store& store, Collector& into) {
  const std::string folder = store.folder().empty() ? "." : store.folder();
  const std::string name = "model.safetensors.index.json", path = folder + "/" + name;
  std::error_code failed;
  if (store.kind() != tensor::StoreKind::safetensors ||
      !std::filesystem::is_regular_file(path, failed)) {
    return;
  }
  const auto inside = tensor::file_inside(folder, name);
  const Result<Json> index = inside ? read_json_file(path) : Result<Json>(inside.why());
  if (!index && index.why().code == ErrorCode::exhausted) return into.add(index.why());
  if (!index) {
    into.add("index.unreadable", {.file = path, .fact = index.why().message});
    return;
  }
  if (!index->is_object()) return;  // the store refuses it when it needs it
  const auto metadata = index->find("metadata");
  if (metadata == index->end() || !metadata->is_object()) return;
  const auto total = metadata->find("total_size");
  if (total == metadata->end()) return;
  std::uint64_t bytes = 0;
  for (const tensor::StoredTensor& tensor : store.tensors()) bytes += tensor.entry.bytes;
  // Some writers give the number as a float.
  const bool same = total->is_number_unsigned() ? total->get<std::uint64_t>() == bytes
                    : total->is_number()        ? total->get<double>() == static_cast<double>(bytes)
                                                : false;
  if (same) return;
  into.add("index.total_size", {.file = path,
                                .fact = fmt::format("the tensors have {} bytes, total_size is {}",
                                                    bytes, printable(total->dump()))});
}

std::string experts_module(std::string_view prefix) {
  return std::string(prefix) + "experts.0.up_proj";
}

// The file of a layer's first expert.
std::string file_of(const tensor::Store& store, const LayerTensors& layer) {
  if (layer.up.empty() || layer.up[0].codes.tensor == nullptr) return {};
  return store.path(*layer.up[0].codes.tensor);
}

void check_exclusions(const tensor::Store& store, const Survey& found, Collector& into) {
  for (const QuantClaim& claim : found.facts.claims) {
    for (const LayerTensors& layer : found.layers) {
      const std::string* pattern = claim.excluded.find(experts_module(layer.prefix));
      if (pattern == nullptr) continue;
      into.add("config.excluded",
               {.file = store.path_of(claim.source),
                .layer = layer.index,
                .tensor = layer.prefix,
                .fact = fmt::format("{} lists \"{}\"", claim.source, printable(*pattern))});
    }
    for (const OtherLayer& layer : found.others) {
      if (found.row == nullptr) break;
      if (claim.excluded.find(experts_module(layer.prefix)) != nullptr) continue;
      into.add("config.not_excluded",
               {.file = store.path_of(claim.source),
                .layer = layer.index,
                .tensor = layer.prefix,
                .fact = fmt::format("the experts are {}; {} does not list them", layer.what,
                                    claim.source)});
    }
  }
}

// A layer between the two of which the store holds no tensor at all. Layers without experts
// (attention, dense, state space) have others.
std::optional<std::uint64_t> lost_layer(const tensor::Store& store, const LayerTensors& before,
                                        const LayerTensors& after) {
  constexpr std::uint64_t kMax = 1000;  // numbers are claims
  const std::string root(prefix_family(after.prefix).before);
  const auto tensors = store.tensors();
  for (std::uint64_t n = before.index + 1; n < std::min(after.index, before.index + kMax); ++n) {
    const std::string start = root + std::to_string(n) + ".";
    const auto at = std::lower_bound(
        tensors.begin(), tensors.end(), start,
        [](const tensor::StoredTensor& t, const std::string& s) { return t.entry.name < s; });
    if (at == tensors.end() || !at->entry.name.starts_with(start)) return n;
  }
  return std::nullopt;
}

// Gaps in the numbers (every second layer dense is a pattern, not a gap) and odd ones out.
void check_layers(const tensor::Store& store, const Survey& found, const LintReport& report,
                  Collector& into) {
  // Missing experts were reported; the shape they leave is no news.
  const bool complete = !report.counts.contains("layer.missing_expert") &&
                        !report.counts.contains("layer.extra_expert") &&
                        !report.counts.contains("config.mismatch");
  std::uint64_t step = 0;
  for (std::size_t i = 1; i < found.layers.size(); ++i) {
    const LayerTensors &before = found.layers[i - 1], &layer = found.layers[i];
    if (!(prefix_family(before.prefix) == prefix_family(layer.prefix))) {
      step = 0;
      continue;
    }
    if (layer.index > before.index) {
      const std::uint64_t distance = layer.index - before.index;
      step = step == 0 ? distance : std::gcd(step, distance);
    }
    if (layer.shape.hidden != before.shape.hidden ||
        layer.shape.intermediate != before.shape.intermediate ||
        (complete && layer.shape.experts != before.shape.experts)) {
      into.add(
          "layer.shape",
          {.file = file_of(store, layer),
           .layer = layer.index,
           .tensor = layer.prefix,
           .fact = fmt::format("{} experts of {} x {} after {} of {} x {}", layer.shape.experts,
                               layer.shape.hidden, layer.shape.intermediate, before.shape.experts,
                               before.shape.hidden, before.shape.intermediate)});
    }
  }
  for (std::size_t i = 1; i < found.layers.size(); ++i) {
    const LayerTensors &before = found.layers[i - 1], &layer = found.layers[i];
    const bool same = prefix_family(before.prefix) == prefix_family(layer.prefix);
    if (!same || step == 0 || layer.index <= before.index + step) continue;
    const std::optional<std::uint64_t> lost = lost_layer(store, before, layer);
    if (!lost) continue;
    into.add("layer.gap",
             {.file = file_of(store, layer),
              .layer = layer.index,
              .tensor = layer.prefix,
              .fact = fmt::format("layer {} follows layer {}; there is no tensor of {}",
                                  layer.index, before.index, *lost)});
  }
}

void check_values(const tensor::Store& store, const Survey& found, const LintOptions& options,
                  LintReport& report, Collector& into) {
  struct Item {
    const LayerTensors* layer;
    std::uint64_t expert;
  };
  std::vector<Item> items;
  for (const LayerTensors& layer : found.layers) {
    // Broken layers may claim more experts than they have tensors for.
    const bool apart = layer.row->grouping == Grouping::per_expert;
    const std::uint64_t experts = apart ? layer.up.size() : layer.shape.experts;
    if (options.layer && *options.layer != layer.index) continue;
    ++report.layers;
    if (layer.shape.hidden == 0) continue;
    for (std::uint64_t expert = 0; expert < experts; ++expert) items.push_back({&layer, expert});
  }
  std::vector<ExpertScan> scans(items.size());
  const auto done = parallel_for(options.threads, items.size(), [&](std::size_t i) {
    if (const auto fine = check_interrupt(); !fine) return Result<Done>(fine.why());
    const MoeShape& shape = items[i].layer->shape;
    const ModelConfig& config = found.facts.model;
    scans[i] = scan_expert(store, *items[i].layer, items[i].expert,
                           {.deep = options.deep,
                            .scalars_only = options.scalars_only,
                            .hidden = config.hidden.value_or(shape.hidden),
                            .intermediate = config.intermediate.value_or(shape.intermediate)});
    if (options.progress) options.progress(scans[i].bytes_read);
    return Result<Done>(Done{});
  });
  report.interrupted = !done;
  const bool any_input = std::ranges::any_of(
      found.layers, [](const LayerTensors& layer) { return layer.shape.has_input_scale; });
  for (std::size_t i = 0; i < items.size(); ++i) {
    report.bytes_read += scans[i].bytes_read;
    for (Observation& seen : scans[i].found) {
      into.add(seen.code,
               {.file = seen.tensor != nullptr ? store.path(*seen.tensor)
                                               : file_of(store, *items[i].layer),
                .layer = items[i].layer->index,
                .expert = items[i].expert,
                .tensor = seen.tensor != nullptr ? seen.tensor->entry.name : seen.missing,
                .fact = std::move(seen.fact)});
    }
  }
  report.experts = items.size();
  if (!any_input && found.row != nullptr && found.row->format == WeightFormat::nvfp4) {
    into.add("scale.input_none", {.fact = "the checkpoint is weight-only"});
  }
}

}  // namespace

std::string_view name(Severity severity) {
  return severity == Severity::error ? "error" : severity == Severity::warning ? "warning" : "note";
}

std::span<const LintRule> lint_rules() { return kRules; }

bool looks_inverted(float scale) {
  constexpr double kLargest = 448.0 * 6.0, kMax = 1e4, kMin = 1e-4;
  const double reciprocal = kLargest / static_cast<double>(scale);
  return kLargest * static_cast<double>(scale) > kMax && reciprocal >= kMin && reciprocal <= kMax;
}

LintReport lint(const std::string& path, const LintOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const auto store = tensor::Store::open(path);
  LintReport report{.path = path};
  if (store) {
    report = lint(*store, path, options);
  } else {
    Collector into(report);
    into.add(store.why());
    into.finish();
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

LintReport lint(const tensor::Store& store, const std::string& path, const LintOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  LintReport report{.path = path};
  Collector into(report);
  const Survey found = survey(store);
  if (found.row != nullptr) {
    report.dialect = fmt::format("{} {}", found.row->name, name(found.row->format));
  }
  for (const Error& problem : found.problems) {
    const tensor::StoredTensor* tensor = store.find(problem.tensor);
    into.add(problem, tensor == nullptr ? std::string() : store.path(*tensor));
  }
  for (const tensor::StoredTensor* extra : found.extras) {
    into.add("tensor.extra", {.file = store.path(*extra),
                              .tensor = extra->entry.name,
                              .fact = fmt::format("{} {}", tensor::name(extra->entry.dtype),
                                                  tensor::text(extra->entry.shape))});
  }
  check_index(store, into);
  check_exclusions(store, found, into);
  check_layers(store, found, report, into);
  check_values(store, found, options, report, into);
  into.finish();
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace fp4moe::checkpoint
