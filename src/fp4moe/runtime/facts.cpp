#include "fp4moe/runtime/facts.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/convert/converted_folder.hpp"
#include "fp4moe/weights/config_document.hpp"
#include "fp4moe/weights/models.hpp"

namespace fp4moe::runtime {
namespace {

using moe::routing::Method;
using moe::routing::RouterOptions;
using tensor::TensorView;

// The router's module after the prefix: the family's name for it, else what dialects use.
std::string_view router_name(const weights::ModelConfig& config, std::string_view prefix,
                             const FindTensor& find) {
  const weights::ModelRow* row = weights::find_family(config.model_type);
  const std::string_view own = row == nullptr ? "gate" : row->router;
  for (const std::string_view module : {own, std::string_view("gate"), std::string_view("router"),
                                        std::string_view("ffn_gate_inp")})
    if (find(fmt::format("{}{}.weight", prefix, module))) return module;
  return own;
}

// Some routers add their bias to the logits, some to the scores they choose by. An unknown
// family's is taken for the latter.
bool adds_bias_to_logits(oracle::Routing routing) {
  const auto method = moe::routing::method_from_name(oracle::name(routing));
  return method && *method != Method::unspecified && !moe::routing::row(*method).takes_bias;
}

Result<std::vector<float>> read_floats(const TensorView& view, std::string_view name,
                                       const tensor::Shape& expected) {
  if (view.shape != expected || !moe::is_activation_type(view.dtype))
    return invalid("facts.router", "a tensor of the router has another shape or type")
        .at(name)
        .expects(fmt::format("[{}] of BF16, F16 or F32", fmt::join(expected, ", ")),
                 fmt::format("[{}] of {}", fmt::join(view.shape, ", "), tensor::name(view.dtype)));
  const std::uint64_t columns = expected.back();
  const std::uint64_t rows = expected.size() == 1 ? 1 : expected[0];
  std::vector<float> values(rows * columns);
  const moe::ConstRows from{view.bytes.data(), view.dtype, rows, columns,
                            columns * moe::element_bytes(view.dtype)};
  for (std::uint64_t row = 0; row < rows; ++row)
    read_row(from, row, std::span(values).subspan(row * columns, columns));
  return values;
}

// A model that its family does not tell: from what the configuration says of the scores.
Method assumed_method(const weights::ModelConfig& config, bool has_bias) {
  if (config.scoring == "sigmoid")
    return has_bias
               ? Method::deepseek_v3
               : (config.renormalizes.value_or(true) ? Method::sigmoid_renorm : Method::sigmoid);
  if (config.scoring == "sqrtsoftplus") return Method::deepseek_v4;
  return config.renormalizes.value_or(true) ? Method::renormalize_naive : Method::softmax_topk;
}

// The family's method with weights left as they are, where the configuration asks for that.
void leave_weights(LayerFacts& facts) {
  const auto replace = [&](Method method) {
    facts.router.method = method;
    facts.model.layer.routing = oracle::routing_from_name(moe::routing::name(method))
                                    .value_or(oracle::Routing::unspecified);
  };
  switch (facts.router.method) {
    case Method::renormalize:
    case Method::renormalize_naive:
      return replace(Method::softmax_topk);
    case Method::sigmoid_renorm:
      return replace(Method::sigmoid);
    case Method::minimax2:
    case Method::deepseek_v3:
    case Method::deepseek_v4:
      facts.notes.push_back(
          fmt::format("norm_topk_prob is false, but routing {} normalises its weights",
                      moe::routing::name(facts.router.method)));
      return;
    default:
      return;
  }
}

}  // namespace

Result<LayerFacts> layer_facts(const weights::ModelConfig& config, const weights::MoeShape& shape,
                               std::string_view prefix, weights::SplitRule rule,
                               const FindTensor& find) {
  LayerFacts facts{.model = plan::model_of_layer(config, shape, rule),
                   .prefix = std::string(prefix)};
  facts.notes = facts.model.notes;
  if (!config.top_k)
    return invalid("facts.top_k", "the configuration does not say how many experts a token has")
        .at("num_experts_per_tok")
        .expects("a whole number", "nothing")
        .try_this("add num_experts_per_tok to config.json");
  RouterOptions& router = facts.router;
  router.experts = shape.experts;
  router.top_k = *config.top_k;
  const std::string_view module = router_name(config, prefix, find);
  facts.router_module = module;
  const std::string names[] = {
      fmt::format("{}{}.e_score_correction_bias", prefix, module),
      fmt::format("{}e_score_correction_bias", prefix), fmt::format("{}exp_probs_b.bias", prefix),
      adds_bias_to_logits(facts.model.layer.routing) ? std::string()
                                                     : fmt::format("{}{}.bias", prefix, module)};
  for (const std::string& name : names) {
    const auto found = name.empty() ? std::nullopt : find(name);
    if (!found) continue;
    Result<std::vector<float>> bias = read_floats(*found, name, {shape.experts});
    if (!bias) return bias.why();
    router.bias = std::move(*bias);
    break;
  }
  const auto method = moe::routing::method_from_name(oracle::name(facts.model.layer.routing));
  if (!method || *method == Method::unspecified || *method == Method::custom) {
    router.method = assumed_method(config, !router.bias.empty());
    facts.notes.push_back(fmt::format("routing {} is assumed", moe::routing::name(router.method)));
  } else {
    router.method = *method;
  }
  if (!config.renormalizes.value_or(true)) leave_weights(facts);
  facts.weight_on_input = router.method == Method::llama4;
  const moe::routing::MethodRow& row = moe::routing::row(router.method);
  if (!row.takes_bias) router.bias.clear();
  if (row.takes_groups) {
    router.groups = config.groups.value_or(0);
    router.chosen_groups = config.chosen_groups.value_or(0);
  }
  if (row.takes_scale) router.scale = config.routed_scale.value_or(1.0);
  if (row.normalization == moe::routing::Normalization::optional)
    router.renormalize = config.renormalizes.value_or(true);
  facts.has_router_weights = find(fmt::format("{}{}.weight", prefix, module)).has_value();
  return facts;
}

FindTensor finder(const weights::Checkpoint& checkpoint) {
  const tensor::Store* store = &checkpoint.store();
  return [store](std::string_view name) -> std::optional<TensorView> {
    const tensor::StoredTensor* found = store->find(name);
    if (found == nullptr) return std::nullopt;
    return TensorView{found->entry.dtype, found->entry.shape, store->bytes(*found)};
  };
}

Result<LayerFacts> layer_facts(const weights::Checkpoint& checkpoint, std::size_t number) {
  const weights::MoeLayer& layer = checkpoint.layers()[number];
  return layer_facts(checkpoint.config(), layer.shape, layer.prefix,
                     weights::split_rule(checkpoint, layer), finder(checkpoint));
}

FindTensor finder(const convert::ConvertedFolder& folder) {
  return [&folder](std::string_view name) -> std::optional<TensorView> {
    const convert::Manifest& manifest = folder.manifest();
    for (const convert::FileRecord& file : manifest.files) {
      const auto place = folder.find(file.name, name);
      if (!place) continue;
      const convert::TensorRecord& tensor = manifest.files[place->file].tensors[place->tensor];
      return TensorView{tensor.dtype, tensor.shape, folder.bytes(place->file, place->tensor)};
    }
    return std::nullopt;
  };
}

Result<LayerFacts> layer_facts(const convert::ConvertedFolder& folder, std::size_t number) {
  const std::string path = fmt::format("{}/config.json", folder.path());
  const auto document = weights::read_config_document(path);
  if (!document) return document.why();
  weights::ModelConfig config;
  if (*document) {
    const auto parsed = weights::parse_config((*document)->json);
    if (!parsed) return Error(parsed.why()).in(path);
    config = parsed->model;
  }
  const convert::LayerRecord& layer = folder.manifest().layers[number];
  const convert::Problem& problem = layer.problem;
  const Result<convert::LayerPacker> packer = folder.packer(number);
  if (!packer) return packer.why();
  // The whole layer's sizes; where ranks share the intermediate size, this one's part of it.
  const weights::MoeShape shape{
      .format = packer->layout().format,
      .experts = problem.global_experts == 0 ? problem.experts : problem.global_experts,
      .hidden = problem.real.hidden,
      .intermediate = problem.real.intermediate,
      .order = problem.order,
      .has_bias = problem.has_bias,
      .has_input_scale = packer->layout().format == weights::WeightFormat::nvfp4 &&
                         problem.experts > 0 && packer->scalars(0).up_input.has_value()};
  return layer_facts(config, shape, layer.prefix, weights::SplitRule::equal, finder(folder));
}

Result<RouterWeights> load_router(const LayerFacts& facts, const FindTensor& find) {
  const weights::MoeShape& shape = facts.model.shape;
  const std::string name = fmt::format("{}{}.weight", facts.prefix, facts.router_module);
  const auto found = find(name);
  if (!found)
    return invalid("facts.router", "the model has no router weights for this layer")
        .at(name)
        .expects("a tensor of this name", "none")
        .try_this("give router_logits, or topk_ids and topk_weights");
  RouterWeights made{.experts = shape.experts, .hidden = shape.hidden};
  Result<std::vector<float>> weight = read_floats(*found, name, {shape.experts, shape.hidden});
  if (!weight) return weight.why();
  made.weight = std::move(*weight);
  const std::string bias_name = fmt::format("{}{}.bias", facts.prefix, facts.router_module);
  if (const auto bias = find(bias_name); bias && facts.router.bias.empty()) {
    Result<std::vector<float>> values = read_floats(*bias, bias_name, {shape.experts});
    if (!values) return values.why();
    made.bias = std::move(*values);
  }
  return made;
}

Result<std::vector<float>> RouterWeights::logits(const moe::ConstRows& x) const {
  std::vector<float> made(x.rows * experts);
  std::vector<double> row(hidden);
  for (std::uint64_t t = 0; t < x.rows; ++t) {
    if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
    read_row(x, t, std::span(row));
    for (std::uint64_t e = 0; e < experts; ++e) {
      const std::span<const float> weights = std::span(weight).subspan(e * hidden, hidden);
      double sum = bias.empty() ? 0.0 : double{bias[e]};
      for (std::uint64_t i = 0; i < hidden; ++i) sum += row[i] * double{weights[i]};
      made[t * experts + e] = static_cast<float>(sum);
    }
  }
  return made;
}

}  // namespace fp4moe::runtime
