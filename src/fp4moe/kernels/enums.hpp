// Enumerations that the library and its kernels on devices share, for the host's compiler and for nvcc.
// A kernel reads them in its parameters, so they are words of 32 bits. Names, formulas and rows of tables
// stand in moe/: activation.hpp, numerics.hpp, routing/method.hpp, tokens.hpp.
#pragma once
#include <cstdint>

namespace fp4moe::kernels {

enum class Activation : std::uint32_t {
  swigluoai,
  swigluoai_uninterleave,
  silu,
  gelu,
  gelu_tanh,
  swiglustep,
  situ,
  relu2_no_mul,
  silu_no_mul,
  gelu_no_mul,
  gelu_tanh_no_mul,
};

// --- The rounding points of moe/numerics.hpp.

// (1) What the activation sees.
enum class FirstRounding : std::uint32_t {
  none,   // the accumulator with its bias
  sum,    // (accumulator + bias) rounded
  steps,  // the accumulator rounded, the bias added, rounded again
};

// (2) The activation's output; `gate` also rounds the activated gate before it meets the up value,
// where the kernel computes them apart (silu, swigluoai_uninterleave).
enum class MiddleRounding : std::uint32_t { none, result, gate_and_result };

// (3) What goes into the sum over a token's experts.
enum class SecondRounding : std::uint32_t {
  none,        // weight * (accumulator + bias)
  weighted,    // that, rounded
  unweighted,  // weight * rounded(accumulator + bias)
  steps,       // the accumulator rounded, the bias added, rounded, times the weight, rounded
};

// The router's weight as the kernel holds it.
enum class WeightRounding : std::uint32_t {
  none,
  bf16,
  bf16_with_global,  // NVFP4: the expert's global scale is part of the rounded weight
};

// --- Routing: see moe/routing/method.hpp.

enum class Score : std::uint32_t {
  logit,
  softmax,
  sigmoid,
  sqrt_softplus,
  none,  // not in kernels
};

enum class Normalization : std::uint32_t {
  none,
  over_sum,      // divided by the sum of the chosen ones, or by 1 where that is not above 0
  over_sum_eps,  // divided by that sum + 1e-20
  softmax,       // exp(w) / sum exp(w) of the chosen ones
  optional,      // over_sum if the options ask for it; not in kernels
};

// The output of the experts: summed rows [M, H], one row per assignment [M * top_k, H] (assignments of
// foreign experts and of id -1 hold anything), or batches [experts * capacity, H].
enum class OutputForm : std::uint32_t { summed, assignments, batches };

}  // namespace fp4moe::kernels
