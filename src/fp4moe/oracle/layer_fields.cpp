#include "fp4moe/oracle/layer_fields.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::oracle {
namespace {

constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 32;

template <class Number>
bool parse(std::string_view text, Number& into) {
  Number value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size()) return false;
  into = value;
  return true;
}

template <std::uint64_t Layer::*Member>
bool set_size(Layer& layer, std::string_view text) {
  std::uint64_t value = 0;
  if (!parse(text, value) || value == 0 || value > kMaxSize) return false;
  layer.*Member = value;
  return true;
}
template <std::uint64_t Layer::*Member>
std::string show_size(const Layer& layer) {
  return std::to_string(layer.*Member);
}
std::string a_size() { return "a whole number from 1 to 2^32"; }

template <bool Layer::*Member>
bool set_switch(Layer& layer, std::string_view text) {
  const bool on = text == "true" || text == "1" || text == "yes" || text == "on";
  const bool off = text == "false" || text == "0" || text == "no" || text == "off";
  if (on || off) layer.*Member = on;
  return on || off;
}
template <bool Layer::*Member>
std::string show_switch(const Layer& layer) {
  return layer.*Member ? "true" : "false";
}
std::string a_switch() { return "true, false"; }

template <class Enum, Enum Layer::*Member, std::optional<Enum> (*FromName)(std::string_view)>
bool set_word(Layer& layer, std::string_view text) {
  const std::optional<Enum> found = FromName(text);
  if (found) layer.*Member = *found;
  return found.has_value();
}
template <auto Member>
std::string show_word(const Layer& layer) {
  return std::string(name(layer.*Member));
}
template <const auto& Words>
std::string words() {
  std::vector<std::string> names;
  for (const auto& word : Words) {
    if constexpr (requires { word.name; })
      names.emplace_back(word.name);
    else
      names.emplace_back(word);
  }
  return join(names, ", ");
}

template <std::optional<double> Layer::*Member>
bool set_number(Layer& layer, std::string_view text) {
  double value = 0;
  if (!parse(text, value) || !std::isfinite(value)) return false;
  layer.*Member = value;
  return true;
}
template <std::optional<double> Layer::*Member>
std::string show_number(const Layer& layer) {
  return layer.*Member ? fmt::format("{}", *(layer.*Member)) : "";
}
std::string a_number() { return "a number"; }

bool set_override(Layer& layer, std::string_view text) {
  layer.activation_override = activation_key_from_name(text);
  return layer.activation_override.has_value();
}
bool set_backend(Layer& layer, std::string_view text) {
  layer.backend = text;
  return true;
}

// clang-format off
constexpr LayerField kFields[] = {
    {"activation",          "activation",        "activation between GEMM1 and GEMM2",            words<kActivationWords>, set_word<Activation, &Layer::activation, activation_from_name>, show_word<&Layer::activation>},
    {"routing_method",      "routing",           "how tokens choose experts",                     words<kRoutingWords>,    set_word<Routing, &Layer::routing, routing_from_name>, show_word<&Layer::routing>},
    {"moe_backend",         "backend",           "insist on a backend instead of choosing",       [] { return std::string("auto, or a name of the policy"); }, set_backend, [](const Layer& layer) { return layer.backend; }},
    {"is_act_and_mul",      "gated",             "the layer has a gate",                          a_switch, set_switch<&Layer::gated>, show_switch<&Layer::gated>},
    {"has_bias",            "bias",              "the experts have biases",                       a_switch, set_switch<&Layer::has_bias>, show_switch<&Layer::has_bias>},
    {"is_lora_enabled",     "lora",              "adapters may be loaded",                        a_switch, set_switch<&Layer::lora>, show_switch<&Layer::lora>},
    {"num_experts",         "experts",           "experts of all ranks, redundant ones included", a_size, set_size<&Layer::num_experts>, show_size<&Layer::num_experts>},
    {"num_local_experts",   "local-experts",     "experts of this rank",                          a_size, set_size<&Layer::num_local_experts>, show_size<&Layer::num_local_experts>},
    {"experts_per_token",   "top-k",             "experts that a token goes to",                  a_size, set_size<&Layer::experts_per_token>, show_size<&Layer::experts_per_token>},
    {"hidden_dim",          "hidden",            "hidden size",                                   a_size, set_size<&Layer::hidden>, show_size<&Layer::hidden>},
    {"intermediate_size_per_partition", "intermediate", "intermediate size of one rank",           a_size, set_size<&Layer::intermediate>, show_size<&Layer::intermediate>},
    {"in_dtype",            "in-dtype",          "type of the tokens",                            words<kScalarNames>, set_word<ScalarType, &Layer::in_dtype, scalar_from_name>, show_word<&Layer::in_dtype>},
    {"router_logits_dtype", "router-logits-dtype", "type of the router's logits",                 words<kScalarNames>, set_word<ScalarType, &Layer::router_logits_dtype, scalar_from_name>, show_word<&Layer::router_logits_dtype>},
    {"activation_quant",    "activation-quant",  "how the checkpoint quantizes activations",      words<kKeyWords>, set_word<ActivationKey, &Layer::activation_key, activation_key_from_name>, show_word<&Layer::activation_key>},
    {"activation_override", "activation-override", "quantize activations so instead",             words<kKeyWords>, set_override, [](const Layer& layer) { return layer.activation_override ? std::string(name(*layer.activation_override)) : ""; }},
    {"swiglu_limit",        "swiglu-limit",      "the model clamps SwiGLU at this value",         a_number, set_number<&Layer::swiglu_limit>, show_number<&Layer::swiglu_limit>},
    {"swiglu_alpha",        "swiglu-alpha",      "the model scales SwiGLU's sigmoid by this",     a_number, set_number<&Layer::swiglu_alpha>, show_number<&Layer::swiglu_alpha>},
    {"swiglu_beta",         "swiglu-beta",       "the model adds this to SwiGLU's up value",      a_number, set_number<&Layer::swiglu_beta>, show_number<&Layer::swiglu_beta>},
    {"activation_situ_beta", "situ-beta",        "SiTU's beta",                                   a_number, set_number<&Layer::situ_beta>, show_number<&Layer::situ_beta>},
    {"activation_situ_linear_beta", "situ-linear-beta", "SiTU's linear beta",                     a_number, set_number<&Layer::situ_linear_beta>, show_number<&Layer::situ_linear_beta>},
    {"disable_inplace",     "disable-inplace",   "the output may not take the input's place",     a_switch, set_switch<&Layer::disable_inplace>, show_switch<&Layer::disable_inplace>},
    {"shared_experts",      "shared-experts",    "the model has shared experts",                  a_switch, set_switch<&Layer::shared_experts>, show_switch<&Layer::shared_experts>},
    {"has_hash_routing",    "hash-routing",      "a table gives each token its experts",          a_switch, set_switch<&Layer::hash_routing>, show_switch<&Layer::hash_routing>},
    {"require_decomposed_backend", "decomposed", "routes change between routing and experts",     a_switch, set_switch<&Layer::decomposed>, show_switch<&Layer::decomposed>},
    {"skip_final_all_reduce", "skip-final-all-reduce", "the model sums over ranks itself",       a_switch, set_switch<&Layer::skip_final_all_reduce>, show_switch<&Layer::skip_final_all_reduce>},
    {"enable_dbo",          "dbo",               "two batches overlap",                           a_switch, set_switch<&Layer::dual_batch_overlap>, show_switch<&Layer::dual_batch_overlap>},
    {"weight_transfer",     "weight-transfer",   "weights are replaced while the model runs",     a_switch, set_switch<&Layer::weight_transfer>, show_switch<&Layer::weight_transfer>},
    {"max_num_tokens",      "max-tokens",        "tokens of one rank, for batched exchanges",     a_size, set_size<&Layer::max_num_tokens>, show_size<&Layer::max_num_tokens>},
};
// clang-format on

const LayerField* find_field(std::string_view key) {
  const auto found = std::ranges::find_if(
      kFields, [&](const LayerField& field) { return field.key == key || field.option == key; });
  return found == std::end(kFields) ? nullptr : &*found;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string_view near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("did you mean {}?", near);
}

Error unknown_field(std::string_view key) {
  std::vector<std::string_view> keys;
  for (const LayerField& field : kFields) keys.push_back(field.key);
  std::vector<std::string> names(keys.begin(), keys.end());
  return usage("layer.field", "a layer has no such field")
      .at(printable(key))
      .expects("one of " + join(names, ", "), "'" + printable(key) + "'")
      .try_this(did_you_mean(key, keys));
}

// Numbers and switches of the parallel layout by name.
struct ParallelNumber {
  std::string_view key;
  int Parallel::*member;
};
constexpr ParallelNumber kParallelNumbers[] = {
    {"tp_size", &Parallel::tp_size}, {"pcp_size", &Parallel::pcp_size},
    {"dp_size", &Parallel::dp_size}, {"ep_size", &Parallel::ep_size},
    {"tp_rank", &Parallel::tp_rank}, {"pcp_rank", &Parallel::pcp_rank},
    {"dp_rank", &Parallel::dp_rank}, {"ep_rank", &Parallel::ep_rank},
    {"sp_size", &Parallel::sp_size},
};

Error parallel_value(std::string_view key, const Json& value, std::string_view expected) {
  return usage("layer.value", "the parallel layout cannot be read")
      .at(printable(key))
      .expects(expected, printable(value.dump()));
}

Result<Done> set_parallel(Parallel& layout, const Json& object) {
  if (!object.is_object()) return parallel_value("parallel", object, "an object");
  for (const auto& [key, value] : object.items()) {
    const auto number = std::ranges::find(kParallelNumbers, key, &ParallelNumber::key);
    if (number != std::end(kParallelNumbers)) {
      const bool fits = value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                        value.get<std::int64_t>() < 1 << 20;
      if (!fits) return parallel_value(key, value, "a whole number below 2^20");
      layout.*(number->member) = value.get<int>();
    } else if (key == "use_ep" || key == "enable_eplb") {
      if (!value.is_boolean()) return parallel_value(key, value, "true or false");
      (key == "use_ep" ? layout.use_ep : layout.enable_eplb) = value.get<bool>();
    } else if (key == "all2all_backend") {
      if (!value.is_string()) return parallel_value(key, value, "the name of an exchange");
      layout.all2all_backend = value.string();
    } else {
      return parallel_value(key, value, "a field of a parallel layout as the key");
    }
  }
  return Done{};
}

}  // namespace

std::span<const LayerField> layer_fields() { return kFields; }

Result<Done> set_field(Layer& layer, std::string_view key, std::string_view text) {
  const LayerField* field = find_field(key);
  if (field == nullptr) return unknown_field(key);
  if (field->set(layer, text)) return Done{};
  const std::string accepted = field->accepted();
  std::vector<std::string_view> words;
  for (std::string_view word : split(accepted, ','))
    words.push_back(word.starts_with(' ') ? word.substr(1) : word);
  return usage("layer.value", fmt::format("{} is no value of {}", printable(text), field->option))
      .at(field->key)
      .expects((words.size() > 1 ? "one of " : "") + accepted, "'" + printable(text) + "'")
      .try_this(words.size() > 1 ? did_you_mean(text, words) : "");
}

Result<Done> set_fields(Layer& layer, const Json& config) {
  if (!config.is_object())
    return usage("layer.field", "a layer's configuration is a JSON object")
        .expects("an object", config.type_name());
  for (const auto& [key, value] : config.items()) {
    if (value.is_null()) continue;
    const Result<Done> set =
        key == "parallel"
            ? set_parallel(layer.parallel, value)
            : set_field(layer, key, value.is_string() ? value.string() : value.dump());
    if (!set) return set.why();
  }
  return Done{};
}

}  // namespace fp4moe::oracle
