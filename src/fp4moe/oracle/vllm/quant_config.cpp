#include "fp4moe/oracle/vllm/quant_config.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

namespace fp4moe::oracle {
namespace {

struct SchemeRow {
  QuantScheme scheme;
  ActivationKey activations;
};
constexpr SchemeRow kSchemes[] = {
    {QuantScheme::none, ActivationKey::none},
    {QuantScheme::mxfp4_w4a16, ActivationKey::none},
    {QuantScheme::mxfp4_mxfp8, ActivationKey::mxfp8},
    {QuantScheme::mxfp4_fp8, ActivationKey::fp8_block128},
    {QuantScheme::mxfp4_w4a8, ActivationKey::fp8_static_tensor},
    {QuantScheme::ocp_mx_mxfp4, ActivationKey::mxfp4},
    {QuantScheme::nvfp4, ActivationKey::nvfp4},
    {QuantScheme::nvfp4_w4a16, ActivationKey::none},
    {QuantScheme::mxfp4_nvfp4, ActivationKey::nvfp4_token},  // the kernel finds its scales itself
};

bool is_swigluoai(Activation activation) {
  return activation == Activation::swigluoai || activation == Activation::swigluoai_uninterleave;
}

// gpt-oss: x * sigmoid(1.702 x) * (y + 1), clamped at 7.
constexpr GateConstants kGptOss{1.702, 1.0, 7.0};

// How the loaded NVFP4 scales are read before anything is made of them.
struct LoadedNames {
  std::string_view w13, w2, a13, a2;
};
constexpr LoadedNames kModelopt{"w13_weight_scale_2[:, 0]", "w2_weight_scale_2", "w13_input_scale",
                                "w2_input_scale"};
constexpr LoadedNames kCompressed{"1 / w13_weight_global_scale[:, 0]", "1 / w2_weight_global_scale",
                                  "1 / w13_input_global_scale", "1 / w2_input_global_scale"};

void add_nvfp4_inputs(const Backend& backend, QuantScheme scheme, const LoadedNames& loaded,
                      QuantConfig& config) {
  const auto add = [&](std::string_view what, std::string made_of) {
    config.formulas.push_back({what, std::move(made_of)});
  };
  const std::string_view suffix =
      backend.conversion.rescales_global ? ", rescaled with the block scales" : "";
  add("w13_scale_2", fmt::format("{}{}", loaded.w13, suffix));
  add("w2_scale_2", fmt::format("{}{}", loaded.w2, suffix));
  if (scheme == QuantScheme::nvfp4_w4a16) {
    config.notes.emplace_back("the checkpoint's activation scales are dropped");
    return;
  }
  if (backend.global_activation_scales) {
    add("a13", fmt::format("max({}) over everything, for every expert", loaded.a13));
    add("a2", fmt::format("max({}) over everything, for every expert", loaded.a2));
  } else {
    add("a13", fmt::format("max({}) over gate and up", loaded.a13));
    add("a2", std::string(loaded.a2));
  }
}

void add_nvfp4(const Backend& backend, PolicyDate policy_date, QuantScheme scheme,
               BufferNames names, QuantConfig& config) {
  const auto add = [&](std::string_view what, std::string_view made_of) {
    config.formulas.push_back({what, std::string(made_of)});
  };
  add_nvfp4_inputs(backend, scheme, names == BufferNames::modelopt ? kModelopt : kCompressed,
                   config);
  const bool emulated = backend.family == "emulation";
  if (scheme == QuantScheme::nvfp4_w4a16) {
    add("g1_alphas", "w13_scale_2");
    add("g2_alphas", "w2_scale_2");
  } else if (backend.conversion.plain_alphas) {
    add("g1_alphas", "w13_scale_2");
    add("g2_alphas", "w2_scale_2");
    config.notes.emplace_back("the second scales must be finite and positive");
  } else if (emulated) {
    add("g1_alphas", "w13_scale_2");
    add("g2_alphas", "w2_scale_2");
    add("a1_gscale", "1 / max(a13)");
    add("a2_gscale", "1 / max(a2)");
  } else {
    add("g1_alphas", "a13 * w13_scale_2");
    add("g2_alphas", "a2 * w2_scale_2");
    add("a1_gscale", "1 / a13");
    if (scheme == QuantScheme::none) {
      add("g1_scale_c", "a13 * w13_scale_2 / a2");
    } else {
      add("a2_gscale", "1 / a2");
    }
    if (!kJanuary2026.contains(policy_date) && scheme == QuantScheme::nvfp4)
      config.notes.emplace_back(
          "g1_alphas and g2_alphas are multiplied by the activation scales after loading");
  }
  const std::string_view scales = backend.layout.empty() ? "as loaded" : "converted";
  add("w1_scale", fmt::format("{} w13_weight_scale", scales));
  add("w2_scale", fmt::format("{} w2_weight_scale", scales));
  if (scheme == QuantScheme::none)
    config.notes.emplace_back("no quant config: the layer itself keeps these for the function");
}

void add_mxfp4(const Backend& backend, Mode mode, const Layer& layer, QuantConfig& config) {
  const Conversion& conversion = backend.conversion;
  const std::string_view how = conversion.precision_configs ? "the precision config of"
                               : backend.layout.empty()     ? "as loaded,"
                                                            : "converted";
  config.formulas.push_back({"w1_scale", fmt::format("{} w13_weight_scale", how)});
  config.formulas.push_back({"w2_scale", fmt::format("{} w2_weight_scale", how)});
  if (config.scheme == QuantScheme::mxfp4_w4a8) {
    config.formulas.push_back({"a1_scale", "the checkpoint's static scale"});
    config.formulas.push_back({"a2_scale", "the checkpoint's static scale"});
  }
  if (layer.has_bias) {
    const auto bias = [](std::string_view tensor, std::string_view type) {
      return type.empty() ? std::string(tensor) : fmt::format("{} as {}", tensor, type);
    };
    config.formulas.push_back({"w1_bias", bias("w13_bias", conversion.bias13)});
    config.formulas.push_back({"w2_bias", bias("w2_bias", conversion.bias2)});
  } else if (backend.biases_required) {
    config.notes.emplace_back(
        mode == Mode::strict
            ? "biases are absent and count as zero; the reference's conversion insists on them"
            : "the reference's conversion stops here: it insists on both biases");
  }
}

}  // namespace

FromLayer form_from_layer(const Policy& policy, const Request& request) {
  const Layer& layer = request.layer;
  if (!kVllm033.contains(policy.policy_date)) return {layer.activation_key, {}};
  if (layer.activation_override) return {*layer.activation_override, {}};
  // gpt-oss layers do not pass on what the checkpoint says.
  if (policy.format == WeightFormat::mxfp4 && !policy.is_generic) return {};
  const auto& capability = request.device.capability;
  const bool hopper = capability && family(9).contains(*capability);
  if (layer.activation_key == ActivationKey::mxfp8 && hopper)
    return {ActivationKey::fp8_block128,
            "Running checkpoint MXFP8 MoE activations as block FP8 (group 128) on Hopper."};
  return {layer.activation_key, {}};
}

ActivationKey activations_of(QuantScheme scheme, ActivationKey asked) {
  const auto* row = std::ranges::find(kSchemes, scheme, &SchemeRow::scheme);
  if (row == std::end(kSchemes)) return asked;
  // NVFP4 with a second scale for each token is the checkpoint's choice.
  const bool by_token =
      row->activations == ActivationKey::nvfp4 && asked == ActivationKey::nvfp4_token;
  return by_token ? asked : row->activations;
}

QuantScheme scheme_of(const Backend& backend, Mode mode, const Layer& layer) {
  const bool wrong = mode == Mode::strict && backend.family == "emulation" &&
                     backend.scheme == QuantScheme::ocp_mx_mxfp4;
  const ActivationKey asked = layer.activation_override.value_or(layer.activation_key);
  return wrong && asked != ActivationKey::mxfp4 ? QuantScheme::mxfp4_w4a16 : backend.scheme;
}

GateConstants gate_constants(const Backend& backend, PolicyDate policy_date, Mode mode,
                             const Layer& layer) {
  const bool from_activation = mode == Mode::strict || kSinceAugust2026.contains(policy_date) ||
                               policy_date == PolicyDate::native;
  if (!from_activation) return backend.conversion.gemm1_constants ? kGptOss : GateConstants{};
  GateConstants constants = is_swigluoai(layer.activation) ? kGptOss : GateConstants{};
  if (layer.swiglu_alpha) constants.alpha = layer.swiglu_alpha;
  if (layer.swiglu_beta) constants.beta = layer.swiglu_beta;
  if (layer.swiglu_limit) constants.clamp = layer.swiglu_limit;
  return constants;
}

QuantConfig quant_config(const Backend& backend, PolicyDate policy_date, Mode mode,
                         const Layer& layer, BufferNames names,
                         std::optional<ActivationKey> from_layer) {
  QuantConfig config{.scheme = scheme_of(backend, mode, layer)};
  config.activations = activations_of(config.scheme, from_layer.value_or(layer.activation_key));
  config.weight_type = formats::name(backend.format);
  config.global_activation_scales = backend.global_activation_scales;
  config.activation_scales = backend.conversion.activation_scales;
  config.activation_alignment = backend.conversion.activation_alignment;
  config.caller_pads_input = !backend.conversion.pads_input;
  config.gate = gate_constants(backend, policy_date, mode, layer);
  if (config.scheme == QuantScheme::from_layer) {
    config.notes.emplace_back("the kernel derives its scales from the layer");
  } else if (config.scheme == QuantScheme::mxfp4_nvfp4) {
    config.notes.emplace_back("the kernel packs weights and scales itself");
  } else if (backend.format == WeightFormat::nvfp4) {
    add_nvfp4(backend, policy_date, config.scheme, names, config);
  } else {
    add_mxfp4(backend, mode, layer, config);
  }
  if (config.scheme != backend.scheme)
    config.notes.emplace_back(
        "activations stay in 16 bits, as the checkpoint has only weights quantized; the reference "
        "quantizes them to MXFP4, which is done here when it is asked for");
  else if (config.scheme == QuantScheme::ocp_mx_mxfp4 && backend.family == "emulation" &&
           mode == Mode::compat)
    config.notes.emplace_back("activations are quantized to MXFP4 whatever the checkpoint says");
  if (backend.conversion.gemm1_constants && !is_swigluoai(layer.activation) &&
      mode == Mode::compat && config.gate == kGptOss)
    config.notes.emplace_back("gpt-oss's SwiGLU constants are used for another activation");
  return config;
}

}  // namespace fp4moe::oracle
