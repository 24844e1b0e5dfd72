#include "fp4moe/runtime/facts.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/config_document.hpp"
#include "fp4moe/checkpoint/models.hpp"
#include "fp4moe/convert/folder/converted_folder.hpp"

namespace fp4moe::runtime {
namespace {

using moe::routing::Method;
using moe::routing::RouterOptions;
using tensor::TensorView;

// The router's module after the prefix: the family's name for it, else what dialects use.
std::string_view router_name(const checkpoint::ModelConfig& config, std::string_view prefix,
                             const FindTensor& find) {
  const checkpoint::ModelRow* row = checkpoint::find_family(config.model_type);
  const std::string_view own = row == nullptr ? "gate" : row->router;
  if (find(fmt::format("{}{}.weight", prefix, own))) return own;
  if (find(fmt::format("{}ffn_gate_inp.weight", prefix))) return "ffn_gate_inp";
  for (const std::string_view module : checkpoint::kRouterModules)
    if (find(fmt::format("{}{}.weight", prefix, module))) return module;
  return own;
}

// Some routers add their bias to the logits, some to the scores they choose by. An unknown
// family's is taken for the latter.
bool adds_bias_to_logits(const checkpoint::ModelConfig& config) {
  const auto method = moe::routing::method_from_name(checkpoint::family_routing(config.model_type));
  return method && !moe::routing::row(*method).takes_bias;
}

Result<std::vector<float>> read_floats(const TensorView& view, std::string_view name,
                                       const tensor::Shape& expected) {
  // Some routers keep their bias as one row.
  const bool is_row = expected.size() == 1 && view.shape == tensor::Shape{1, expected[0]};
  if ((view.shape != expected && !is_row) || !moe::is_activation_type(view.dtype))
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

// Facts of a configuration beyond the function of the scores.
bool is_scaled(const checkpoint::ModelConfig& config) {
  return config.routed_scale.value_or(1.0) != 1.0;
}
bool is_grouped(const checkpoint::ModelConfig& config) { return config.groups.value_or(1) > 1; }

// The method for a configuration that names the function of the scores.
std::optional<Method> method_of_scores(const checkpoint::ModelConfig& config, bool has_bias) {
  const bool normalizes = config.renormalizes.value_or(true);
  const bool more = is_scaled(config) || is_grouped(config);
  if (config.scoring == "sigmoid") {
    if (has_bias || more) return Method::deepseek_v3;
    return normalizes ? Method::sigmoid_renorm : Method::sigmoid;
  }
  if (config.scoring == "sqrtsoftplus") return Method::deepseek_v4;
  if (config.scoring != "softmax") return std::nullopt;
  if (has_bias) return Method::softmax_bias;
  if (more) return Method::grouped_softmax;
  return normalizes ? Method::renormalize_naive : Method::softmax_topk;
}

// True if a family's method has the scores that the configuration names.
bool has_scores(Method method, std::string_view scoring) {
  switch (moe::routing::row(method).key) {
    case moe::routing::Score::sigmoid:
      return scoring == "sigmoid";
    case moe::routing::Score::sqrt_softplus:
      return scoring == "sqrtsoftplus";
    case moe::routing::Score::logit:  // their order is the softmax's
    case moe::routing::Score::softmax:
      return scoring == "softmax";
    case moe::routing::Score::none:
      break;
  }
  return false;
}

// The family's method, or what the configuration says; nothing when neither does. Of an unknown
// family it must also say whether weights are normalized.
std::optional<Method> choose_method(const checkpoint::ModelConfig& config, bool has_bias,
                                    LayerFacts& facts) {
  const auto family = moe::routing::method_from_name(checkpoint::family_routing(config.model_type));
  if (family && (config.scoring.empty() || has_scores(*family, config.scoring))) {
    const bool normalizes = config.renormalizes.value_or(false);
    return *family == Method::softmax_topk && normalizes ? Method::renormalize_naive : *family;
  }
  if (!family && !config.renormalizes) return std::nullopt;
  const std::optional<Method> method = method_of_scores(config, has_bias);
  if (method)
    facts.notes.push_back(fmt::format("routing {} is assumed", moe::routing::name(*method)));
  return method;
}

// The same method with weights left as they are; nothing where there is none.
std::optional<Method> without_normalization(Method method) {
  switch (method) {
    case Method::renormalize:
    case Method::renormalize_naive:
      return Method::softmax_topk;
    case Method::sigmoid_renorm:
      return Method::sigmoid;
    case Method::minimax2:
    case Method::deepseek_v3:
    case Method::deepseek_v4:
      return std::nullopt;
    default:
      return method;
  }
}

// Words of biases and scales beside a router's module ("e_score_correction_bias").
constexpr std::string_view kRouterWords[] = {"correction", "expert_bias", "expert_scale",
                                             "exp_probs", "tid2eid"};

// The first of the router's tensors that is not applied; empty: none.
std::string find_unread(const LayerFacts& facts, std::span<const std::string> biases,
                        const ListTensors& list) {
  const std::string_view module = facts.router_module;
  const std::string own = fmt::format("{}{}.", facts.prefix, module);
  // "gate.wg" and what stands beside it in "gate."
  const std::string outer = fmt::format("{}{}.", facts.prefix, module.substr(0, module.find('.')));
  const auto is_known = [&](const std::string& name) {
    return name == own + "weight" || name == own + "bias" || name == own + "tid2eid" ||
           name == facts.prefix + "ffn_gate_tid2eid.weight" ||
           std::ranges::find(biases, name) != biases.end();
  };
  std::size_t found_biases = 0;
  for (const std::string& name : list(facts.prefix)) {
    const std::string_view rest = std::string_view(name).substr(facts.prefix.size());
    const bool is_routers =
        name.starts_with(outer) || std::ranges::any_of(kRouterWords, [rest](std::string_view word) {
          return rest.find(word) != std::string_view::npos;
        });
    if (is_routers && !is_known(name)) return name;
    // A second bias would be left out.
    if (std::ranges::find(biases, name) != biases.end() && ++found_biases > 1) return name;
  }
  return {};
}

Error unread_tensor(std::string_view id, const LayerFacts& facts) {
  return invalid(id, "the router has a tensor that nothing here applies")
      .at(facts.unread_router_tensor)
      .expects("a weight, a bias and a correction bias", "also this tensor")
      .try_this("give topk_ids and topk_weights");
}

Error unknown_routing(std::string_view prefix, std::string_view why) {
  return invalid("facts.routing", why)
      .at(prefix)
      .expects("a way to choose experts of docs/routing.md", "another")
      .try_this("give topk_ids and topk_weights");
}

// Chooses the routing method, or says why the model's is not supported.
void choose_routing(const checkpoint::ModelConfig& config, const FindTensor& find,
                    LayerFacts& facts) {
  RouterOptions& router = facts.router;
  const auto refuse = [&](std::string_view why) {
    if (!facts.no_routing) facts.no_routing = unknown_routing(facts.prefix, why);
  };
  if (find(fmt::format("{}{}.tid2eid", facts.prefix, facts.router_module)) ||
      find(facts.prefix + "ffn_gate_tid2eid.weight"))
    refuse("this layer chooses experts by token ids (tid2eid), not by logits");
  if (!facts.unread_router_tensor.empty() && !facts.no_routing)
    facts.no_routing = unread_tensor("facts.routing", facts);
  const bool has_bias = !router.bias.empty();
  const std::string_view chosen_by = config.topk_method;
  if (!chosen_by.empty() && chosen_by != "greedy" && chosen_by != "group_limited_greedy" &&
      chosen_by != "noaux_tc")
    refuse(fmt::format("topk_method \"{}\" is not known", printable(chosen_by)));
  if (chosen_by == "noaux_tc" && !has_bias)
    refuse("topk_method is noaux_tc, but the router has no correction bias");
  if (config.router_softcap)
    refuse(fmt::format("the router's logits have a softcap of {}, which nothing here applies",
                       *config.router_softcap));
  std::optional<Method> method = choose_method(config, has_bias, facts);
  if (!method)
    refuse(fmt::format(
        "how the router of model_type \"{}\" chooses is not known{}", printable(config.model_type),
        config.scoring.empty() ? std::string()
                               : fmt::format(", with scores \"{}\"{}", printable(config.scoring),
                                             config.renormalizes ? "" : " and no norm_topk_prob")));
  if (method && !config.renormalizes.value_or(true)) {
    const std::optional<Method> plain = without_normalization(*method);
    if (!plain)
      refuse(fmt::format("norm_topk_prob is false, but routing {} normalizes its weights",
                         moe::routing::name(*method)));
    if (plain) method = plain;
  }
  // A layer is made all the same: whoever has chosen experts needs no method.
  router.method = method.value_or(Method::renormalize_naive);
  const moe::routing::MethodRow& row = moe::routing::row(router.method);
  if (has_bias && !row.takes_bias)
    refuse(fmt::format("the router has a correction bias, which routing {} has not", row.name));
  if (is_scaled(config) && !row.takes_scale)
    refuse(fmt::format("routed_scaling_factor is {}, which routing {} has not",
                       *config.routed_scale, row.name));
  if (is_grouped(config) && !row.takes_groups)
    refuse(fmt::format("the router has {} groups, which routing {} has not", *config.groups,
                       row.name));
  if (!row.takes_bias) router.bias.clear();
  if (row.takes_groups) {
    router.groups = config.groups.value_or(0);
    router.chosen_groups = config.chosen_groups.value_or(0);
  }
  if (row.takes_scale) router.scale = config.routed_scale.value_or(1.0);
  if (row.normalization == moe::routing::Normalization::optional)
    router.renormalize = config.renormalizes.value_or(true);
}

}  // namespace

Result<LayerFacts> layer_facts(const checkpoint::ModelConfig& config,
                               const checkpoint::MoeShape& shape, std::string_view prefix,
                               checkpoint::SplitRule rule, const FindTensor& find,
                               const ListTensors& list) {
  LayerFacts facts{.model = plan::model_of_layer(config, shape, rule),
                   .prefix = std::string(prefix)};
  facts.notes = facts.model.notes;
  if (!config.top_k)
    return invalid("facts.top_k", "the configuration does not say how many experts a token has")
        .at("num_experts_per_tok")
        .expects("a whole number", "nothing")
        .try_this("add num_experts_per_tok to config.json");
  if (!facts.model.unread_activation.empty())
    return invalid("facts.activation", "the experts' activation is not known here")
        .at(facts.prefix)
        .expects(
            "hidden_act silu, gelu, gelu_tanh, relu2, situ or swigluoai (which alone has "
            "swiglu_alpha), the same in all layers, or a family that is known here",
            fmt::format("{}, model_type \"{}\"", printable(facts.model.unread_activation),
                        printable(config.model_type)));
  RouterOptions& router = facts.router;
  router.experts = shape.experts;
  router.top_k = *config.top_k;
  const std::string_view module = router_name(config, prefix, find);
  facts.router_module = module;
  std::vector<std::string> names;
  for (const std::string_view bias : checkpoint::kRouterBiases)
    names.push_back(facts.prefix + fmt::format(fmt::runtime(bias), module));
  names.push_back(fmt::format("{}exp_probs_b.bias", prefix));
  if (!adds_bias_to_logits(config)) names.push_back(fmt::format("{}{}.bias", prefix, module));
  for (const std::string& name : names) {
    const auto found = find(name);
    if (!found) continue;
    Result<std::vector<float>> bias = read_floats(*found, name, {shape.experts});
    if (!bias) return bias.why();
    router.bias = std::move(*bias);
    facts.router_tensors.push_back(name);
    break;
  }
  for (const std::string_view part : {"weight", "bias"})
    if (std::string name = fmt::format("{}{}.{}", prefix, module, part); find(name))
      facts.router_tensors.push_back(std::move(name));
  facts.unread_router_tensor = find_unread(facts, names, list);
  choose_routing(config, find, facts);
  facts.weight_on_input = router.method == Method::llama4;
  if (!facts.no_routing)
    facts.model.layer.routing = oracle::routing_from_name(moe::routing::name(router.method))
                                    .value_or(oracle::Routing::unspecified);
  facts.router_hidden = config.router_hidden.value_or(shape.hidden);
  facts.has_router_weights = find(fmt::format("{}{}.weight", prefix, module)).has_value();
  return facts;
}

FindTensor finder(const checkpoint::Checkpoint& checkpoint) {
  const tensor::Store* store = &checkpoint.store();
  return [store](std::string_view name) -> std::optional<TensorView> {
    const tensor::StoredTensor* found = store->find(name);
    if (found == nullptr) return std::nullopt;
    return TensorView{found->entry.dtype, found->entry.shape, store->bytes(*found)};
  };
}

Result<LayerFacts> layer_facts(const checkpoint::Checkpoint& checkpoint, std::size_t number) {
  const checkpoint::LayerTensors& layer = checkpoint.layers()[number];
  return layer_facts(checkpoint.config(), layer.shape, layer.prefix,
                     checkpoint::split_rule(checkpoint, layer), finder(checkpoint),
                     lister(checkpoint));
}

ListTensors lister(const checkpoint::Checkpoint& checkpoint) {
  const tensor::Store* store = &checkpoint.store();
  return [store](std::string_view prefix) {
    std::vector<std::string> names;
    const auto name_of = [](const tensor::StoredTensor& tensor) {
      return std::string_view(tensor.entry.name);
    };
    const auto all = store->tensors();  // sorted by name
    for (auto at = std::ranges::lower_bound(all, prefix, {}, name_of);
         at != all.end() && at->entry.name.starts_with(prefix); ++at)
      names.push_back(at->entry.name);
    return names;
  };
}

ListTensors lister(const convert::ConvertedFolder& folder) {
  return [&folder](std::string_view prefix) {
    std::vector<std::string> names;
    for (const convert::FileRecord& file : folder.manifest().files)
      for (const convert::TensorRecord& tensor : file.tensors)
        if (tensor.name.starts_with(prefix)) names.push_back(tensor.name);
    return names;
  };
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

namespace {

// A GGUF file has no config.json; its metadata are among what a folder keeps of its source.
Result<checkpoint::ModelConfig> gguf_config(const convert::ConvertedFolder& folder) {
  for (const convert::SourceFile& file : folder.manifest().source_files) {
    const auto place = folder.find(convert::kSourceName, fmt::format("frame/{}", file.name));
    if (!place) continue;
    const auto fields = tensor::parse_gguf_fields(folder.bytes(place->file, place->tensor));
    if (!fields) return Error(fields.why()).in(folder.path());
    const auto facts = checkpoint::facts_from_gguf(*fields);
    if (!facts) return Error(facts.why()).in(folder.path());
    return facts->model;
  }
  return checkpoint::ModelConfig{};
}

}  // namespace

Result<LayerFacts> layer_facts(const convert::ConvertedFolder& folder, std::size_t number) {
  const auto document = checkpoint::read_config_document(folder.path(), "config.json");
  if (!document) return document.why();
  Result<checkpoint::ModelConfig> config = checkpoint::ModelConfig{};
  if (*document) {
    const auto parsed = checkpoint::parse_config((*document)->json);
    if (!parsed) return Error(parsed.why()).in(fmt::format("{}/config.json", folder.path()));
    config = parsed->model;
  } else if (folder.manifest().dialect == checkpoint::name(checkpoint::Dialect::gguf)) {
    config = gguf_config(folder);
    if (!config) return config.why();
  }
  if (folder.manifest().dialect == checkpoint::name(checkpoint::Dialect::openai))
    config->model_type =
        std::string(checkpoint::model_type_of(config->model_type, checkpoint::Dialect::openai));
  const convert::LayerRecord& layer = folder.manifest().layers[number];
  const convert::Problem& problem = layer.problem;
  const Result<convert::LayerPacker> packer = folder.packer(number);
  if (!packer) return packer.why();
  // The whole layer's sizes; where ranks share the intermediate size, this one's part of it.
  const checkpoint::MoeShape shape{
      .format = packer->layout().format,
      .experts = problem.global_experts == 0 ? problem.experts : problem.global_experts,
      .hidden = problem.real.hidden,
      .intermediate = problem.real.intermediate,
      .order = problem.order,
      .has_bias = problem.has_bias,
      .has_input_scale = packer->layout().format == checkpoint::WeightFormat::nvfp4 &&
                         problem.experts > 0 && packer->scalars(0).up_input.has_value()};
  return layer_facts(*config, shape, layer.prefix, checkpoint::SplitRule::equal, finder(folder),
                     lister(folder));
}

Result<RouterWeights> load_router(const LayerFacts& facts, const FindTensor& find) {
  const checkpoint::MoeShape& shape = facts.model.shape;
  const std::string name = fmt::format("{}{}.weight", facts.prefix, facts.router_module);
  const auto found = find(name);
  if (!found)
    return invalid("facts.router", "the model has no router weights for this layer")
        .at(name)
        .expects("a tensor of this name", "none")
        .try_this("give router_logits, or topk_ids and topk_weights");
  if (!facts.unread_router_tensor.empty()) return unread_tensor("facts.router", facts);
  RouterWeights result{.experts = shape.experts, .hidden = facts.router_hidden};
  Result<std::vector<float>> weight = read_floats(*found, name, {result.experts, result.hidden});
  if (!weight) return weight.why();
  result.weight = std::move(*weight);
  const std::string bias_name = fmt::format("{}{}.bias", facts.prefix, facts.router_module);
  if (const auto bias = find(bias_name); bias && facts.router.bias.empty()) {
    Result<std::vector<float>> values = read_floats(*bias, bias_name, {shape.experts});
    if (!values) return values.why();
    result.bias = std::move(*values);
  }
  return result;
}

Result<std::vector<float>> RouterWeights::logits(const moe::ConstRows& x) const {
  std::vector<float> result(x.rows * experts);
  std::vector<double> row(hidden);
  for (std::uint64_t t = 0; t < x.rows; ++t) {
    if (const auto go_on = check_interrupt(); !go_on) return go_on.why();
    read_row(x, t, std::span(row));
    for (std::uint64_t e = 0; e < experts; ++e) {
      const std::span<const float> weights = std::span(weight).subspan(e * hidden, hidden);
      double sum = bias.empty() ? 0.0 : double{bias[e]};
      for (std::uint64_t i = 0; i < hidden; ++i) sum += row[i] * double{weights[i]};
      result[t * experts + e] = static_cast<float>(sum);
    }
  }
  return result;
}

}  // namespace fp4moe::runtime
