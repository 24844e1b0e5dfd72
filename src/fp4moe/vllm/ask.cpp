#include "fp4moe/vllm/ask.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/json_fields.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/oracle/layer_fields.hpp"
#include "fp4moe/runtime/selection_request.hpp"
#include "fp4moe/vllm/kernel_maker.hpp"
#include "fp4moe/vllm/mxfp4.hpp"
#include "fp4moe/vllm/nvfp4.hpp"
#include "fp4moe/vllm/rows.hpp"

namespace fp4moe::vllm {
namespace {

Error not_understood(std::string_view key, std::string_view expected, const Json* found) {
  return usage("vllm.ask", "invalid request")
      .at(key)
      .expects(expected, found == nullptr ? std::string("nothing") : printable(found->dump()));
}

// The fields of a request. The first error is kept; what is absent has a value of its own.
class AskFields : public JsonFields {
 public:
  using JsonFields::JsonFields;

  std::string text(std::string_view key) { return get<std::string>(key).value_or(""); }
  std::uint64_t count(std::string_view key, std::uint64_t missing = 0) {
    return get<std::uint64_t>(key).value_or(missing);
  }
  bool flag(std::string_view key, bool missing) { return get<bool>(key).value_or(missing); }
  std::vector<float> floats(std::string_view key) {
    std::vector<float> result;
    const Json* const list = array(key);
    if (list == nullptr) return result;
    for (const Json& one : *list) {
      if (!one.is_number()) wrong(key, "a list of numbers", &one);
      result.push_back(one.is_number() ? static_cast<float>(one.get<double>()) : 0.0f);
    }
    return result;
  }
  Result<Done> done() const {
    if (problem_) return *problem_;
    return Done{};
  }

 private:
  void wrong(std::string_view key, std::string_view expected, const Json* found) override {
    if (!problem_) problem_ = not_understood(key, expected, found);
  }

  std::optional<Error> problem_{};
};

Result<std::string> text_of(const Json& object, std::string_view key) {
  AskFields fields(object);
  std::string result = fields.text(key);
  if (const auto done = fields.done(); !done) return done.why();
  return result;
}

// Options of routers and kernels that a selection does not need: not fields of a layer.
constexpr std::string_view kBesideLayer[] = {"num_expert_group",
                                             "topk_group",
                                             "e_score_correction_bias",
                                             "routed_scaling_factor",
                                             "apply_router_weight_on_input",
                                             "expert_placement"};

Result<Done> read_beside(const Json& from, MoeConfig& to) {
  AskFields fields(from);
  to.num_expert_group = fields.count("num_expert_group");
  to.topk_group = fields.count("topk_group");
  to.e_score_correction_bias = fields.floats("e_score_correction_bias");
  to.routed_scaling_factor = fields.get<double>("routed_scaling_factor").value_or(1.0);
  to.apply_router_weight_on_input = fields.flag("apply_router_weight_on_input", false);
  const std::string placement = fields.text("expert_placement");
  if (const auto done = fields.done(); !done) return done.why();
  if (placement == "round_robin")
    to.expert_placement = checkpoint::Placement::round_robin;
  else if (!placement.empty() && placement != "linear")
    return usage("vllm.ask", "invalid request")
        .at("expert_placement")
        .expects("linear or round_robin", printable(placement));
  return Done{};
}

Result<Context> context_from(const Json& request) {
  Context result;
  const Json* given = AskFields(request).find("context");
  if (given == nullptr) return current_context();
  runtime::SelectionOptions options;
  AskFields fields(*given);
  result.policy = fields.text("policy");
  const std::string mode = fields.text("mode");
  options.device = fields.text("device");
  options.platform = fields.text("platform");
  options.capability = fields.text("capability");
  options.gfx = fields.text("gfx");
  if (const auto done = fields.done(); !done) return done.why();
  if (!mode.empty() && mode != "strict" && mode != "compat")
    return usage("vllm.ask", "invalid request")
        .at("mode")
        .expects("strict or compat", printable(mode));
  result.mode = mode == "compat" ? oracle::Mode::compat : oracle::Mode::strict;
  if (const Json* libraries = fields.find("libraries")) {
    if (!libraries->is_array()) return not_understood("libraries", "a list of names", libraries);
    for (const Json& name : *libraries)
      options.libraries.push_back(name.is_string() ? name.string() : name.dump());
    if (options.libraries.empty()) options.libraries.emplace_back("none");
  }
  if (options.device.empty()) options.device = "auto";
  Result<platform::Device> device = runtime::resolve_device(options);
  if (!device) return device.why();
  result.device = *std::move(device);
  const bool is_here = options.device == "auto" && options.platform.empty() && options.gfx.empty();
  const Json* environment = fields.find("environment");
  if (environment == nullptr) {
    if (is_here) result.environment = platform::read_environment();
    return result;
  }
  if (!environment->is_object()) return not_understood("environment", "an object", environment);
  for (const auto& [name, value] : environment->items()) {
    const platform::VariableRow* row = platform::find_variable(name);
    if (row == nullptr || !value.is_string())
      return not_understood(name, "a variable of docs/oracle.md with a text", &value);
    result.environment.set(row->variable, value.string());
  }
  return result;
}

Json names_of(const auto& backends) {
  Json result = Json::array();
  for (const auto backend : backends) result.push_back(to_string(backend));
  return result;
}

template <class Enum>
Json selected_json(const Result<Selected<Enum>>& found, const oracle::Record& refused) {
  if (found) return Json::object({{"record", oracle::to_json(found->record)}});
  return Json::object({{"refused", found.why().message},
                       {"id", found.why().id},
                       {"record", oracle::to_json(refused)}});
}

// Wrong requests are errors; refusals are answers, with their record.
template <class Enum>
Result<Json> answered(const Result<Selected<Enum>>& found, const oracle::Record& refused) {
  if (!found && found.why().id != "vllm.refused") return found.why();
  return selected_json(found, refused);
}

Result<Json> select(const Json& request) {
  auto config = config_from(request);
  if (!config) return config.why();
  const auto format = format_from(request);
  if (!format) return format.why();
  const auto entry = text_of(request, "entry");
  if (!entry) return entry.why();
  oracle::Record refused;
  if (*format == WeightFormat::nvfp4)
    return answered(select_nvfp4_moe_backend(*config, kNvfp4Static,
                                             config->activation_key == ActivationKey::none
                                                 ? std::optional<ActivationKey>()
                                                 : config->activation_key,
                                             &refused),
                    refused);
  if (*entry == "deepseek_v4")
    return answered(select_deepseek_v4_mxfp4_moe_backend(*config, &refused), refused);
  return answered(select_mxfp4_moe_backend(*config, {}, &refused), refused);
}

// Requests about one backend, or about a list of them, of either format.
struct Asked {
  WeightFormat format{};
  MoeConfig config{};
  std::string backend{};
  const Json& request;

  Result<Row> row() const { return require_row(backend, format, config.context); }
};

Json list_json(const std::vector<Row>& rows) {
  Json result = Json::array();
  for (const Row row : rows) result.push_back(row->name);
  return result;
}

Result<Json> ask_backends(const Asked& asked) {
  return asked.format == WeightFormat::mxfp4
             ? Json(std::vector<std::string_view>(kMxfp4MoeBackends.begin(),
                                                  kMxfp4MoeBackends.end()))
             : Json(std::vector<std::string_view>(kNvFp4MoeBackends.begin(),
                                                  kNvFp4MoeBackends.end()));
}

Result<Json> ask_priority(const Asked& asked) {
  const auto rows = priority_rows(asked.config, asked.format);
  if (!rows) return rows.why();
  return list_json(*rows);
}

Result<Json> ask_map(const Asked& asked) {
  const auto rows = named_rows(asked.backend, asked.format, asked.config.context);
  if (!rows) return rows.why();
  return list_json(*rows);
}

Result<Json> ask_classes(const Asked& asked) {
  const auto row = asked.row();
  if (!row) return row.why();
  const auto classes = experts_classes(*row);
  if (!classes) return classes.why();
  Json result = Json::array();
  for (const ExpertsClass one : *classes)
    result.push_back(Json::object({{"name", one->name},
                                   {"monolithic", one->kind == oracle::Kind::monolithic},
                                   {"activation_format", oracle::name(one->format)}}));
  return result;
}

Result<Json> ask_activation_key(const Asked& asked) {
  const auto row = asked.row();
  if (!row) return row.why();
  return (*row)->activation == ActivationKey::none ? Json()
                                                   : Json(oracle::name((*row)->activation));
}

Result<Json> ask_round_up(const Asked& asked) {
  const auto row = asked.row();
  if (!row) return row.why();
  const auto activation = text_of(asked.request, "activation");
  if (!activation) return activation.why();
  const auto known = oracle::activation_from_name(*activation);
  const auto result = oracle::round_sizes(
      **row, asked.config.context.device, activation->empty() ? std::nullopt : known,
      {asked.config.hidden_dim, asked.config.intermediate_size_per_partition});
  if (!result) return result.why();
  return Json::array({result->hidden, result->intermediate});
}

Result<Json> ask_global_sf(const Asked& asked) {
  const auto row = asked.row();
  if (!row) return row.why();
  return Json((*row)->global_activation_scales);
}

Result<Json> ask_flashinfer(const Asked& asked) {
  const auto result = flashinfer_nvfp4_moe_backends(asked.config.context);
  if (!result) return result.why();
  return names_of(*result);
}

// The parameters of a layer before weights are loaded.
Result<Json> ask_buffers(const Asked& asked) {
  const auto row = asked.row();
  if (!row) return row.why();
  const auto policy = policy_of(asked.config.context, asked.format);
  if (!policy) return policy.why();
  const auto names = text_of(asked.request, "names");
  if (!names) return names.why();
  const MoeConfig& config = asked.config;
  const auto sizes = oracle::layer_sizes(
      **row, config.context.device, oracle::rounding_activation(**policy, layer_of(config)),
      config.moe_parallel_config, (*policy)->policy_date, config.in_dtype,
      {config.hidden_dim, config.intermediate_size_per_partition});
  if (!sizes) return sizes.why();
  const auto result = oracle::weight_buffers(
      {.format = asked.format,
       .names = *names == "compressed-tensors" ? oracle::BufferNames::compressed_tensors
                                               : oracle::BufferNames::modelopt,
       .sizes = *sizes,
       .local_experts = config.num_local_experts,
       .experts = config.num_experts,
       .gated = config.is_act_and_mul,
       .has_bias = config.has_bias,
       .global_activation_scales = (*row)->global_activation_scales});
  if (!result) return result.why();
  Json list = Json::array();
  for (const oracle::Buffer& buffer : *result)
    list.push_back(Json::object(
        {{"name", buffer.name}, {"dtype", buffer.dtype}, {"shape", Json(buffer.shape)}}));
  return Json::object({{"buffers", std::move(list)},
                       {"hidden", sizes->hidden},
                       {"intermediate", sizes->intermediate},
                       {"skip_forward_padding", (*row)->conversion.pads_input}});
}

// The quant config without the scales themselves.
Result<Json> ask_quant_config(const Asked& asked) {
  const auto row = asked.row();
  if (!row) return row.why();
  Mxfp4Scales given;
  AskFields fields(asked.request);
  given.gemm1_alpha = fields.get<double>("gemm1_alpha");
  given.gemm1_beta = fields.get<double>("gemm1_beta");
  given.swiglu_limit = fields.get<double>("swiglu_limit");
  if (const auto done = fields.done(); !done) return done.why();
  const auto result = quant_config_of(**row, given, asked.config);
  if (!result) return result.why();
  Json answer = to_json(*result);
  answer["family"] = (*row)->family;
  return answer;
}

Result<Json> ask_format(const Asked& asked) {
  const auto options = options_from(asked.request);
  if (!options) return options.why();
  const auto bias = text_of(asked.request, "bias_dtype");
  if (!bias) return bias.why();
  const auto bias_type = tensor::dtype_from_safetensors(bias->empty() ? "BF16" : *bias);
  if (!bias_type) return not_understood("bias_dtype", "BF16, F16 or F32", nullptr);
  const MoeConfig& config = asked.config;
  using checkpoint::RowOrder;
  const RowOrder order =
      !options->is_act_and_mul ? RowOrder::single : options->w13_order.value_or(RowOrder::halves);
  const checkpoint::MoeShape shape{
      .format = asked.format,
      .experts = config.num_local_experts,
      .hidden = options->hidden == 0 ? config.hidden_dim : options->hidden,
      .intermediate = config.intermediate_size_per_partition,
      .order = order,
      .has_bias = config.has_bias};
  const auto result = kernel_format(asked.backend, shape, config.context, *options, *bias_type);
  if (!result) return result.why();
  return to_json(*result);
}

struct Verb {
  std::string_view name;
  Result<Json> (*answer)(const Asked& asked);
};
constexpr Verb kVerbs[] = {
    {"backends", ask_backends},
    {"priority", ask_priority},
    {"map", ask_map},
    {"classes", ask_classes},
    {"activation_key", ask_activation_key},
    {"round_up", ask_round_up},
    {"is_global_sf", ask_global_sf},
    {"flashinfer", ask_flashinfer},
    {"buffers", ask_buffers},
    {"quant_config", ask_quant_config},
    {"kernel_format", ask_format},
};

}  // namespace

Result<WeightFormat> format_from(const Json& request) {
  const auto name = text_of(request, "format");
  if (!name) return name.why();
  if (const auto format = formats::weight_format_from_name(*name)) return *format;
  return not_understood("format", "mxfp4 or nvfp4", AskFields(request).find("format"));
}

Result<MoeConfig> config_from(const Json& request) {
  oracle::Layer layer;
  Json fields = Json::object();
  const Json* given = AskFields(request).find("config");
  if (given != nullptr && !given->is_object()) return not_understood("config", "an object", given);
  if (given != nullptr)
    for (const auto& [key, value] : given->items())
      if (std::ranges::find(kBesideLayer, key) == std::end(kBesideLayer)) fields[key] = value;
  if (const auto set = oracle::set_fields(layer, fields); !set) return set.why();
  MoeConfig result = config_of(layer);
  if (given != nullptr)
    if (const auto read = read_beside(*given, result); !read) return read.why();
  Result<Context> context = context_from(request);
  if (!context) return context.why();
  result.context = *std::move(context);
  return result;
}

Result<ConversionOptions> options_from(const Json& request) {
  ConversionOptions result;
  const Json none = Json::object();
  const Json* given = AskFields(request).find("options");
  AskFields fields(given == nullptr ? none : *given);
  result.is_act_and_mul = fields.flag("is_act_and_mul", true);
  result.takes_external = fields.flag("takes_external", false);
  const std::string order = fields.text("w13_order"), activation = fields.text("activation"),
                    params = fields.text("params_dtype");
  result.tp_size = fields.count("tp_size", 1);
  result.generation = fields.text("generation");
  result.threads = fields.count("threads", 1);
  result.hidden = fields.count("hidden");
  if (const auto done = fields.done(); !done) return done.why();
  for (const checkpoint::RowOrder known :
       {checkpoint::RowOrder::interleaved, checkpoint::RowOrder::halves})
    if (order == name(known)) result.w13_order = known;
  if (!order.empty() && !result.w13_order)
    return not_understood("w13_order", "interleaved or halves", fields.find("w13_order"));
  result.activation = oracle::activation_from_name(activation);
  if (!activation.empty() && !result.activation)
    return not_understood("activation", "an activation", fields.find("activation"));
  if (params == "float16")
    result.params_dtype = tensor::DType::f16;
  else if (!params.empty() && params != "bfloat16")
    return not_understood("params_dtype", "bfloat16 or float16", fields.find("params_dtype"));
  return result;
}

Json to_json(const KernelWeights& weights) {
  Json list = Json::array();
  for (const convert::PackedTensorSpec& tensor : weights.tensors())
    list.push_back(Json::object({{"name", tensor.name},
                                 {"dtype", tensor::name(tensor.dtype)},
                                 {"shape", Json(tensor.shape)},
                                 {"bytes", tensor.bytes},
                                 {"extents", Json(tensor.kernel.extents)},
                                 {"strides", Json(tensor.kernel.strides)}}));
  return Json::object({{"layout", weights.layout().id},
                       {"generation", weights.layout().generation},
                       {"tensors", std::move(list)}});
}

Json to_json(const FusedMoeQuantConfig& config) {
  const auto optional = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json();
  };
  return Json::object({{"scheme", oracle::name(config.scheme)},
                       {"quant_dtype", config.quant_dtype == ActivationKey::none
                                           ? Json()
                                           : Json(oracle::name(config.quant_dtype))},
                       {"weight_quant_dtype", config.weight_quant_dtype},
                       {"has_precision_configs", config.has_precision_configs},
                       {"gemm1_alpha", optional(config.gemm1_alpha)},
                       {"gemm1_beta", optional(config.gemm1_beta)},
                       {"gemm1_clamp_limit", optional(config.gemm1_clamp_limit)},
                       {"is_scale_swizzled", config.is_scale_swizzled},
                       {"mx_alignment", config.mx_alignment},
                       {"notes", Json(config.notes)}});
}

Result<Json> ask(const Json& request) {
  const auto verb = text_of(request, "ask");
  if (!verb) return verb.why();
  if (*verb == "select") return select(request);
  const auto* row = std::ranges::find(kVerbs, *verb, &Verb::name);
  if (row == std::end(kVerbs))
    return not_understood("ask", "a request of ask.cpp", AskFields(request).find("ask"));
  const auto format = format_from(request);
  if (!format) return format.why();
  Asked asked{.format = *format, .request = request};
  auto config = config_from(request);
  if (!config) return config.why();
  asked.config = *std::move(config);
  const auto backend = text_of(request, "backend");
  if (!backend) return backend.why();
  asked.backend = *backend;
  return row->answer(asked);
}

}  // namespace fp4moe::vllm
