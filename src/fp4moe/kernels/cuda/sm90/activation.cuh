// Epilogue arithmetic in float32, after GEMM1 and after GEMM2: factors, biases, rounding, the
// activation. The formulas are those of moe/activation.hpp and moe/cpu/epilogue.cpp.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/elements.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// Minimum and maximum that keep a NaN in x.
__device__ inline float min_keep_nan(float x, float limit) { return limit < x ? limit : x; }
__device__ inline float max_keep_nan(float x, float limit) { return x < limit ? limit : x; }

__device__ inline float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }

// x (1 + tanh y) / 2 = x sigmoid(2 y), which has no cancellation.
__device__ inline float gelu_tanh(float x) {
  constexpr float kTwiceRootOf2OverPi = 1.59576912f, kCubic = 0.044715f;
  return x * sigmoid(kTwiceRootOf2OverPi * (x + kCubic * (x * x * x)));
}

__device__ inline float bounded(float bound, float x) { return bound * tanhf(__fdiv_rn(x, bound)); }

__host__ __device__ constexpr bool is_gated(Activation act) { return act <= Activation::situ; }

// swigluoai in approximate arithmetic, times `scale`: for the epilogues of the grouped GEMM.
__device__ inline float swiglu(float gate, float up, float alpha, float beta, float limit,
                               float scale) {
  const float low = fminf(gate, limit), clamped = fmaxf(fminf(up, limit), -limit);
  const float sigmoid = rcp_approx(1.0f + exp2_approx(-1.44269504f * alpha * low));
  return low * sigmoid * fmaf(clamped, scale, beta * scale);
}

__device__ inline float activate_gate(Activation act, const LayerParams& layer, float gate) {
  const float low = min_keep_nan(gate, layer.limit);
  switch (act) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return low * sigmoid(layer.alpha * low);
    case Activation::silu:
      return silu(low);
    case Activation::swiglustep:
      return min_keep_nan(silu(gate), layer.limit);
    case Activation::situ:
      return bounded(layer.situ_beta, gate) * sigmoid(gate);
    case Activation::relu2_no_mul: {
      const float positive = max_keep_nan(gate, 0.0f);
      return positive * positive;
    }
    case Activation::silu_no_mul:
      return silu(gate);
    case Activation::gelu:
    case Activation::gelu_no_mul:
      return gate * normcdff(gate);
    case Activation::gelu_tanh:
    case Activation::gelu_tanh_no_mul:
      return gelu_tanh(gate);
  }
  return __uint_as_float(kNanBits);
}

__device__ inline float up_factor(Activation act, const LayerParams& layer, float up) {
  const float low = max_keep_nan(min_keep_nan(up, layer.limit), -layer.limit);
  switch (act) {
    case Activation::swigluoai:
    case Activation::swigluoai_uninterleave:
      return low + layer.beta;
    case Activation::silu:
    case Activation::swiglustep:
      return low;
    case Activation::situ:
      return layer.situ_linear_beta > 0.0f ? bounded(layer.situ_linear_beta, up) : up;
    default:
      return up;
  }
}

// The activation's output, rounded as the numerics say. Not gated: `up` is not read.
__device__ inline float activated(const LayerParams& layer, float gate, float up) {
  const Activation act = layer.act;
  float result = activate_gate(act, layer, gate);
  const bool is_apart = act == Activation::silu || act == Activation::swigluoai_uninterleave;
  if (layer.middle == MiddleRounding::gate_and_result && is_apart) result = round_to_bf16(result);
  if (is_gated(act)) result *= up_factor(act, layer, up);
  return layer.middle == MiddleRounding::none ? result : round_to_bf16(result);
}

// A sum of GEMM1 times its factor becomes the activation's input. `bias` 0: none.
__device__ inline float finish_gemm1(const LayerParams& layer, float sum, float bias) {
  if (layer.first == FirstRounding::steps) sum = round_to_bf16(sum);
  sum += bias;
  return layer.first == FirstRounding::none ? sum : round_to_bf16(sum);
}

// The router's weight as the kernel holds it. For NVFP4 without a bias it may contain the global
// scale of the down projection. Callers that apply no weight pass weight 1 and is_weighted false.
__device__ inline bool has_folded_global(const LayerParams& layer, bool is_weighted) {
  return layer.weight == WeightRounding::bf16_with_global && is_weighted && layer.is_nvfp4 != 0 &&
         layer.w2.bias == nullptr;
}
__device__ inline float down_global(const LayerParams& layer, std::uint32_t expert) {
  return layer.down_global == nullptr ? 1.0f : layer.down_global[expert];
}
__device__ inline float router_weight(const LayerParams& layer, float weight, float folded_global) {
  if (layer.weight == WeightRounding::none) return weight;
  return round_to_bf16(__fmul_rn(weight, folded_global));
}

// True: the weight is applied after the rounding, and LoRA is added before the weight.
__device__ inline bool is_weight_after_rounding(const LayerParams& layer) {
  return layer.second == SecondRounding::unweighted;
}

// A sum of GEMM2 times its factor becomes the value that LoRA is added to. `bias` 0: none.
__device__ inline float round_gemm2(const LayerParams& layer, float sum, float bias, float weight) {
  if (layer.second == SecondRounding::steps) sum = round_to_bf16(sum);
  sum += bias;
  if (layer.second == SecondRounding::steps) sum = round_to_bf16(sum);
  if (!is_weight_after_rounding(layer)) sum *= weight;
  return layer.second == SecondRounding::none ? sum : round_to_bf16(sum);
}

// The term of one expert in a token's sum, without LoRA.
__device__ inline float finish_gemm2(const LayerParams& layer, float sum, float bias,
                                     float weight) {
  const float result = round_gemm2(layer, sum, bias, weight);
  return is_weight_after_rounding(layer) ? result * weight : result;
}

}  // namespace fp4moe::kernels::cuda::sm90
