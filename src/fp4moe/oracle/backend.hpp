// A backend: what the world knows by name. It asks for activations in one form, tries its experts
// kernels in order, rounds sizes, and fixes the weights' layout and the quantization scheme.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "fp4moe/oracle/experts.hpp"

namespace fp4moe::oracle {

// The first row that matches the device rounds the sizes up. Empty columns match everything.
struct Rounding {
  EnumSet<PlatformKind> kinds{};
  EnumSet<Activation> activations{};
  std::string_view gfx{};      // exactly this architecture
  std::string_view not_gfx{};  // its name does not contain this
  std::uint32_t intermediate = 1, hidden = 1;
};

// The form of the scales for the kernel.
enum class QuantScheme : std::uint8_t {
  none,          // a function without a quant config, or no kernel at all
  mxfp4_w4a16,   // 16-bit activations
  mxfp4_mxfp8,   // activations to MXFP8 on the way in
  mxfp4_fp8,     // FP8, blocks of 128
  mxfp4_w4a8,    // FP8 with static scales
  ocp_mx_mxfp4,  // activations to MXFP4
  nvfp4,         // activations to NVFP4
  nvfp4_w4a16,   // 16-bit activations
  from_layer,    // the kernel derives it from the layer itself
  mxfp4_nvfp4,   // activations to NVFP4 by the kernel, which owns all scales
};
std::string_view name(QuantScheme scheme);

// How the block scales of quantized activations lie.
enum class ScaleLayout : std::uint8_t { none, linear, swizzled };

// NVFP4: sizes are not rounded before loading; conversion pads, or refuses. The first row whose
// `hidden_is` divides the hidden size counts; where there are rows, one must.
struct ConversionPadding {
  std::uint32_t hidden_is = 1;
  std::uint32_t hidden = 1;                // padded up to a multiple of
  std::uint32_t gated = 1, not_gated = 1;  // the same for the intermediate size
  std::uint32_t gated_needs = 1;           // refused unless the intermediate size is a multiple of
};

// The result of loading for the kernel, apart from the weights' layout.
struct Conversion {
  std::string_view bias13{}, bias2{};  // the biases' types; empty: as loaded
  bool rescales_global = false;        // folds part of the block scales into the global ones
  bool precision_configs = false;      // scales become objects of the kernel's library
  bool gemm1_constants = false;        // carries gpt-oss's SwiGLU constants for every expert
  bool pads_input = false;             // its activation quantizer pads, the caller need not
  bool plain_alphas = false;           // alphas are the second scales themselves
  ScaleLayout activation_scales = ScaleLayout::none;
  std::uint32_t activation_alignment = 0;  // of a quantized row; 0: none
  std::span<const ConversionPadding> padding{};
};

struct Backend {
  std::string_view name;      // as users, logs and the reference print it
  std::string_view family{};  // its folder under backends/
  WeightFormat format{};
  EnumSet<PolicyDate> policy_dates{};
  ActivationKey activation = ActivationKey::none;  // MXFP4: what it asks the kernel for
  std::span<const ExpertsClass* const> experts{};  // in trial order
  std::string_view batched{};  // the backend that stands in for it when tokens come batched
  // By name, with LoRA on: these kernels instead, or no kernel at all and this reason.
  std::span<const ExpertsClass* const> lora_experts{};
  std::string_view lora_refusal{};
  std::span<const Rounding> rounding{};
  QuantScheme scheme = QuantScheme::none;
  std::string_view layout{};              // id of the weight layout; empty: as loaded
  std::string_view numerics{};            // id of where it rounds (moe/numerics.hpp)
  bool biases_required = false;           // the reference's conversion insists on both biases
  bool any_activation = false;            // computes whatever form of activations is asked for
  bool takes_override = false;            // computes the form that the user asks for
  bool applies_clamp = true;              // honors swiglu_limit
  bool global_activation_scales = false;  // one activation scale for all experts of all ranks
  Conversion conversion{};
};

}  // namespace fp4moe::oracle
