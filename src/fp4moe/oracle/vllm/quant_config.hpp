// The scales of a checkpoint as the kernel gets them: the scheme's name, the types, and one
// formula in words for each thing that the kernel is given. Choices where the reference is wrong
// are made by the mode and said in `notes`:
//   Q6  a missing bias counts as zero, although some conversions of the reference insist on one
//   Q7  SwiGLU's constants come from the activation, not from gpt-oss for every layer
//   Q8  emulation keeps 16-bit activations for a weight-only checkpoint unless MXFP4 activations
//       are asked for; the reference always quantizes them
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/oracle/policy.hpp"
#include "fp4moe/oracle/request.hpp"
#include "fp4moe/oracle/vllm/buffers.hpp"

namespace fp4moe::oracle {

// A value that a kernel gets, and its formula in loaded values.
struct Formula {
  std::string_view what;  // "g1_alphas"
  std::string made_of;    // "a13 * w13_scale_2"
};

// Constants of the activation after GEMM1; absent ones do not apply.
struct GateConstants {
  std::optional<double> alpha{}, beta{}, clamp{};
  friend bool operator==(const GateConstants&, const GateConstants&) = default;
};

struct QuantConfig {
  QuantScheme scheme = QuantScheme::none;
  ActivationKey activations = ActivationKey::none;  // quantized to this before the kernel
  std::string_view weight_type{};                   // "mxfp4", "nvfp4"
  std::vector<Formula> formulas{};                  // intermediate names first, then the kernel's
  bool global_activation_scales = false;
  ScaleLayout activation_scales = ScaleLayout::none;
  std::uint32_t activation_alignment = 0;
  GateConstants gate{};
  bool caller_pads_input = true;  // to the rounded hidden size
  std::vector<std::string> notes{};
};

// The activation type of a kernel that derives its scales from the layer.
struct FromLayer {
  ActivationKey activations = ActivationKey::none;
  std::string log{};  // at information level; empty: none
};
FromLayer form_from_layer(const Policy& policy, const Request& request);

// The type that the scheme quantizes activations to; `from_layer` is `asked`.
ActivationKey activations_of(QuantScheme scheme, ActivationKey asked);

// The backend's scheme, with Q8 repaired in strict mode.
QuantScheme scheme_of(const Backend& backend, Mode mode, const Layer& layer);
GateConstants gate_constants(const Backend& backend, PolicyDate policy_date, Mode mode,
                             const Layer& layer);

// `from_layer` is form_from_layer's answer; without it the checkpoint's own form counts.
QuantConfig quant_config(const Backend& backend, PolicyDate policy_date, Mode mode,
                         const Layer& layer, BufferNames names = BufferNames::modelopt,
                         std::optional<ActivationKey> from_layer = {});

}  // namespace fp4moe::oracle
