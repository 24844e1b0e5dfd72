// FlashInfer's TRTLLM kernels: up and gate rows are interleaved, blocks of 32 rows are shuffled for
// the epilogue, scales lie in tiles of 128 x 4.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/flashinfer_trtllm/transforms.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::flashinfer_trtllm {
namespace {

using namespace layout;
using tensor::DType;

Map whole_tiles() {
  Map result = scales_128x4();
  result.need_rows = 128;
  result.need_cols = 4;
  return result;
}

Layout base(WeightFormat format) {
  return {.format = format,
          .order = {.block = 1, .up_first = true},
          .has_shuffled_rows = true,
          .codes = plain(),
          .scales = whole_tiles(),
          .scales_type = DType::f8_e4m3};
}

Layout mxfp4() {
  Layout result = base(WeightFormat::mxfp4);
  result.id = "flashinfer_trtllm.mxfp4";
  result.bias_type = BiasType::f32;
  result.reads = "FlashInfer TRTLLM kernels on SM100, BF16 and MXFP8 activations";
  result.note =
      "Scales are tagged E4M3 but hold E8M0 bytes; the kernel tells them by their number.";
  return result;
}

Layout nvfp4(std::string_view generation, const ScalarTransform& scalars, std::string_view reads) {
  Layout result = base(WeightFormat::nvfp4);
  result.id = "flashinfer_trtllm.nvfp4";
  result.generation = generation;
  result.scalars = &scalars;
  result.reads = reads;
  return result;
}

}  // namespace

std::vector<Layout> layouts() {
  std::vector<Layout> result{
      mxfp4(), nvfp4("2026-08", kAlphas, "FlashInfer TRTLLM kernels on SM100, vLLM 2026-08"),
      nvfp4("2026-08.reference", kAlphas, "vLLM 2026-08 to the letter"),
      nvfp4("2026-01", kAlphas202601, "FlashInfer TRTLLM kernels on SM100, vLLM 2026-01")};
  result[1].note = "Each half is padded by itself.";
  result[2].is_padded_at_end = true;
  result[2].note =
      "Padding rows follow both halves, which pairs the wrong rows when the intermediate size is "
      "not a multiple of 64; for comparison only.";
  return result;
}

}  // namespace fp4moe::backends::flashinfer_trtllm
