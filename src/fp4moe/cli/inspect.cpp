// fp4moe inspect: what a checkpoint holds and what that was read from. Useful also when it is not
// recognized: then it says what was found and why that is not enough.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/survey.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {

Run declare_inspect(OptionSet& set);

namespace {

using checkpoint::LayerTensors;
using checkpoint::MoeShape;
using checkpoint::Survey;
using tensor::Store;
using tensor::StoredTensor;

// Layers of one kind and shape.
struct LayerGroup {
  std::string prefix{};  // "model.layers.*.mlp."
  std::vector<std::uint64_t> numbers{};
  MoeShape shape{};
};

struct TypeCount {
  std::uint64_t tensors = 0, bytes = 0;
};

struct Summary {
  std::vector<LayerGroup> groups{};
  std::map<std::string_view, TypeCount> types{};
  std::uint64_t expert_tensors = 0, expert_bytes = 0, weight_bytes = 0;
  std::uint64_t other_tensors = 0, other_bytes = 0, file_bytes = 0;
  std::uint64_t weights = 0;  // routed experts' parameters

  double bits_per_weight() const {
    return weights == 0 ? 0
                        : 8.0 * static_cast<double>(weight_bytes) / static_cast<double>(weights);
  }
};

std::string star(std::string_view prefix) {
  const checkpoint::PrefixFamily family = checkpoint::prefix_family(prefix);
  if (family.before.size() == prefix.size()) return std::string(prefix);
  return fmt::format("{}*{}", family.before, family.after);
}

// "0-23" or "0, 2, 4-6"
std::string ranges(const std::vector<std::uint64_t>& numbers) {
  std::string text;
  for (std::size_t begin = 0; begin < numbers.size();) {
    std::size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += end - begin == 1 ? fmt::format("{}", numbers[begin])
                             : fmt::format("{}-{}", numbers[begin], numbers[end - 1]);
    begin = end;
  }
  return text;
}

Summary summarize(const Store& store, const Survey& found) {
  Summary summary;
  std::vector<const StoredTensor*> experts;
  std::vector<const StoredTensor*> matrices;  // codes, block scales and global scales
  for (const LayerTensors& layer : found.layers) {
    const std::string prefix = star(layer.prefix);
    const auto same = [&](const LayerGroup& group) {
      return group.prefix == prefix && group.shape == layer.shape;
    };
    auto at = std::find_if(summary.groups.begin(), summary.groups.end(), same);
    if (at == summary.groups.end()) at = summary.groups.insert(at, {prefix, {}, layer.shape});
    at->numbers.push_back(layer.index);
    const MoeShape& shape = layer.shape;
    summary.weights += shape.experts * shape.hidden * (shape.w13_rows() + shape.intermediate);
    for (const auto* all : {&layer.gate, &layer.up, &layer.down}) {
      for (const checkpoint::ProjectionPlaces& places : *all) {
        for (const auto* place : {&places.codes, &places.scales, &places.global_scale}) {
          if (place->tensor != nullptr) matrices.push_back(place->tensor);
        }
        for (const auto* place : {&places.input_scale, &places.bias}) {
          if (place->tensor != nullptr) experts.push_back(place->tensor);
        }
      }
    }
  }
  // Fused dialects name a tensor twice.
  const auto once = [](std::vector<const StoredTensor*>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  once(matrices);
  for (const StoredTensor* tensor : matrices) summary.weight_bytes += tensor->entry.bytes;
  experts.insert(experts.end(), matrices.begin(), matrices.end());
  once(experts);
  for (const StoredTensor* tensor : experts) summary.expert_bytes += tensor->entry.bytes;
  summary.expert_tensors = experts.size();
  std::uint64_t all = 0;
  for (const StoredTensor& tensor : store.tensors()) {
    TypeCount& count = summary.types[tensor::name(tensor.entry.dtype)];
    ++count.tensors;
    count.bytes += tensor.entry.bytes;
    all += tensor.entry.bytes;
  }
  summary.other_tensors = store.tensors().size() - experts.size();
  summary.other_bytes = all - summary.expert_bytes;
  for (const tensor::MappedFile& file : store.files()) summary.file_bytes += file.bytes().size();
  return summary;
}

std::string describe(const MoeShape& shape) {
  return fmt::format("{}, hidden {}, intermediate {}, {}{}{}", counted(shape.experts, "expert"),
                     shape.hidden, shape.intermediate,
                     shape.gated() ? fmt::format("{} w13", name(shape.order)) : "no gate",
                     shape.has_bias ? ", bias" : "", shape.has_input_scale ? ", input scales" : "");
}

std::string describe(const checkpoint::ModelConfig& config) {
  std::vector<std::string> parts;
  if (!config.model_type.empty()) parts.push_back(printable(config.model_type));
  const auto add = [&parts](std::string_view what, const std::optional<std::uint64_t>& value) {
    if (value) parts.push_back(fmt::format("{} {}", what, *value));
  };
  add("layers", config.layers);
  add("experts", config.experts);
  add("top_k", config.top_k);
  add("hidden", config.hidden);
  add("intermediate", config.intermediate);
  if (config.swiglu_limit) parts.push_back(fmt::format("swiglu_limit {}", *config.swiglu_limit));
  return parts.empty() ? "not given" : join(parts, ", ");
}

void print_text(const Io& io, const Store& store, const Survey& found, const Summary& summary) {
  const auto line = [&io](std::string_view key, const std::string& value) {
    io.out << fmt::format("{:<10} {}\n", key, value);
  };
  if (found.row != nullptr) {
    line("dialect", fmt::format("{}, {}, {}", found.row->name, name(found.row->format),
                                name(found.row->grouping)));
    line("evidence", found.evidence);
  } else {
    line("dialect", "not recognized");
  }
  line("config", describe(found.facts.model));
  for (const LayerGroup& group : summary.groups) {
    line("experts",
         fmt::format("{}: {} ({} {})", counted(group.numbers.size(), "layer"),
                     describe(group.shape), printable(group.prefix), ranges(group.numbers)));
  }
  std::map<std::pair<std::string, std::string>, std::vector<std::uint64_t>> others;
  for (const checkpoint::OtherLayer& layer : found.others) {
    others[{star(layer.prefix), layer.what}].push_back(layer.index);
  }
  for (const auto& [key, numbers] : others) {
    line("not FP4", fmt::format("{}: {} ({} {})", counted(numbers.size(), "layer"), key.second,
                                printable(key.first), ranges(numbers)));
  }
  if (summary.weights != 0 && found.row != nullptr) {
    line("bytes",
         fmt::format("{} in {} of experts, {:.3f} bits per weight",
                     human_bytes(summary.expert_bytes), counted(summary.expert_tensors, "tensor"),
                     summary.bits_per_weight()));
  }
  line(summary.expert_tensors == 0 ? "bytes" : "",
       fmt::format("{} in {}", human_bytes(summary.other_bytes),
                   counted(summary.other_tensors, "other tensor")));
  std::vector<std::string> types;
  for (const auto& [type, count] : summary.types) {
    types.push_back(fmt::format("{} {} ({})", count.tensors, type, human_bytes(count.bytes)));
  }
  line("types", join(types, ", "));
  line("files", fmt::format("{} {}, {}", store.files().size(),
                            store.kind() == tensor::StoreKind::gguf ? "gguf" : "safetensors",
                            human_bytes(summary.file_bytes)));
  constexpr std::size_t kMaxShown = 5;
  for (std::size_t i = 0; i < std::min(found.problems.size(), kMaxShown); ++i) {
    io.out << fmt::format("{:<11}{}", "problem", finding_text(found.problems[i], io.columns, 9));
  }
  const std::size_t all = found.problems.size() + found.more_problems;
  if (all > kMaxShown)
    line("", fmt::format("and {} more: fp4moe lint lists them", all - kMaxShown));
}

void print_tensors(const Io& io, const Store& store) {
  std::size_t width = 0;
  for (const StoredTensor& tensor : store.tensors()) {
    width = std::max(width, std::min<std::size_t>(tensor.entry.name.size(), 80));
  }
  io.out << "\n";
  for (const StoredTensor& tensor : store.tensors()) {
    io.out << fmt::format("{:<{}}  {:<8} {:<24} {:>10}\n", printable(tensor.entry.name), width,
                          tensor::name(tensor.entry.dtype), tensor::text(tensor.entry.shape),
                          human_bytes(tensor.entry.bytes));
  }
}

Json to_json(const MoeShape& shape) {
  return {{"format", name(shape.format)},
          {"experts", shape.experts},
          {"hidden", shape.hidden},
          {"intermediate", shape.intermediate},
          {"row_order", name(shape.order)},
          {"has_bias", shape.has_bias},
          {"has_input_scale", shape.has_input_scale}};
}

Json config_json(const checkpoint::ModelConfig& config) {
  Json object = Json::object();
  if (!config.model_type.empty()) object["model_type"] = config.model_type;
  const auto add = [&object](const char* key, const std::optional<std::uint64_t>& value) {
    if (value) object[key] = *value;
  };
  add("layers", config.layers);
  add("experts", config.experts);
  add("top_k", config.top_k);
  add("hidden", config.hidden);
  add("intermediate", config.intermediate);
  if (config.swiglu_limit) object["swiglu_limit"] = *config.swiglu_limit;
  return object;
}

Json report(const Store& store, const Survey& found, const Summary& summary, bool with_tensors) {
  const bool is_known = found.row != nullptr;
  Json json{{"recognized", is_known}, {"recognised", is_known}};  // the latter: the old spelling
  if (found.row != nullptr) {
    json["dialect"] = found.row->name;
    json["format"] = name(found.row->format);
    json["grouping"] = name(found.row->grouping);
    json["evidence"] = found.evidence;
  }
  json["config"] = config_json(found.facts.model);
  json["layers"] = Json::array();
  for (const LayerGroup& group : summary.groups) {
    Json row = to_json(group.shape);
    row["prefix"] = group.prefix;
    row["numbers"] = group.numbers;
    json["layers"].push_back(std::move(row));
  }
  json["other_layers"] = Json::array();
  for (const checkpoint::OtherLayer& layer : found.others) {
    json["other_layers"].push_back(
        {{"prefix", layer.prefix}, {"number", layer.index}, {"what", layer.what}});
  }
  json["bytes"] = {{"experts", summary.expert_bytes},
                   {"other", summary.other_bytes},
                   {"files", summary.file_bytes}};
  json["weights"] = summary.weights;
  json["bits_per_weight"] = summary.bits_per_weight();
  json["types"] = Json::object();
  for (const auto& [type, count] : summary.types) {
    json["types"][std::string(type)] = {{"tensors", count.tensors}, {"bytes", count.bytes}};
  }
  json["files"] = Json::array();
  for (const tensor::MappedFile& file : store.files()) {
    json["files"].push_back({{"path", file.path()}, {"bytes", file.bytes().size()}});
  }
  json["problems"] = Json::array();
  for (const Error& problem : found.problems) json["problems"].push_back(fp4moe::to_json(problem));
  if (with_tensors) {
    json["tensors"] = Json::array();
    for (const StoredTensor& tensor : store.tensors()) {
      json["tensors"].push_back({{"name", tensor.entry.name},
                                 {"dtype", tensor::name(tensor.entry.dtype)},
                                 {"shape", tensor.entry.shape},
                                 {"bytes", tensor.entry.bytes},
                                 {"file", store.path(tensor)}});
    }
  }
  return json;
}

struct InspectOptions {
  std::string path{};
  bool tensors = false;
};

Result<int> inspect(const InspectOptions& options, const Io& io) {
  const auto store = Store::open(options.path);
  if (!store) return store.why();
  const Survey found = checkpoint::survey(*store);
  // A refusal of the operating system is no problem of the checkpoint.
  for (const Error& problem : found.problems)
    if (problem.code == ErrorCode::exhausted || problem.code == ErrorCode::failed) return problem;
  const Summary summary = summarize(*store, found);
  if (io.json) {
    io.print(report(*store, found, summary, options.tensors));
  } else {
    print_text(io, *store, found, summary);
    if (options.tensors) print_tensors(io, *store);
  }
  return found.problems.empty() ? kDone : static_cast<int>(ErrorCode::invalid_input);
}

}  // namespace

Run declare_inspect(OptionSet& set) {
  const auto options = std::make_shared<InspectOptions>();
  set.add("PATH", options->path, "A checkpoint: a folder, an index or a file")
      .as(Form::path)
      .required();
  set.add("--tensors", options->tensors, "List every tensor");
  return [options](const Io& io) { return inspect(*options, io); };
}

}  // namespace fp4moe::cli
