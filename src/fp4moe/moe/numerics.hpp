// The rounding points of backends, as data. Sums are exact to float64; "rounded" means to float32, then to
// bf16, ties to even.
//
//   x ─ quantize ─► GEMM1 ─(1)─► activation ─(2)─┐
//   ┌────────────────────────────────────────────┘
//   └─ quantize ─► GEMM2 ─(3)─► * weight ─► sum ─(4)─► out
//
// The backend's scheme (ActivationKey) says which numbers are quantized, not this table.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/enums.hpp"
#include "fp4moe/oracle/words.hpp"

namespace fp4moe::moe {

using kernels::FirstRounding;   // (1)
using kernels::MiddleRounding;  // (2)
using kernels::SecondRounding;  // (3)
using kernels::WeightRounding;  // of the router's weight

// The rows below, in their order.
enum class NumericsKind : std::uint8_t {
  exact,
  native,
  fast,
  unfused,
  marlin,
  triton_fused,
  trtllm,
  fused,
  grouped,
  grouped_bf16,
  nvfp4_emulation,
};

struct Numerics {
  std::string_view id{};
  FirstRounding first = FirstRounding::none;
  MiddleRounding middle = MiddleRounding::none;
  SecondRounding second = SecondRounding::none;
  WeightRounding weight = WeightRounding::none;
  bool rounds_sum = true;            // (4)
  bool weights_in_bf16 = false;      // NVFP4: e2m1 * (scale * global scale) rounded before the GEMM
  bool activations_in_bf16 = false;  // quantized values with their factor, rounded
  bool shares_global = true;         // NVFP4: gate's and up's global scales are one, the gate's
  int activation_bits = 16;  // fast engines: integers that x and the activation's output become
  std::string_view says{};   // its source, and how well it is known
};

// clang-format off
inline constexpr std::array<Numerics, 11> kNumerics{{
    {.id = "exact", .rounds_sum = false, .shares_global = false, .says = "nothing rounded: float64 throughout by the reference engine, what all others are measured against"},
    {.id = "native", .rounds_sum = false, .shares_global = false, .says = "our own kernels: nothing rounded but the result, to the output's type"},
    {.id = "fast", .rounds_sum = false, .shares_global = false, .activation_bits = 8,
     .says = "our own kernels on 8-bit activations, a scale per 64 columns; the reference engine computes it as native"},
    {.id = "unfused", .first = FirstRounding::sum, .middle = MiddleRounding::gate_and_result, .second = SecondRounding::weighted,
     .says = "vLLM's Triton kernels with a separate activation, OCP-MX emulation: each step leaves bf16"},
    {.id = "marlin", .first = FirstRounding::steps, .middle = MiddleRounding::gate_and_result, .second = SecondRounding::steps,
     .weight = WeightRounding::bf16_with_global, .says = "Marlin: biases and weights are applied in bf16"},
    {.id = "triton_fused", .middle = MiddleRounding::result, .second = SecondRounding::weighted, .weight = WeightRounding::bf16,
     .says = "triton_kernels with the activation in GEMM1's epilogue"},
    {.id = "trtllm", .middle = MiddleRounding::result, .second = SecondRounding::unweighted, .weight = WeightRounding::bf16,
     .says = "TensorRT-LLM's kernels: weights applied by a float32 finalize; the GEMMs' source is closed"},
    {.id = "fused", .middle = MiddleRounding::result, .second = SecondRounding::weighted,
     .says = "activation in GEMM1's epilogue, float32 weights in GEMM2's: CK, AITER, vLLM's CPU kernel; assumed, no source or run was seen"},
    {.id = "grouped", .first = FirstRounding::sum, .second = SecondRounding::unweighted,
     .says = "grouped GEMMs with quantized activations: GEMM1's sums rounded, the activation fused with quantizing, float32 weights in finalize"},
    {.id = "grouped_bf16", .first = FirstRounding::sum, .middle = MiddleRounding::result, .second = SecondRounding::unweighted,
     .says = "the same with 16-bit activations"},
    {.id = "nvfp4_emulation", .first = FirstRounding::sum, .middle = MiddleRounding::gate_and_result, .second = SecondRounding::weighted,
     .weights_in_bf16 = true, .activations_in_bf16 = true, .says = "vLLM's NVFP4 emulation: weights and quantized activations dequantized to bf16, then as unfused"},
}};
// clang-format on
constexpr const Numerics& row(NumericsKind kind) {
  return kNumerics[static_cast<std::size_t>(kind)];
}
static_assert(row(NumericsKind::exact).id == "exact" &&
              row(NumericsKind::nvfp4_emulation).id == "nvfp4_emulation");

// The largest error of a result of this backend against the exact one: the largest difference as
// a share of the largest value, and the cosine between both. Measured on random layers of real
// models' shapes, with a margin.
struct Tolerance {
  double of_largest = 0, cosine = 0;
};
// `engine` is who computed it.
Tolerance tolerance(const Numerics& numerics, oracle::ActivationKey quantizes,
                    std::string_view engine = "reference");

// The error of `exact` and `native` against the true result, by engine: float64 throughout;
// float32 sums of activations in 16-bit integers; float32 sums of activations in bf16. Others must
// meet the CPU engine's bound.
struct Exactness {
  std::string_view engine{};
  double error = 0;  // root mean square, as a share of the result's
  Tolerance tolerance{};
};
inline constexpr std::array<Exactness, 3> kExactness{{
    {"reference", 1e-12, {.of_largest = 1e-6, .cosine = 1 - 1e-12}},
    {"cpu", 1e-4, {.of_largest = 5e-4, .cosine = 1 - 1e-7}},
    {"cuda", 4e-3, {.of_largest = 2e-2, .cosine = 0.9999}},
}};
const Exactness& exactness(std::string_view engine);

// Errors: numerics.unknown, listing what there is.
Result<const Numerics*> require_numerics(std::string_view id);
Result<NumericsKind> numerics_from_name(std::string_view id);

// The table of docs/run.md.
std::string numerics_markdown();

// To bf16 by way of float32.
double rounded_to_bf16(double value);

}  // namespace fp4moe::moe
