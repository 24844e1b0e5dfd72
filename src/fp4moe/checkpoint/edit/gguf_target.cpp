#include "fp4moe/checkpoint/edit/gguf_target.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/gguf_tokenizer.hpp"
#include "fp4moe/checkpoint/write/convert_vector.hpp"

namespace fp4moe::checkpoint {
namespace {

// llama.cpp adds and multiplies by vectors in float32 alone.
void widen_vectors(std::vector<OtherTensor>& others, Origin& origin) {
  for (OtherTensor& other : others) {
    const tensor::DType type = other.spec.dtype;
    if (other.spec.shape.size() != 1 || !is_half(type) || other.block || !other.bytes.empty())
      continue;
    origin.dtypes[other.spec.name] = tensor::name(type);
    other.stored = type;
    other.spec.dtype = tensor::DType::f32;
  }
}

bool is_llama_name(std::string_view name) {
  return name.starts_with("blk.") || name.starts_with("token_embd.") || name.starts_with("output");
}

// The folder's name; in a hub's cache (models--ORGANIZATION--NAME/snapshots/...) the model's.
// Errors: no memory.
Result<std::string> folder_or_hub_name(const tensor::Store& source) {
  std::error_code failed;
  const auto folder = std::filesystem::canonical(source.folder(), failed);
  if (failed == std::errc::not_enough_memory)
    return system_error("store.open", "cannot stat", failed.value()).in(source.folder());
  std::string name = failed ? std::string() : folder.filename().string();
  const auto snapshots = folder.parent_path();
  const std::string hub = snapshots.parent_path().filename().string();
  if (snapshots.filename() == "snapshots" && hub.starts_with("models--"))
    name = hub.substr(hub.rfind("--") + 2);
  return is_utf8(name) ? name : std::string();
}

// config.json counts the layers of the model itself; those behind them predict further tokens.
void count_layers(const CheckpointPlan& plan, GgufModel& model) {
  std::uint64_t stored = 0;
  for (const OutputLayer& layer : plan.layers) stored = std::max(stored, layer.index + 1);
  if (model.layers == 0 && model.config.is_object()) {
    const auto field = model.config.find("num_hidden_layers");
    if (field != model.config.end() && field->is_number_unsigned())
      model.layers = field->get<std::uint64_t>();
  }
  if (model.layers == 0) model.layers = stored;
  if (model.model_type != "glm4_moe" || stored <= model.layers) return;
  model.next_layers = stored - model.layers;
  model.layers = stored;
}

// llama.cpp multiplies by the experts' global scales in some architectures alone, and elsewhere
// computes without them.
constexpr std::string_view kScaledArchitectures[] = {"qwen3moe", "nemotron_h_moe", "llama"};

void note_lost_scales(CheckpointPlan& plan, const GgufModel& model) {
  const std::string architecture = gguf_architecture(model.model_type);
  if (plan.row.format != WeightFormat::nvfp4 ||
      std::ranges::find(kScaledArchitectures, architecture) != std::end(kScaledArchitectures))
    return;
  plan.notes.push_back(
      fmt::format("llama.cpp (b21e4de7, August 2026) leaves the global scales of NVFP4 experts out "
                  "in {} models: "
                  "its results are wrong; quantize such a model to MXFP4 for it",
                  architecture));
}

void note_unknown_tensors(CheckpointPlan& plan, bool has_embedding) {
  const auto is_unknown = [](const OtherTensor& other) { return !is_llama_name(other.spec.name); };
  const auto first = std::ranges::find_if(plan.others, is_unknown);
  if (!has_embedding)
    plan.notes.emplace_back(
        "the checkpoint has no embedding (token_embd.weight): llama.cpp cannot load the GGUF file");
  else if (first != plan.others.end())
    plan.notes.push_back(fmt::format(
        "{} tensors keep their names, {} for instance, for which llama.cpp wants others or another "
        "form: it cannot load the GGUF file",
        std::ranges::count_if(plan.others, is_unknown), first->spec.name));
}

}  // namespace

Result<Done> finish_gguf(CheckpointPlan& plan, GgufModel model, const tensor::Store& source) {
  const auto embedding = std::ranges::find(plan.others, "token_embd.weight",
                                           [](const OtherTensor& o) { return o.spec.name; });
  const bool has_embedding = embedding != plan.others.end() && embedding->spec.shape.size() == 2;
  if (has_embedding) model.vocabulary = embedding->spec.shape[0];
  Result<std::string> name = folder_or_hub_name(source);
  if (!name) return name.why();
  model.name = *std::move(name);
  count_layers(plan, model);
  widen_vectors(plan.others, model.origin);
  plan.gguf_fields = gguf_fields(model);
  note_unknown_tensors(plan, has_embedding);
  if (has_embedding) note_lost_scales(plan, model);
  Result<GgufTokenizer> tokenizer =
      read_gguf_tokenizer(source, model.model_type, model.config, model.vocabulary);
  if (!tokenizer) return tokenizer.why();
  std::ranges::move(tokenizer->fields, std::back_inserter(plan.gguf_fields));
  if (has_embedding) std::ranges::move(tokenizer->notes, std::back_inserter(plan.notes));
  return Done{};
}

bool holds_lost_tokenizer(const tensor::Store& source) {
  const auto is_tokens = [](const tensor::GgufField& field) {
    return field.key == "tokenizer.ggml.tokens";
  };
  if (source.kind() != tensor::StoreKind::gguf ||
      !std::ranges::any_of(source.gguf_fields(), is_tokens))
    return false;
  const Result<std::optional<tensor::MappedFile>> beside = source.document("tokenizer.json");
  return !beside || !*beside;
}

}  // namespace fp4moe::checkpoint
