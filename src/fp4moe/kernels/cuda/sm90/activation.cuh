// What happens to a sum between the two products and behind the second, in float32: factors,
// biases, rounding, the activation; the formulas of moe/activation.hpp and moe/cpu/epilogue.cpp.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/numbers.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// Comparisons that let NaN through.
__device__ inline float at_most(float x, float limit) { return limit < x ? limit : x; }
__device__ inline float at_least(float x, float limit) { return x < limit ? limit : x; }

__device__ inline float sigmoid(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x * sigmoid(x); }

// x (1 + tanh y) / 2 = x sigmoid(2 y), which loses nothing where both nearly cancel.
__device__ inline float gelu_tanh(float x) {
  constexpr float kTwiceRootOf2OverPi = 1.59576912f, kCubic = 0.044715f;
  return x * sigmoid(kTwiceRootOf2OverPi * (x + kCubic * (x * x * x)));
}

__device__ inline float bounded(float bound, float x) { return bound * tanhf(__fdiv_rn(x, bound)); }

__host__ __device__ constexpr bool is_gated(Act act) { return act <= Act::situ; }

__device__ inline float activate_gate(Act act, const Layer& layer, float gate) {
  const float low = at_most(gate, layer.limit);
  switch (act) {
    case Act::swigluoai:
    case Act::swigluoai_uninterleave:
      return low * sigmoid(layer.alpha * low);
    case Act::silu:
      return silu(low);
    case Act::swiglustep:
      return at_most(silu(gate), layer.limit);
    case Act::situ:
      return bounded(layer.situ_beta, gate) * sigmoid(gate);
    case Act::relu2_no_mul: {
      const float positive = at_least(gate, 0.0f);
      return positive * positive;
    }
    case Act::silu_no_mul:
      return silu(gate);
    case Act::gelu:
    case Act::gelu_no_mul:
      return gate * normcdff(gate);
    case Act::gelu_tanh:
    case Act::gelu_tanh_no_mul:
      return gelu_tanh(gate);
  }
  return __uint_as_float(kNanBits);
}

__device__ inline float up_factor(Act act, const Layer& layer, float up) {
  const float low = at_least(at_most(up, layer.limit), -layer.limit);
  switch (act) {
    case Act::swigluoai:
    case Act::swigluoai_uninterleave:
      return low + layer.beta;
    case Act::silu:
    case Act::swiglustep:
      return low;
    case Act::situ:
      return layer.situ_linear_beta > 0.0f ? bounded(layer.situ_linear_beta, up) : up;
    default:
      return up;
  }
}

// The activation's output, rounded as the numerics say. Without gates `up` is not read.
__device__ inline float activated(const Layer& layer, float gate, float up) {
  const Act act = layer.act;
  float made = activate_gate(act, layer, gate);
  const bool is_apart = act == Act::silu || act == Act::swigluoai_uninterleave;
  if (layer.middle == Middle::gate_and_result && is_apart) made = rounded_to_bf16(made);
  if (is_gated(act)) made *= up_factor(act, layer, up);
  return layer.middle == Middle::none ? made : rounded_to_bf16(made);
}

// A sum of the first product with its factor, and its bias (0: none).
__device__ inline float finish_first(const Layer& layer, float sum, float bias) {
  if (layer.first == First::steps) sum = rounded_to_bf16(sum);
  sum += bias;
  return layer.first == First::none ? sum : rounded_to_bf16(sum);
}

// The router's weight as the kernel holds it, and what of the down projection's global scale is in
// it: NVFP4 without a bias alone. Where no weight is applied give weight 1 and is_weighted false.
__device__ inline bool folds_global(const Layer& layer, bool is_weighted) {
  return layer.weight == WeightKind::bf16_with_global && is_weighted && layer.is_nvfp4 != 0 &&
         layer.w2.bias == nullptr;
}
__device__ inline float down_global(const Layer& layer, std::uint32_t expert) {
  return layer.down_global == nullptr ? 1.0f : layer.down_global[expert];
}
__device__ inline float router_weight(const Layer& layer, float weight, float folded_global) {
  if (layer.weight == WeightKind::none) return weight;
  return rounded_to_bf16(__fmul_rn(weight, folded_global));
}

// Whether the weight comes behind the rounding, and low ranks before it.
__device__ inline bool weighs_later(const Layer& layer) {
  return layer.second == Second::unweighted;
}

// A sum of the second product with its factor and its bias (0: none) becomes what low ranks are
// added to.
__device__ inline float round_second(const Layer& layer, float sum, float bias, float weight) {
  if (layer.second == Second::steps) sum = rounded_to_bf16(sum);
  sum += bias;
  if (layer.second == Second::steps) sum = rounded_to_bf16(sum);
  if (!weighs_later(layer)) sum *= weight;
  return layer.second == Second::none ? sum : rounded_to_bf16(sum);
}

// What goes into the sum over a token's experts, where there are no low ranks.
__device__ inline float finish_second(const Layer& layer, float sum, float bias, float weight) {
  const float made = round_second(layer, sum, bias, weight);
  return weighs_later(layer) ? made * weight : made;
}

}  // namespace fp4moe::kernels::cuda::sm90
