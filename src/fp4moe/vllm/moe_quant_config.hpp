// The quant config of a kernel (vLLM's FusedMoEQuantConfig), as values.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/oracle/vllm/quant_config.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"
#include "fp4moe/vllm/moe_config.hpp"

namespace fp4moe::vllm {

// Views of converted tensors; who makes them keeps the memory.
struct FusedMoeQuantConfig {
  oracle::QuantScheme scheme = oracle::QuantScheme::none;  // none: the reference makes none
  ActivationKey quant_dtype = ActivationKey::none;         // of activations
  std::string_view weight_quant_dtype{};                   // "mxfp4", "nvfp4"
  TensorView w1_scale{}, w2_scale{};
  TensorView w1_bias{}, w2_bias{};
  // Their precision configs: triton_kernels wraps the scales in objects of its own.
  bool has_precision_configs = false;
  std::vector<float> g1_alphas{}, g2_alphas{};  // what accumulators are multiplied by, [E]
  std::vector<float> a1_gscale{}, a2_gscale{};  // what activations are multiplied by
  std::vector<float> g1_scale_c{};              // TRT-LLM: from GEMM1 to GEMM2
  std::vector<float> a1_scale{}, a2_scale{};    // static FP8
  std::optional<double> gemm1_alpha{}, gemm1_beta{}, gemm1_clamp_limit{};
  bool is_scale_swizzled = false;  // block scales of quantized activations
  std::uint32_t mx_alignment = 0;  // of a row of quantized activations; 0: none
  std::vector<std::string> notes{};
};

// Arguments of make_mxfp4_moe_quant_config. Absent constants are the configuration's, else the
// activation's.
struct Mxfp4Scales {
  TensorView w1_scale{}, w2_scale{};
  TensorView w1_bias{}, w2_bias{};
  std::optional<double> gemm1_alpha{}, gemm1_beta{}, swiglu_limit{};
  std::vector<float> a1_scale{}, a2_scale{};
};

// Arguments of make_nvfp4_moe_quant_config: what convert_to_nvfp4_moe_kernel_format gave.
struct NvFp4Scales {
  TensorView w13_scale{}, w2_scale{};
  std::vector<float> w13_scale_2{}, w2_scale_2{};
  std::vector<float> a13_scale{}, a2_scale{};
  std::optional<double> swiglu_limit{}, swiglu_alpha{}, swiglu_beta{};
};
NvFp4Scales scales_of(const NvFp4KernelWeights& weights);

}  // namespace fp4moe::vllm
