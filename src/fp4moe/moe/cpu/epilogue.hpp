// Processes the sums of a GEMM in float32, a chunk of 64 values at a time: factors,
// biases, rounding, the activation. The loops over single values are kernels (elementwise.hpp).
// Every operation is rounded once, so all machines give the same bits.
#pragma once
#include <cstddef>

#include "fp4moe/kernels/cpu/elementwise.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/numerics.hpp"

namespace fp4moe::moe::cpu {

// To bf16 and back.
void round_values(float* values, std::size_t count);

// The sums of GEMM1 of one token: gates and ups interleaved, or (`is_gated` false) values alone,
// which become `gates`.
struct FirstEpilogue {
  const kernels::cpu::ElementwiseFunctions& functions;
  FirstRounding rounding = FirstRounding::none;
  bool is_gated = true;
  float gate_factor = 1.0f, up_factor = 1.0f;
  const float* gate_bias = nullptr;  // of this chunk; null: none
  const float* up_bias = nullptr;
};
struct FirstChunk {
  float gates[kernels::cpu::kChunk]{}, ups[kernels::cpu::kChunk]{};
};
void finish_first(const FirstEpilogue& how, const float* sums, FirstChunk& to);

// kChunk activated values.
struct MiddleEpilogue {
  const kernels::cpu::ElementwiseFunctions& functions;
  Activation activation = Activation::silu;
  ActivationParams params{};
  MiddleRounding rounding = MiddleRounding::none;
};
void activate_chunk(const MiddleEpilogue& how, const FirstChunk& from, float* to);

// Turns the sums of GEMM2 of one token into terms of the sum over its experts. LoRA is added after
// the rounding; with `is_weighted` false the caller applies the weight.
struct SecondEpilogue {
  SecondRounding rounding = SecondRounding::none;
  float factor = 1.0f;
  const float* bias = nullptr;  // null: none
  bool is_weighted = true;
};
void finish_second(const SecondEpilogue& how, float weight, std::size_t count, float* sums);

// to = factor * from
void copy_scaled(const float* from, float factor, std::size_t count, float* to);

// The dot product of float32 vectors, in eight sums that are added at the end.
float dot(const float* a, const float* b, std::size_t count);

}  // namespace fp4moe::moe::cpu
