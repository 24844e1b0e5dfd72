#include "fp4moe/plan/model.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/base/at_path.hpp"
#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config_document.hpp"

namespace fp4moe::plan {
namespace {

using checkpoint::ModelRow;
using checkpoint::MoeShape;

constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 24;  // of a configuration file

oracle::Layer make_layer(const MoeShape& shape, std::optional<std::uint64_t> top_k) {
  oracle::Layer layer;
  layer.num_experts = layer.num_local_experts = shape.experts;
  layer.experts_per_token = top_k.value_or(1);
  layer.hidden = shape.hidden;
  layer.intermediate = shape.intermediate;
  layer.gated = shape.gated();
  layer.has_bias = shape.has_bias;
  if (shape.format == checkpoint::WeightFormat::nvfp4)
    layer.activation_key =
        shape.has_input_scale ? oracle::ActivationKey::nvfp4 : oracle::ActivationKey::none;
  return layer;
}

// Sets the activation of the model's code and the method of its router.
void use_family(const ModelRow& row, oracle::Layer& layer) {
  const std::string activation = std::string(row.activation) + (layer.gated ? "" : "_no_mul");
  layer.activation = oracle::activation_from_name(activation).value_or(oracle::Activation::silu);
  layer.routing = oracle::routing_from_name(row.routing).value_or(oracle::Routing::unspecified);
}

// An activation as configurations spell it; none: not one of ours. gpt-oss's belongs to interleaved
// rows; with gates first it has a name of its own.
std::optional<oracle::Activation> activation_of(std::string_view name, checkpoint::RowOrder order) {
  struct Spelling {
    std::string_view name, own;
  };
  constexpr Spelling kSpellings[] = {
      {"swish", "silu"},
      {"gelu_python", "gelu"},
      {"gelu_new", "gelu_tanh"},
      {"gelu_fast", "gelu_tanh"},
      {"gelu_accurate", "gelu_tanh"},
      {"gelu_pytorch_tanh", "gelu_tanh"},
      {"gelu_python_tanh", "gelu_tanh"},
  };
  const auto* spelled = std::ranges::find(kSpellings, name, &Spelling::name);
  const std::string own(spelled == std::end(kSpellings) ? name : spelled->own);
  if (own == "swigluoai" && order == checkpoint::RowOrder::halves)
    return oracle::Activation::swigluoai_uninterleave;
  return oracle::activation_from_name(order == checkpoint::RowOrder::single ? own + "_no_mul"
                                                                            : own);
}

bool takes_alpha(oracle::Activation activation) {
  return activation == oracle::Activation::swigluoai ||
         activation == oracle::Activation::swigluoai_uninterleave;
}

// The configuration's words for the activation.
std::string activation_words(const checkpoint::ModelConfig& config) {
  std::vector<std::string> words;
  if (!config.activation.empty()) words.push_back(config.activation);
  if (config.swiglu_alpha) words.push_back(fmt::format("swiglu_alpha {}", *config.swiglu_alpha));
  if (config.swiglu_beta) words.push_back(fmt::format("swiglu_beta {}", *config.swiglu_beta));
  if (config.has_layer_limits) words.emplace_back("swiglu_limits");
  return words.empty() ? "not said" : join(words, ", ");
}

// The code of gpt-oss has its constants in itself, and one limit for all layers; its configuration
// says "silu".
void use_gpt_oss(const checkpoint::ModelConfig& config, Model& model) {
  if (config.has_layer_limits)
    model.notes.emplace_back("swiglu_limits is not applied: gpt-oss has one limit for all layers");
  if (config.swiglu_alpha.value_or(1.702) != 1.702 || config.swiglu_beta.value_or(1.0) != 1.0)
    model.unread_activation = activation_words(config);
}

// The configuration's activation and its constants. False if it is not supported.
bool use_known(const checkpoint::ModelConfig& config, std::string_view said, Model& model) {
  const auto known = activation_of(said, model.shape.order);
  if (!known || config.has_layer_limits) return false;
  oracle::Layer& layer = model.layer;
  if (takes_alpha(*known)) {
    layer.swiglu_alpha = config.swiglu_alpha;
    layer.swiglu_beta = config.swiglu_beta;
  } else if (config.swiglu_alpha || config.swiglu_beta) {
    return false;
  }
  layer.activation = *known;
  if (*known == oracle::Activation::situ) {
    layer.situ_beta = config.situ_beta;
    layer.situ_linear_beta = config.situ_linear_beta;
  }
  return true;
}

// The configuration's activation, or the family's.
void use_activation(const checkpoint::ModelConfig& config, Model& model) {
  const std::string_view own = checkpoint::family_activation(config.model_type);
  if (own == "swigluoai") {
    use_gpt_oss(config, model);
  } else {
    const std::string_view said = config.activation.empty() ? own : config.activation;
    if (use_known(config, said, model)) return;
    model.unread_activation = activation_words(config);
    const std::string_view assumed = !own.empty() ? own : model.layer.gated ? "silu" : "relu2";
    model.layer.activation =
        activation_of(assumed, model.shape.order).value_or(oracle::Activation::silu);
  }
  if (model.unread_activation.empty()) return;
  model.notes.push_back(fmt::format("{}: activation {} is assumed",
                                    own.empty() && config.activation.empty()
                                        ? "the model's family is not known here"
                                        : fmt::format("the activation ({}) is not known here",
                                                      printable(model.unread_activation)),
                                    oracle::name(model.layer.activation)));
}

// gpt-oss assigns whole scale blocks to ranks.
checkpoint::SplitRule rule_of(std::string_view family, checkpoint::WeightFormat format) {
  return family == "gpt_oss" && format == checkpoint::WeightFormat::mxfp4
             ? checkpoint::SplitRule::ceil_blocks
             : checkpoint::SplitRule::equal;
}

const ModelRow* family_of(const checkpoint::ModelConfig& config) {
  if (const ModelRow* row = checkpoint::find_family(config.model_type)) return row;
  return checkpoint::find_architecture(config.model_type);
}

bool has_files_named_like(const std::string& folder, std::string_view ending) {
  std::vector<std::string> names;
  add_names_in(folder, names);
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return name.ends_with(ending); });
}

// The number format that a configuration claims for the experts; `instead` where it claims none.
Result<checkpoint::WeightFormat> format_of(const checkpoint::ModelFacts& facts,
                                           std::optional<checkpoint::WeightFormat> instead) {
  std::string found = "no quantization_config";
  for (const checkpoint::QuantClaim& claim : facts.claims) {
    if (claim.format) return *claim.format;
    found = claim.fact;
  }
  if (instead) return *instead;
  return error(ErrorCode::no_backend, "plan.not_fp4", "the model's experts are not FP4")
      .expects("quantization to mxfp4 or nvfp4", found)
      .try_this("--format mxfp4 or nvfp4 answers for a version quantized to it");
}

// Layers with experts: as a known model has them, else all but the first few of DeepSeek's family.
std::uint64_t layers_of(const checkpoint::ModelConfig& config, const Json& document) {
  for (const ModelRow& row : checkpoint::models())
    if (row.model_type == config.model_type && row.layers == config.layers &&
        row.experts == config.experts && row.hidden == config.hidden)
      return checkpoint::moe_layer_count(row);
  const std::uint64_t all = config.layers.value_or(1);
  const auto dense = document.find("first_k_dense_replace");
  const std::uint64_t first =
      dense != document.end() && dense->is_number_unsigned() ? dense->get<std::uint64_t>() : 0;
  return all > first ? all - first : 1;
}

Result<Model> model_from_facts(const std::string& path, const checkpoint::ModelFacts& facts,
                               std::optional<checkpoint::WeightFormat> format) {
  const checkpoint::ModelConfig& said = facts.model;
  if (said.experts.value_or(0) < 2 || said.hidden.value_or(0) == 0 ||
      said.intermediate.value_or(0) == 0)
    return error(ErrorCode::no_backend, "plan.no_moe", "the model has no routed experts")
        .in(path)
        .expects("the number of experts, a hidden and an intermediate size",
                 fmt::format("model_type \"{}\" with {} experts", printable(said.model_type),
                             said.experts ? std::to_string(*said.experts) : "no"))
        .try_this("only layers with experts have MoE backends");
  if (std::max({*said.experts, *said.hidden, *said.intermediate}) > kLargestSize)
    return invalid("plan.sizes", "invalid sizes of a layer")
        .in(path)
        .expects(
            fmt::format("sizes up to {}", kLargestSize),
            fmt::format("{} experts of {} x {}", *said.experts, *said.hidden, *said.intermediate));
  const auto known = format_of(facts, format);
  if (!known) return Error(known.why()).in(path);
  const ModelRow* row = family_of(said);
  const checkpoint::MoeShape shape{
      .format = *known,
      .experts = *said.experts,
      .hidden = *said.hidden,
      .intermediate = *said.intermediate,
      .order = row != nullptr ? row->order : checkpoint::RowOrder::halves,
      .has_bias = row != nullptr && row->bias,
      .has_input_scale = *known == checkpoint::WeightFormat::nvfp4};
  Model model = model_of_layer(said, shape, rule_of(said.model_type, *known));
  model.name = path;
  for (const checkpoint::QuantClaim& claim : facts.claims)
    if (claim.dialect == checkpoint::Dialect::compressed_tensors)
      model.names = oracle::BufferNames::compressed_tensors;
  return model;
}

using Document = std::optional<checkpoint::ConfigDocument>;

// The model of the config.json at `path`. ModelOpt may say the format in a file of its own beside
// it, in `folder`.
Result<Model> model_from_document(const Document& document, const std::string& path,
                                  const std::string& folder,
                                  std::optional<checkpoint::WeightFormat> format) {
  if (!document)
    return error(ErrorCode::failed, "plan.path", "there is no model at this path")
        .in(path)
        .expects("a checkpoint or a config.json", "no such file");
  auto facts = checkpoint::parse_config(document->json);
  if (!facts) return Error(facts.why()).in(path);
  const std::string beside = "hf_quant_config.json";
  const Result<Document> quant = checkpoint::read_config_document(folder, beside);
  if (!quant) return quant.why();
  if (*quant) {
    auto claim = checkpoint::parse_hf_quant_config((*quant)->json);
    if (!claim) return Error(claim.why()).in(folder + "/" + beside);
    facts->claims.push_back(*std::move(claim));
  }
  auto model = model_from_facts(path, *facts, format);
  if (model) model->layers = layers_of(facts->model, document->json);
  return model;
}

}  // namespace

backends::Entry entry_of(const Model& model) {
  return model.quark_input ? backends::Entry::gpt_oss : backends::entry_of(model.family);
}

oracle::Layer layer_for(const Model& model, oracle::PolicyDate policy_date) {
  oracle::Layer layer = model.layer;
  const bool asks =
      policy_date == oracle::PolicyDate::august_22 || policy_date == oracle::PolicyDate::vllm_033;
  if (!asks || !model.quark_input) return layer;
  if (*model.quark_input == checkpoint::ExpertInput::fp8_static)
    layer.activation_key = oracle::ActivationKey::fp8_static_tensor;
  if (*model.quark_input == checkpoint::ExpertInput::mxfp4)
    layer.activation_key = oracle::ActivationKey::mxfp4;
  return layer;
}

Model model_from_row(const ModelRow& row, std::optional<checkpoint::WeightFormat> format) {
  Model model{.name = std::string(row.name),
              .family = std::string(row.model_type),
              .layers = checkpoint::moe_layer_count(row)};
  model.shape = {.format = format.value_or(row.format),
                 .experts = row.experts,
                 .hidden = row.hidden,
                 .intermediate = row.intermediate,
                 .order = row.order,
                 .has_bias = row.bias};
  model.shape.has_input_scale = model.shape.format == checkpoint::WeightFormat::nvfp4;
  model.rule = rule_of(row.model_type, model.shape.format);
  model.layer = make_layer(model.shape, row.top_k);
  use_family(row, model.layer);
  return model;
}

Model model_of_shape(const MoeShape& shape, checkpoint::SplitRule rule,
                     std::optional<std::uint64_t> top_k) {
  Model model{.shape = shape, .layers = 1, .rule = rule};
  model.layer = make_layer(shape, top_k);
  return model;
}

Model model_of_layer(const checkpoint::ModelConfig& config, const MoeShape& shape,
                     checkpoint::SplitRule rule) {
  Model model = model_of_shape(shape, rule, config.top_k);
  model.family = config.model_type;
  model.layer.swiglu_limit = config.swiglu_limit;
  if (shape.format == checkpoint::WeightFormat::mxfp4) model.quark_input = config.quark_input;
  if (const ModelRow* row = family_of(config)) {
    model.family = row->model_type;
    use_family(*row, model.layer);
  } else {
    model.layer.routing = oracle::Routing::unspecified;
  }
  use_activation(config, model);
  return model;
}

Result<Model> model_from_config(const std::string& path,
                                std::optional<checkpoint::WeightFormat> format) {
  const Result<Document> document = checkpoint::read_config_document(path);
  if (!document) return document.why();
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  return model_from_document(*document, path, folder.empty() ? "/" : folder, format);
}

Result<Model> model_from_path(const std::string& path,
                              std::optional<checkpoint::WeightFormat> format) {
  const bool is_folder = at_path(path) == AtPath::folder;
  const bool has_weights = is_folder ? has_files_named_like(path, ".safetensors") ||
                                           has_files_named_like(path, ".gguf") ||
                                           has_files_named_like(path, ".safetensors.index.json")
                                     : !path.ends_with(".json") || path.ends_with(".index.json");
  if (has_weights) return model_from_checkpoint(path);
  if (!is_folder) return model_from_config(path, format);
  std::string folder = path;
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  const Result<Document> document = checkpoint::read_config_document(folder, "config.json");
  if (!document) return document.why();
  return model_from_document(*document, folder + "/config.json", folder, format);
}

}  // namespace fp4moe::plan
