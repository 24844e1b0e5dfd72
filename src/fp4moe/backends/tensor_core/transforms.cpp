#include "fp4moe/backends/tensor_core/transforms.hpp"

#include <cmath>

#include "fp4moe/formats/e4m3_parts.hpp"
#include "fp4moe/formats/sm90_scale.hpp"

namespace fp4moe::backends::tensor_core {
namespace {

using formats::E4m3Parts;
using namespace layout;  // NOLINT: the words of a row
using tensor::DType;

// A block whose scale is zero has no code of its own in NVFP4: this one stands for it, and the
// block's FP4 codes are written as zero.
constexpr std::uint8_t kZeroScale = 0xF0;

std::uint8_t rebiased(int code, int offset) {
  return static_cast<std::uint8_t>(code + 126 - offset);
}

Result<int> offset_of(const ScaleExtremes& extremes, DType /*params_type*/) {
  return formats::sm90_offset(extremes.smallest, extremes.largest);
}

std::uint8_t normalized(int code, int /*exponent*/) {
  if (code == 0 || code >= 0x80) return kZeroScale;
  const E4m3Parts value = formats::e4m3_parts(code);
  return static_cast<std::uint8_t>((value.exponent + 9) << 3 | value.fraction);
}

Result<int> check_sign(const ScaleExtremes& extremes, DType /*params_type*/) {
  if (const auto fine = formats::check_sm90_sign(extremes.has_negative); !fine) return fine.why();
  return 0;
}

Scalars tensors_of(const ScalarProblem& problem, std::uint64_t experts) {
  return {scalar_pairs("w13_factor", problem.gated, experts), scalar_row("w2_factor", experts)};
}

// The offset taken out of E8M0 scales, or 2^20 (see docs/layouts/native_sm90.nvfp4.md), and the
// global scale.
void add_factors(const ScalarProblem& problem, const ExpertScalars& expert, float w13, float w2,
                 Scalars& tensors) {
  if (problem.gated) tensors[0].values.push_back(w13 * expert.gate_global);
  tensors[0].values.push_back(w13 * expert.up_global);
  tensors[1].values.push_back(w2 * expert.down_global);
}

Result<Done> fill_mxfp4(const ScalarProblem& problem, ExpertList experts, Scalars& tensors) {
  for (std::size_t i = 0; i < experts.size(); ++i)
    add_factors(problem, experts[i], std::ldexp(1.0f, problem.w13_exponents[i]),
                std::ldexp(1.0f, problem.w2_exponents[i]), tensors);
  return Done{};
}

Result<Done> fill_nvfp4(const ScalarProblem& problem, ExpertList experts, Scalars& tensors) {
  for (const ExpertScalars& expert : experts)
    add_factors(problem, expert, formats::kSm90Nvfp4Factor, formats::kSm90Nvfp4Factor, tensors);
  return Done{};
}

constexpr std::string_view kFactors =
    "w13_factor (gate's and up's), w2_factor: what accumulators are multiplied by";

}  // namespace

constinit const ScaleTransform kMxfp4Scales{
    .says = "each byte + 126, less an offset per expert and matrix where that exceeds 254",
    .byte = rebiased,
    .exponent = offset_of};
constinit const ScaleTransform kNvfp4Scales{
    .says = "normalized: exponent + 9 in five bits, three bits of mantissa; scale 0 is 0xF0",
    .byte = normalized,
    .exponent = check_sign,
    .has_cleared_zero_blocks = true};
constinit const ScalarTransform kMxfp4Factors{
    .says = kFactors, .has_gate_and_up = true, .tensors = tensors_of, .fill = fill_mxfp4};
constinit const ScalarTransform kNvfp4Factors{
    .says = kFactors, .has_gate_and_up = true, .tensors = tensors_of, .fill = fill_nvfp4};

}  // namespace fp4moe::backends::tensor_core
