// Marlin's weights: 32-bit words in the order in which a warp's lanes load them, scales transposed
// to [k / group, n]. Rows keep the checkpoint's order; the activation kernel is told which it is.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/marlin/maps.hpp"
#include "fp4moe/backends/marlin/transforms.hpp"

namespace fp4moe::backends::marlin {
namespace {

using namespace layout;
using tensor::DType;

Layout mxfp4() {
  return {.id = "marlin.mxfp4",
          .format = WeightFormat::mxfp4,
          .order = {.as_loaded = true},
          .codes = codes_w4a16(),
          .scales = scales(),
          .codes_type = DType::i32,
          .scales_type = DType::f8_e8m0,
          .one_group_scales = scales_single_exchanged(),
          .bias_type = BiasType::bf16,
          .bias_transform = &kSinglePermutation,
          .has_f16_params = false,
          .reads = "vLLM, Marlin kernels with BF16 activations",
          .note = "The kernel reads scale byte 0 as 0 and 255 as infinity."};
}

Layout mxfp4_fp8() {
  Layout result = mxfp4();
  result.id = "marlin_fp8.mxfp4";
  result.codes = codes_w4a8();
  result.scales = scales_single();
  result.one_group_scales.reset();
  result.scale_transform = &kPlusSix;
  result.scales.padding = 6;  // sizes are rounded up before six is added
  result.reads = "vLLM, Marlin kernels with FP8 activations (VLLM_MARLIN_INPUT_DTYPE=fp8)";
  result.note = "Scale bytes above 249 are refused: six is added to each.";
  return result;
}

Layout nvfp4(std::string_view generation, const ScaleTransform& scale_transform,
             const ScalarTransform& globals, std::string_view reads) {
  return {.id = "marlin.nvfp4",
          .generation = generation,
          .format = WeightFormat::nvfp4,
          .order = {.as_loaded = true},
          .codes = codes_w4a16(),
          .scales = scales(),
          .codes_type = DType::i32,
          .scales_type = DType::f8_e4m3,
          .one_group_scales = scales_single_exchanged(),
          .scale_transform = &scale_transform,
          .scalars = &globals,
          .reads = reads};
}

}  // namespace

std::vector<Layout> layouts() {
  std::vector<Layout> result{
      mxfp4(), mxfp4_fp8(),
      nvfp4("2026-04", kScales202604, kFoldedGlobalsF32, "vLLM from 2026-04-07"),
      nvfp4("2026-03", kScales202603, kFoldedGlobals, "vLLM 2026-03-18 to 2026-04-07"),
      nvfp4("2026-01", kScales202601, kFoldedGlobals, "vLLM until 2026-03-18")};
  result[2].note = "Negative scales and scales too small for the kernel become 0.";
  result[3].note =
      "A layer with both tiny and large scales gets infinite ones; kept for comparison.";
  result[4].note = "Scales below 2 after the fixed exponent are kept, the kernel misreads them.";
  return result;
}

}  // namespace fp4moe::backends::marlin
