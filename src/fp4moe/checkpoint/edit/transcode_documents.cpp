#include "fp4moe/checkpoint/edit/transcode_documents.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/gguf_fields.hpp"
#include "fp4moe/checkpoint/write/quant_config.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;

// A document that is written again; nothing when it is not there.
Result<std::optional<Json>> read_exactly(const tensor::Store& store, const char* name) {
  Result<std::optional<ConfigDocument>> document = read_config_document(store, name);
  if (!document) return document.why();
  if (!*document) return std::optional<Json>{};
  if (auto exact = require_json(**document, store.folder() + "/" + name); !exact)
    return exact.why();
  return std::optional((*document)->json);
}

// Every module whose codes are written.
std::vector<std::string> fp4_modules(const CheckpointPlan& out) {
  std::vector<std::string> modules;
  const auto add = [&](std::string_view name, DType type) {
    if (type == out.row.codes_dtype && name.ends_with(out.row.parts.codes))
      modules.emplace_back(name.substr(0, name.size() - out.row.parts.codes.size()));
  };
  for (const OutputLayer& layer : out.layers) {
    const ExpertLayout layout = expert_layout(out.row, layer.shape, out.bias_dtype);
    const bool is_apart = out.row.grouping == Grouping::per_expert;
    for (std::uint64_t e = 0; e < (is_apart ? layer.shape.experts : 1); ++e)
      for (const Run& run : layout.runs)
        if (run.part == Part::codes) add(run_tensor(layout, run, layer.prefix, e).name, run.dtype);
  }
  for (const OtherTensor& other : out.others) add(other.spec.name, other.spec.dtype);
  std::ranges::sort(modules);
  return modules;
}

void note_lost_settings(const Json& config, const Fp8Modules& fp8, CheckpointPlan& out) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || !found->is_object()) return;
  const auto is_set = [](const Json& object, const char* key) {
    const auto member = object.is_object() ? object.find(key) : object.end();
    return member != object.end() && !member->is_null();
  };
  if (is_set(*found, "kv_cache_scheme") || is_set(*found, "kv_cache_quant_algo"))
    out.notes.emplace_back("the configuration's KV cache quantization is not carried over");
  const auto global = found->find("global_quant_config");
  const bool drops_dynamic =
      out.row.dialect == Dialect::modelopt && std::ranges::any_of(fp8.all(), [](const auto& entry) {
        return entry.second.scales == Fp8Scales::blocks &&
               entry.second.inputs == Fp8Inputs::dynamic;
      });
  if (drops_dynamic || (global != found->end() && is_set(*global, "input_tensors")))
    out.notes.emplace_back("the configuration's activation quantization is not carried over");
}

}  // namespace

Result<Json> read_source_config(const tensor::Store& store, Dialect target) {
  if (store.kind() == tensor::StoreKind::gguf) return config_from_gguf(store.gguf_fields());
  Result<std::optional<ConfigDocument>> document = read_config_document(store, "config.json");
  if (!document) return document.why();
  if (!*document || !(*document)->json.is_object()) return Json::object();
  if (target != Dialect::gguf)
    if (auto exact = require_json(**document, store.folder() + "/config.json"); !exact)
      return exact.why();
  return (*document)->json;
}

Result<Done> add_config(const Checkpoint& source, const Fp8Modules& fp8, Json config,
                        CheckpointPlan& out) {
  const Dialect target = out.row.dialect;
  if (source.dialect().dialect == target) {  // a new sharding; the documents stay
    for (const char* name : {"config.json", "hf_quant_config.json"}) {
      Result<std::optional<Json>> kept = read_exactly(source.store(), name);
      if (!kept) return kept.why();
      if (*kept) out.documents.emplace_back(name, **std::move(kept));
    }
    return Done{};
  }
  const auto copy_key = [&](const char* from, const char* to) {
    const auto found = config.find(from);
    if (found != config.end() && !config.contains(to)) config[to] = Json(*found);
  };
  if (target == Dialect::openai) {
    copy_key("num_local_experts", "num_experts");
    copy_key("num_experts_per_tok", "experts_per_token");
  } else if (source.dialect().dialect == Dialect::openai) {
    if (!config.contains("model_type")) config["model_type"] = "gpt_oss";
    copy_key("num_experts", "num_local_experts");
    copy_key("experts_per_token", "num_experts_per_tok");
  }
  bool has_input_scale = false;
  for (const OutputLayer& layer : out.layers)
    has_input_scale = has_input_scale || layer.shape.has_input_scale;
  QuantFacts facts{.has_input_scale = has_input_scale, .ignore = unquantized_modules(out.others)};
  for (const auto& [name, module] : fp8.all()) facts.fp8.push_back(module);
  if (!facts.fp8.empty()) facts.fp4 = fp4_modules(out);
  note_lost_settings(config, fp8, out);
  out.documents = quantized_documents(config, out.row, facts);
  return Done{};
}

}  // namespace fp4moe::checkpoint
