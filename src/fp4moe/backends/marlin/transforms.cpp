#include "fp4moe/backends/marlin/transforms.hpp"

#include <cmath>

#include <fmt/format.h>

#include "fp4moe/formats/e4m3_parts.hpp"

namespace fp4moe::backends::marlin {
namespace {

using formats::e4m3_parts;
using formats::E4m3Parts;
using namespace layout;  // NOLINT: the words of a row
using tensor::DType;

std::uint8_t plus_six(int code, int /*exponent*/) { return static_cast<std::uint8_t>(code + 6); }

Result<int> check_plus_six(const ScaleExtremes& extremes, DType /*params_type*/) {
  if (extremes.largest <= 249 || extremes.smallest > extremes.largest) return 0;
  return invalid("scale.range", "a block scale is too large for kernels with FP8 activations")
      .expects("scale bytes up to 249", fmt::format("{}", extremes.largest));
}

constexpr std::uint8_t kInfinity = 0xF8;

// The top eight bits below the sign of half(scale * 2^(7 + exponent)).
std::uint8_t half_byte(int code, int exponent) {
  const int magnitude = code & 0x7F;
  if (magnitude == 0) return 0;
  const E4m3Parts value = e4m3_parts(magnitude);
  const int biased = value.exponent + 7 + exponent + 15;
  if (biased >= 31) return kInfinity;
  return static_cast<std::uint8_t>(biased << 3 | value.fraction);
}

std::uint8_t half_byte_from_two(int code, int exponent) {
  if (code >= 0x80) return 0;
  const std::uint8_t byte = half_byte(code, exponent);
  return byte < 0x80 ? 0 : byte;
}

Result<int> from_smallest(const ScaleExtremes& extremes, DType /*params_type*/) {
  constexpr int kBySubnormal[] = {0, 3, 2, 2, 1, 1, 1, 1};
  return extremes.smallest < 8 ? kBySubnormal[extremes.smallest] : 0;
}

Result<int> from_largest(const ScaleExtremes& extremes, DType params_type) {
  if (params_type != DType::bf16 || extremes.largest == 0 || extremes.largest == 0x7E) return 0;
  const E4m3Parts value = e4m3_parts(extremes.largest);
  return value.fraction <= 6 ? 8 - value.exponent : 7 - value.exponent;
}

constexpr ScaleLoss kTooLarge[] = {
    {kInfinity, &ScaleExtremes::largest,
     "block scales too large for the common exponent are written as infinity"}};
constexpr ScaleLoss kTooSmall[] = {
    {0, &ScaleExtremes::smallest, "block scales too small for the kernel are written as 0"}};

std::uint64_t single_permutation(std::uint64_t x) {
  return x / 32 * 32 + x % 8 / 2 * 8 + x % 32 / 8 * 2 + x % 2;
}

// The kernel's FP4 and scales are off by powers of two; the global scale makes up for both.
float folded(const ScalarProblem& problem, DType type, float global, int exponent) {
  const float bias = problem.params_type == DType::bf16 ? 0x1p119f : 0x1p7f;
  const float whole = rounded(type, rounded(type, global) * bias);
  return rounded(type, whole / std::ldexp(1.0f, exponent));
}

Scalars tensors_of(DType type, std::uint64_t experts) {
  return {scalar_row("w13_scale_2", experts, type), scalar_row("w2_scale_2", experts, type)};
}

Result<Done> fill(const ScalarProblem& problem, DType type, ExpertList experts, Scalars& tensors) {
  for (std::size_t i = 0; i < experts.size(); ++i) {
    tensors[0].values.push_back(
        folded(problem, type, gate_or_up(problem, experts[i]), problem.w13_exponents[i]));
    tensors[1].values.push_back(
        folded(problem, type, experts[i].down_global, problem.w2_exponents[i]));
  }
  return Done{};
}

constexpr std::string_view kFolded =
    "w13_scale_2 (the gate's), w2_scale_2: times 2^119 (F16: 2^7), over 2^x";

}  // namespace

constinit const ScaleTransform kPlusSix{
    .says = "each byte + 6", .byte = plus_six, .exponent = check_plus_six};
constinit const ScaleTransform kScales202601{
    .says = "E4M3 as the upper bits of a half times 2^7, sign dropped",
    .byte = half_byte,
    .is_unsigned = true};
constinit const ScaleTransform kScales202603{
    .says = "as half times 2^(7+x), x from the layer's smallest scale, sign dropped",
    .byte = half_byte,
    .exponent = from_smallest,
    .has_shared_exponent = true,
    .is_unsigned = true,
    .losses = kTooLarge};
constinit const ScaleTransform kScales202604{
    .says = "as half times 2^(7+x), x from the layer's largest scale; below 2 and negative: 0",
    .byte = half_byte_from_two,
    .exponent = from_largest,
    .has_shared_exponent = true,
    .is_unsigned = true,
    .losses = kTooSmall};
constinit const BiasTransform kSinglePermutation{
    .says = "as rows, then every 32: x goes to 8 * (x % 8 / 2) + 2 * (x / 8) + x % 2",
    .row_of = single_permutation,
    .multiple = 32};
constinit const ScalarTransform kFoldedGlobals{
    .says = kFolded,
    .has_folded_exponents = true,
    .tensors = [](const ScalarProblem& problem,
                  std::uint64_t experts) { return tensors_of(problem.params_type, experts); },
    .fill = [](const ScalarProblem& problem, ExpertList experts,
               Scalars& tensors) { return fill(problem, problem.params_type, experts, tensors); }};
constinit const ScalarTransform kFoldedGlobalsF32{
    .says = kFolded,
    .has_folded_exponents = true,
    .tensors = [](const ScalarProblem& /*problem*/,
                  std::uint64_t experts) { return tensors_of(DType::f32, experts); },
    .fill = [](const ScalarProblem& problem, ExpertList experts,
               Scalars& tensors) { return fill(problem, DType::f32, experts, tensors); }};

}  // namespace fp4moe::backends::marlin
