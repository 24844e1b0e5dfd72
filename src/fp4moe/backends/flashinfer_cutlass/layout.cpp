// FlashInfer's CUTLASS kernels: up rows, then gate rows. SM90 changed its weights twice without
// changing a shape; SM100 swizzles scales in tiles of 128 x 4.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/flashinfer_cutlass/maps.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::flashinfer_cutlass {
namespace {

using namespace layout;
using tensor::DType;

Layout base(std::string_view id, WeightFormat format) {
  return {.id = id,
          .format = format,
          .order = {.up_first = true},
          .codes = plain(),
          .scales = scales_128x4(),
          .bias_type = BiasType::bf16};
}

Layout sm90(std::string_view generation, Map codes, Map scales, std::string_view reads) {
  Layout result = base("flashinfer_cutlass_sm90.mxfp4", WeightFormat::mxfp4);
  result.generation = generation;
  result.codes = codes;
  result.scales = scales;
  result.reads = reads;
  result.note = "No shape tells the generations apart: a kernel of another one computes nonsense.";
  return result;
}

Layout sm100() {
  Layout result = base("flashinfer_cutlass_sm100.mxfp4", WeightFormat::mxfp4);
  result.scales.need_rows = 128;
  result.scales.need_cols = 4;
  result.reads = "FlashInfer CUTLASS kernels on SM100, MXFP8 activations";
  return result;
}

Layout nvfp4() {
  Layout result = base("flashinfer_cutlass.nvfp4", WeightFormat::nvfp4);
  result.gated_rows = 128;
  result.scales_type = DType::f8_e4m3;
  result.scalars = &kAlphasShared;
  result.reads = "FlashInfer CUTLASS kernels on SM100 and SM120, NVFP4 activations";
  return result;
}

}  // namespace

std::vector<Layout> layouts() {
  return {sm90("g3", sm90_codes(true), sm90_scales_folded(),
               "FlashInfer 0.6.16 and later, vLLM from 2026-08-09"),
          sm90("g2", sm90_codes(false), sm90_scales(),
               "FlashInfer 0.6.10 to 0.6.15, vLLM 2026-05-17 to 2026-08-08"),
          sm90("seed", plain(), sm90_scales(), "FlashInfer until 0.6.9, vLLM until 2026-05"),
          sm100(), nvfp4()};
}

}  // namespace fp4moe::backends::flashinfer_cutlass
