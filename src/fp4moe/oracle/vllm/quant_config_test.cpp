#include "fp4moe/oracle/vllm/quant_config.hpp"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace quant_config_test {

constexpr Backend backend(WeightFormat format, QuantScheme scheme, std::string_view family = "fake",
                          Conversion conversion = {}) {
  return {.name = "FAKE",
          .family = family,
          .format = format,
          .scheme = scheme,
          .layout = family == "emulation" ? "" : "fake.layout",
          .conversion = conversion};
}
constexpr auto kMx = WeightFormat::mxfp4;
constexpr auto kNv = WeightFormat::nvfp4;
constexpr Backend kTrtllm = backend(kMx, QuantScheme::mxfp4_mxfp8, "flashinfer_trtllm",
                                    {.bias13 = "f32",
                                     .bias2 = "f32",
                                     .gemm1_constants = true,
                                     .pads_input = true,
                                     .activation_scales = ScaleLayout::linear,
                                     .activation_alignment = 256});
constexpr Backend kTriton =
    backend(kMx, QuantScheme::mxfp4_w4a16, "triton", {.precision_configs = true});
constexpr Backend kEmulation = backend(kMx, QuantScheme::ocp_mx_mxfp4, "emulation");

std::string formula(const QuantConfig& config, std::string_view what) {
  const auto found = std::ranges::find(config.formulas, what, &Formula::what);
  return found == config.formulas.end() ? "" : found->made_of;
}

QuantConfig april(const Backend& result, const Layer& layer = {}, Mode mode = Mode::strict) {
  return quant_config(result, PolicyDate::april_24, mode, layer);
}

TEST(QuantConfig, OfMxfp4SaysWhatTheScalesAndBiasesBecome) {
  const QuantConfig config = april(kTrtllm, {.has_bias = true});

  EXPECT_EQ(config.activations, ActivationKey::mxfp8);
  EXPECT_EQ(config.weight_type, "mxfp4");
  EXPECT_EQ(formula(config, "w1_scale"), "converted w13_weight_scale");
  EXPECT_EQ(formula(config, "w1_bias"), "w13_bias as f32");
  EXPECT_EQ(config.activation_scales, ScaleLayout::linear);
  EXPECT_EQ(config.activation_alignment, 256u);
  EXPECT_FALSE(config.caller_pads_input);
  EXPECT_EQ(formula(april(kTriton, {.has_bias = true}), "w2_scale"),
            "the precision config of w2_weight_scale");
  EXPECT_EQ(formula(april(kTriton, {.has_bias = true}), "w2_bias"), "w2_bias");
  EXPECT_EQ(formula(april(kTriton), "w1_bias"), "");
  EXPECT_TRUE(april(kTriton).caller_pads_input);
}

TEST(QuantConfig, StaticActivationScalesComeFromTheCheckpoint) {
  const QuantConfig config = april(backend(kMx, QuantScheme::mxfp4_w4a8));

  EXPECT_EQ(config.activations, ActivationKey::fp8_static_tensor);
  EXPECT_NE(formula(config, "a1_scale"), "");
}

TEST(QuantConfig, AMissingBiasIsSaidWhereTheReferenceInsists) {
  Backend insisting = kTrtllm;
  insisting.biases_required = true;

  EXPECT_TRUE(april(insisting, {.has_bias = true}).notes.empty());
  ASSERT_EQ(april(insisting).notes.size(), 1u);
  EXPECT_NE(april(insisting).notes[0], april(insisting, {}, Mode::compat).notes[0]);
}

TEST(QuantConfig, GateConstantsComeFromTheActivationExceptInTheOldReference) {
  const GateConstants gpt_oss{1.702, 1.0, 7.0};
  const Layer silu{.activation = Activation::silu};
  const auto constants = [](const Backend& result, PolicyDate policy_date, Mode mode,
                            const Layer& layer) {
    return gate_constants(result, policy_date, mode, layer);
  };

  EXPECT_EQ(constants(kTrtllm, PolicyDate::april_24, Mode::compat, silu), gpt_oss);
  EXPECT_EQ(constants(kTrtllm, PolicyDate::april_24, Mode::strict, silu), GateConstants{});
  EXPECT_EQ(constants(kTrtllm, PolicyDate::august_22, Mode::compat, silu), GateConstants{});
  EXPECT_EQ(constants(kTriton, PolicyDate::april_24, Mode::compat, {}), GateConstants{});
  EXPECT_EQ(constants(kTriton, PolicyDate::april_24, Mode::strict, {}), gpt_oss);
  const Layer limited{.activation = Activation::silu, .swiglu_limit = 10.0};
  EXPECT_EQ(constants(kTriton, PolicyDate::august_22, Mode::compat, limited).clamp, 10.0);
  EXPECT_FALSE(constants(kTriton, PolicyDate::august_22, Mode::compat, limited).alpha);
  EXPECT_EQ(constants(kTriton, PolicyDate::august_22, Mode::strict, {.swiglu_limit = 5.0}).clamp,
            5.0);
  EXPECT_EQ(april(kTrtllm, silu, Mode::compat).notes.size(), 1u);
}

TEST(QuantConfig, EmulationKeepsActivationsUnlessAskedToQuantizeThem) {
  EXPECT_EQ(april(kEmulation).scheme, QuantScheme::mxfp4_w4a16);
  EXPECT_EQ(april(kEmulation).activations, ActivationKey::none);
  EXPECT_EQ(april(kEmulation).notes.size(), 1u);
  EXPECT_EQ(formula(april(kEmulation), "w1_scale"), "as loaded, w13_weight_scale");

  EXPECT_EQ(april(kEmulation, {}, Mode::compat).activations, ActivationKey::mxfp4);
  EXPECT_EQ(april(kEmulation, {.activation_key = ActivationKey::mxfp4}).activations,
            ActivationKey::mxfp4);
  EXPECT_EQ(april(kEmulation, {.activation_override = ActivationKey::mxfp4}).activations,
            ActivationKey::mxfp4);
  EXPECT_EQ(april(backend(kMx, QuantScheme::ocp_mx_mxfp4, "xpu")).activations,
            ActivationKey::mxfp4);
}

TEST(QuantConfig, OfNvfp4SaysWhatTheGlobalScalesBecome) {
  const Backend cutlass = backend(kNv, QuantScheme::nvfp4);
  const QuantConfig own = april(cutlass);
  EXPECT_EQ(formula(own, "g1_alphas"), "a13 * w13_scale_2");
  EXPECT_EQ(formula(own, "a2_gscale"), "1 / a2");
  EXPECT_EQ(formula(own, "w13_scale_2"), "w13_weight_scale_2[:, 0]");
  EXPECT_EQ(formula(own, "a13"), "max(w13_input_scale) over gate and up");

  Backend shared = cutlass;
  shared.global_activation_scales = true;
  const QuantConfig packed = quant_config(shared, PolicyDate::january_27, Mode::strict, {},
                                          BufferNames::compressed_tensors);
  EXPECT_EQ(formula(packed, "w2_scale_2"), "1 / w2_weight_global_scale");
  EXPECT_EQ(formula(packed, "a13"),
            "max(1 / w13_input_global_scale) over everything, for every expert");
  EXPECT_TRUE(packed.global_activation_scales);
  EXPECT_TRUE(packed.notes.empty());
}

TEST(QuantConfig, MarlinDropsActivationScales) {
  const QuantConfig config = april(backend(kNv, QuantScheme::nvfp4_w4a16, "marlin"));

  EXPECT_EQ(config.activations, ActivationKey::none);
  EXPECT_EQ(formula(config, "g1_alphas"), "w13_scale_2");
  EXPECT_EQ(formula(config, "a1_gscale"), "");
  EXPECT_EQ(formula(config, "a13"), "");
}

TEST(QuantConfig, EmulatedNvfp4KeepsWeightAndActivationScalesApart) {
  const QuantConfig config = april(backend(kNv, QuantScheme::nvfp4, "emulation"));

  EXPECT_EQ(formula(config, "g1_alphas"), "w13_scale_2");
  EXPECT_EQ(formula(config, "a1_gscale"), "1 / max(a13)");
}

TEST(QuantConfig, JanuarysFunctionKeepsItsScalesOnTheLayer) {
  const QuantConfig config =
      quant_config(backend(kNv, QuantScheme::none), PolicyDate::january_27, Mode::strict, {});

  EXPECT_EQ(formula(config, "g1_scale_c"), "a13 * w13_scale_2 / a2");
  EXPECT_EQ(formula(config, "a2_gscale"), "");
}

TEST(QuantConfig, AKernelThatDerivesItsScalesIsAskedFor) {
  const QuantConfig config =
      april(backend(kMx, QuantScheme::from_layer), {.activation_key = ActivationKey::mxfp8});

  EXPECT_EQ(config.activations, ActivationKey::mxfp8);
  EXPECT_EQ(config.notes.size(), 1u);
}

}  // namespace quant_config_test
}  // namespace fp4moe::oracle
