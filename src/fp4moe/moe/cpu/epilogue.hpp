// Processes the sums of a GEMM in float32, a chunk of 64 values at a time: factors,
// biases, rounding, the activation. Plain loops of fixed length that compilers turn into vector
// code; every operation is rounded once, so all machines give the same bits.
#pragma once
#include <cstddef>

#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/numerics.hpp"

namespace fp4moe::moe::cpu {

// To bf16 and back.
void round_values(float* values, std::size_t count);

// The sums of GEMM1 of one token: gates and ups in turns, or (`is_gated` false) values alone, which
// become `gates`.
struct FirstEpilogue {
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

// kChunk activated values. exp and its kin err by less than 1e-6.
struct MiddleEpilogue {
  Activation activation = Activation::silu;
  ActivationParams params{};
  MiddleRounding rounding = MiddleRounding::none;
};
void activate_chunk(const MiddleEpilogue& how, const FirstChunk& from, float* to);

// The sums of GEMM2 of one token become what goes into the sum over its experts. Low-rank additions
// come behind the rounding, so `unweighted` leaves the weight to the caller.
struct SecondEpilogue {
  SecondRounding rounding = SecondRounding::none;
  float factor = 1.0f;
  const float* bias = nullptr;  // null: none
  bool is_weighted = true;
};
void finish_second(const SecondEpilogue& how, float weight, std::size_t count, float* sums);

// to += factor * from, and to = factor * from
void add_scaled(const float* from, float factor, std::size_t count, float* to);
void copy_scaled(const float* from, float factor, std::size_t count, float* to);

// The dot product of float32 vectors, in eight sums that are added at the end.
float dot(const float* a, const float* b, std::size_t count);

}  // namespace fp4moe::moe::cpu
