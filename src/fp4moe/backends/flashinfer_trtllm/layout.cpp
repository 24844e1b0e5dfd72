// FlashInfer's TRTLLM kernels: up and gate rows take turns, blocks of 32 rows are shuffled for the
// epilogue, scales lie in tiles of 128 x 4.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::flashinfer_trtllm {
namespace {

using namespace layout;
using tensor::DType;

Map whole_tiles() {
  Map made = scales_128x4();
  made.need_rows = 128;
  made.need_cols = 4;
  return made;
}

Layout base(WeightFormat format) {
  return {.format = format,
          .order = {.block = 1, .up_first = true},
          .shuffles_rows = true,
          .codes = plain(),
          .scales = whole_tiles(),
          .scales_type = DType::f8_e4m3};
}

Layout mxfp4() {
  Layout made = base(WeightFormat::mxfp4);
  made.id = "flashinfer_trtllm.mxfp4";
  made.bias_type = BiasType::f32;
  made.reads = "FlashInfer TRTLLM kernels on SM100, BF16 and MXFP8 activations";
  made.note = "Scales are tagged E4M3 but hold E8M0 bytes; the kernel tells them by their number.";
  return made;
}

Layout nvfp4(std::string_view generation, ScalarRule scalars, std::string_view reads) {
  Layout made = base(WeightFormat::nvfp4);
  made.id = "flashinfer_trtllm.nvfp4";
  made.generation = generation;
  made.scalars = scalars;
  made.reads = reads;
  return made;
}

}  // namespace

std::vector<Layout> layouts() {
  std::vector<Layout> made{
      mxfp4(),
      nvfp4("2026-08", ScalarRule::alphas_trtllm,
            "FlashInfer TRTLLM kernels on SM100, vLLM 2026-08"),
      nvfp4("2026-08.reference", ScalarRule::alphas_trtllm, "vLLM 2026-08 to the letter"),
      nvfp4("2026-01", ScalarRule::alphas_trtllm_2026_01,
            "FlashInfer TRTLLM kernels on SM100, vLLM 2026-01")};
  made[1].note = "Each half is padded by itself.";
  made[2].pads_at_end = true;
  made[2].note =
      "Padding rows follow both halves, which pairs the wrong rows when the intermediate size is "
      "not a multiple of 64; for comparison only.";
  return made;
}

}  // namespace fp4moe::backends::flashinfer_trtllm
