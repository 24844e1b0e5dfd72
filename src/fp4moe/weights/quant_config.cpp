#include "fp4moe/weights/quant_config.hpp"

#include <algorithm>
#include <utility>

#include "fp4moe/base/version.hpp"

namespace fp4moe::weights {
namespace {

Json compressed_tensors(const DialectRow& row, const QuantFacts& facts) {
  const bool nvfp4 = row.format == WeightFormat::nvfp4;
  const char* format = nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized";
  const auto arguments = [&](bool weights) {
    Json scheme{{"actorder", nullptr},
                {"block_structure", nullptr},
                {"dynamic", false},
                {"group_size", block_size(row.format)},
                {"num_bits", 4},
                {"observer", weights ? Json("minmax") : Json()},
                {"observer_kwargs", Json::object()},
                {"strategy", nvfp4 ? "tensor_group" : "group"},
                {"symmetric", true},
                {"type", "float"}};
    if (!weights) scheme["dynamic"] = "local";
    return scheme;
  };
  Json group{{"format", format},
             {"input_activations", nullptr},
             {"output_activations", nullptr},
             {"targets", Json::array({"Linear"})},
             {"weights", arguments(true)}};
  if (nvfp4 && facts.has_input_scale) group["input_activations"] = arguments(false);
  return {{"config_groups", {{"group_0", std::move(group)}}},
          {"format", format},
          {"global_compression_ratio", nullptr},
          {"ignore", facts.ignore},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

Json quark(const QuantFacts& facts) {
  const Json weight{
      {"ch_axis", -1},         {"dtype", "fp4"},         {"group_size", 32},
      {"is_dynamic", false},   {"qscheme", "per_group"}, {"scale_format", "e8m0"},
      {"scale_type", "float"}, {"symmetric", nullptr},   {"observer_cls", "PerBlockMXObserver"}};
  return {{"quant_method", "quark"},
          {"quant_mode", "eager_mode"},
          {"global_quant_config",
           {{"bias", nullptr},
            {"input_tensors", nullptr},
            {"output_tensors", nullptr},
            {"target_device", nullptr},
            {"weight", weight}}},
          {"layer_quant_config", Json::object()},
          {"layer_type_quant_config", Json::object()},
          {"exclude", facts.ignore},
          {"export",
           {{"kv_cache_group", Json::array()},
            {"pack_method", "order"},
            {"weight_format", "real_quantized"},
            {"weight_merge_groups", nullptr}}}};
}

const char* modelopt_algorithm(const QuantFacts& facts) {
  return facts.has_input_scale ? "NVFP4" : "W4A16_NVFP4";
}

Json producer() { return {{"name", "modelopt"}, {"version", "fp4moe " + std::string(kVersion)}}; }

}  // namespace

std::vector<std::string> unquantised_modules(std::span<const OtherTensor> others) {
  constexpr std::string_view kEnding = ".weight";
  std::vector<std::string> modules;
  for (const OtherTensor& other : others) {
    const tensor::DType dtype = other.spec.dtype;
    const bool is_plain =
        dtype == tensor::DType::bf16 || dtype == tensor::DType::f16 || dtype == tensor::DType::f32;
    const std::string& name = other.spec.name;
    if (is_plain && other.spec.shape.size() == 2 && name.ends_with(kEnding))
      modules.push_back(name.substr(0, name.size() - kEnding.size()));
  }
  std::ranges::sort(modules);  // the same whatever order the source had
  return modules;
}

std::vector<std::pair<std::string, Json>> quantised_documents(Json config, const DialectRow& row,
                                                              const QuantFacts& facts) {
  std::vector<std::pair<std::string, Json>> documents;
  documents.emplace_back("config.json", with_quantization(std::move(config), row, facts));
  if (row.dialect == Dialect::modelopt)
    documents.emplace_back("hf_quant_config.json", hf_quant_config(facts));
  return documents;
}

Json quantization_config(const DialectRow& row, const QuantFacts& facts) {
  switch (row.dialect) {
    case Dialect::gpt_oss:
      return {{"modules_to_not_convert", facts.ignore}, {"quant_method", "mxfp4"}};
    case Dialect::modelopt:
      return {{"ignore", facts.ignore}, {"quant_algo", modelopt_algorithm(facts)},
              {"group_size", 16},       {"kv_cache_scheme", nullptr},
              {"producer", producer()}, {"quant_method", "modelopt"}};
    case Dialect::compressed_tensors:
      return compressed_tensors(row, facts);
    case Dialect::quark:
      return quark(facts);
    case Dialect::deepseek_v4:
      return {{"activation_scheme", "dynamic"},
              {"fmt", "e4m3"},
              {"quant_method", "fp8"},
              {"scale_fmt", "ue8m0"},
              {"weight_block_size", {128, 128}}};
    case Dialect::openai:
    case Dialect::gguf:
      break;
  }
  return nullptr;
}

Json hf_quant_config(const QuantFacts& facts) {
  return {{"producer", producer()},
          {"quantization",
           {{"quant_algo", modelopt_algorithm(facts)},
            {"kv_cache_quant_algo", nullptr},
            {"group_size", 16},
            {"exclude_modules", facts.ignore}}}};
}

Json with_quantization(Json config, const DialectRow& row, const QuantFacts& facts) {
  if (!config.is_object()) config = Json::object();
  Json quantization = quantization_config(row, facts);
  if (quantization.is_null()) {
    config.erase("quantization_config");
  } else {
    config["quantization_config"] = std::move(quantization);
  }
  return config;
}

}  // namespace fp4moe::weights
