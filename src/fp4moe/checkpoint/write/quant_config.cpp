#include "fp4moe/checkpoint/write/quant_config.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/version.hpp"

namespace fp4moe::checkpoint {
namespace {

// Modules that the same words tell, in the order of their first.
std::vector<std::vector<const Fp8Module*>> alike_fp8(const QuantFacts& facts) {
  std::vector<std::vector<const Fp8Module*>> groups;
  for (const Fp8Module& module : facts.fp8) {
    const auto found = std::ranges::find_if(groups, [&](const auto& group) {
      const Fp8Module& first = *group.front();
      const bool is_blocked = module.scales == Fp8Scales::blocks;
      return first.scales == module.scales && first.inputs == module.inputs &&
             (!is_blocked || first.block == module.block);
    });
    (found == groups.end() ? groups.emplace_back() : *found).push_back(&module);
  }
  return groups;
}

// compressed-tensors' group of FP8 modules.
Json compressed_fp8(const std::vector<const Fp8Module*>& modules) {
  const Fp8Module& first = *modules.front();
  const bool is_blocked = first.scales == Fp8Scales::blocks;
  const auto arguments = [](const char* strategy, bool is_dynamic) {
    return Json{{"actorder", nullptr},   {"block_structure", nullptr},
                {"dynamic", is_dynamic}, {"group_size", nullptr},
                {"num_bits", 8},         {"observer", nullptr},
                {"strategy", strategy},  {"symmetric", true},
                {"type", "float"}};
  };
  Json weights = arguments(is_blocked                        ? "block"
                           : first.scales == Fp8Scales::rows ? "channel"
                                                             : "tensor",
                           false);
  weights["observer"] = "minmax";
  if (is_blocked) weights["block_structure"] = Json::array({first.block[0], first.block[1]});
  Json inputs;
  if (first.inputs == Fp8Inputs::stored) inputs = arguments("tensor", false);
  if (first.inputs == Fp8Inputs::dynamic) {
    inputs = arguments(is_blocked ? "group" : "token", true);
    if (is_blocked) inputs["group_size"] = first.block[1];
  }
  Json targets = Json::array();
  for (const Fp8Module* module : modules) targets.push_back(module->name);
  return {{"format", "float-quantized"},
          {"input_activations", std::move(inputs)},
          {"output_activations", nullptr},
          {"targets", std::move(targets)},
          {"weights", std::move(weights)}};
}

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
  Json groups = Json::object();
  groups["group_0"] = std::move(group);
  for (const auto& modules : alike_fp8(facts))
    groups[fmt::format("group_{}", groups.size())] = compressed_fp8(modules);
  return {{"config_groups", std::move(groups)},
          {"format", facts.fp8.empty() ? format : "mixed-precision"},
          {"global_compression_ratio", nullptr},
          {"ignore", facts.ignore},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

Json quark_blocks(WeightFormat format, bool is_dynamic) {
  const bool nvfp4 = format == WeightFormat::nvfp4;
  return {{"ch_axis", -1},
          {"dtype", "fp4"},
          {"group_size", block_size(format)},
          {"is_dynamic", is_dynamic},
          {"is_scale_quant", false},
          {"qscheme", "per_group"},
          {"scale_format", nvfp4 ? "float32" : "e8m0"},
          {"scale_type", nvfp4 ? "float32" : "float"},
          {"symmetric", nullptr},
          {"observer_cls", "PerBlockMXObserver"}};
}

// A number for the whole tensor; `of_scales`: what NVFP4's block scales are divided by.
Json quark_tensor(bool of_scales) {
  return {{"ch_axis", nullptr},          {"dtype", "fp8_e4m3"},
          {"group_size", nullptr},       {"is_dynamic", false},
          {"is_scale_quant", of_scales}, {"qscheme", "per_tensor"},
          {"scale_format", nullptr},     {"scale_type", of_scales ? "float32" : "float"},
          {"symmetric", true},           {"observer_cls", "PerTensorMinMaxObserver"}};
}

Json quark_tensors(const DialectRow& row, bool is_input) {
  Json blocks = quark_blocks(row.format, is_input);
  if (row.format == WeightFormat::mxfp4) return is_input ? quark_tensor(false) : blocks;
  return Json::array({std::move(blocks), quark_tensor(true)});
}

// An FP8 module's weight or activations, in Quark's words.
Json quark_fp8_weight(const Fp8Module& module) {
  Json weight = quark_tensor(false);
  if (module.scales == Fp8Scales::rows) {
    weight["ch_axis"] = 0;
    weight["qscheme"] = "per_channel";
    weight["observer_cls"] = "PerChannelMinMaxObserver";
  }
  if (module.scales == Fp8Scales::blocks) {
    weight["block_size"] = Json::array({module.block[0], module.block[1]});
    weight["qscheme"] = "per_block";
    weight["observer_cls"] = "PerBlockMinMaxObserver";
  }
  return weight;
}

Json quark_fp8_inputs(const Fp8Module& module) {
  if (module.inputs == Fp8Inputs::none) return nullptr;
  Json inputs = quark_tensor(false);
  if (module.inputs == Fp8Inputs::stored) return inputs;
  inputs["is_dynamic"] = true;
  inputs["ch_axis"] = module.scales == Fp8Scales::blocks ? -1 : 1;
  inputs["qscheme"] = module.scales == Fp8Scales::blocks ? "per_group" : "per_channel";
  inputs["observer_cls"] = "PerChannelMinMaxObserver";
  if (module.scales == Fp8Scales::blocks) {
    inputs["group_size"] = module.block[1];
    inputs["observer_cls"] = "PerGroupMinMaxObserver";
  }
  return inputs;
}

Json quark_fp8(const QuantFacts& facts) {
  Json layers = Json::object();
  for (const Fp8Module& module : facts.fp8)
    layers[module.name] = Json{{"bias", nullptr},
                               {"input_tensors", quark_fp8_inputs(module)},
                               {"output_tensors", nullptr},
                               {"target_device", nullptr},
                               {"weight", quark_fp8_weight(module)}};
  return layers;
}

Json quark(const DialectRow& row, const QuantFacts& facts) {
  return {{"quant_method", "quark"},
          {"quant_mode", "eager_mode"},
          {"global_quant_config",
           {{"bias", nullptr},
            {"input_tensors", facts.has_input_scale ? quark_tensors(row, true) : Json()},
            {"output_tensors", nullptr},
            {"target_device", nullptr},
            {"weight", quark_tensors(row, false)}}},
          {"layer_quant_config", quark_fp8(facts)},
          {"layer_type_quant_config", Json::object()},
          {"exclude", facts.ignore},
          {"export",
           {{"kv_cache_group", Json::array()},
            {"pack_method", "order"},
            {"weight_format", "real_quantized"},
            {"weight_merge_groups", nullptr}}}};
}

// As ModelOpt spells them.
const char* modelopt_algorithm(const DialectRow& row, const QuantFacts& facts) {
  if (row.format == WeightFormat::mxfp4) return facts.has_input_scale ? "W4A8_MXFP4_FP8" : "mxfp4";
  return facts.has_input_scale ? "NVFP4" : "W4A16_NVFP4";
}

// MIXED_PRECISION names the algorithm of every module.
void add_modelopt_layers(Json& quantization, const DialectRow& row, const QuantFacts& facts) {
  if (facts.fp8.empty()) return;
  Json layers = Json::object();
  for (const std::string& module : facts.fp4)
    layers[module] = Json::object(
        {{"quant_algo", modelopt_algorithm(row, facts)}, {"group_size", block_size(row.format)}});
  for (const Fp8Module& module : facts.fp8)
    layers[module.name] = Json::object({{"quant_algo", modelopt_fp8_algorithm(module)}});
  quantization["quant_algo"] = "MIXED_PRECISION";
  quantization["quantized_layers"] = std::move(layers);
}

Json producer() { return {{"name", "modelopt"}, {"version", "fp4moe " + std::string(kVersion)}}; }

}  // namespace

std::vector<std::string> unquantized_modules(std::span<const OtherTensor> others) {
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

std::vector<std::pair<std::string, Json>> quantized_documents(Json config, const DialectRow& row,
                                                              const QuantFacts& facts) {
  std::vector<std::pair<std::string, Json>> documents;
  documents.emplace_back("config.json", with_quantization(std::move(config), row, facts));
  if (row.dialect == Dialect::modelopt)
    documents.emplace_back("hf_quant_config.json", hf_quant_config(row, facts));
  return documents;
}

Json quantization_config(const DialectRow& row, const QuantFacts& facts) {
  switch (row.dialect) {
    case Dialect::gpt_oss:
      return {{"modules_to_not_convert", facts.ignore}, {"quant_method", "mxfp4"}};
    case Dialect::modelopt: {
      Json document{{"ignore", facts.ignore},
                    {"quant_algo", modelopt_algorithm(row, facts)},
                    {"group_size", block_size(row.format)},
                    {"kv_cache_scheme", nullptr},
                    {"producer", producer()},
                    {"quant_method", "modelopt"}};
      add_modelopt_layers(document, row, facts);
      return document;
    }
    case Dialect::compressed_tensors:
      return compressed_tensors(row, facts);
    case Dialect::quark:
      return quark(row, facts);
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

Json hf_quant_config(const DialectRow& row, const QuantFacts& facts) {
  Json quantization{{"quant_algo", modelopt_algorithm(row, facts)},
                    {"kv_cache_quant_algo", nullptr},
                    {"group_size", block_size(row.format)},
                    {"exclude_modules", facts.ignore}};
  add_modelopt_layers(quantization, row, facts);
  return {{"producer", producer()}, {"quantization", std::move(quantization)}};
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

}  // namespace fp4moe::checkpoint
