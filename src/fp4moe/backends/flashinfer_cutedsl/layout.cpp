// CuteDSL: blocks of 64 up and gate rows alternate; batched, gate and up keep their order.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::flashinfer_cutedsl {
namespace {

using namespace layout;

Layout row(std::string_view id, W13Order order, std::string_view reads) {
  return {.id = id,
          .format = WeightFormat::nvfp4,
          .order = order,
          .gated_rows = 128,
          .codes = plain(),
          .scales = scales_128x4(),
          .scales_type = tensor::DType::f8_e4m3,
          .scalars = &kAlphasShared,
          .reads = reads};
}

}  // namespace

std::vector<Layout> layouts() {
  return {row("flashinfer_cutedsl.nvfp4", {.block = 64, .up_first = true},
              "FlashInfer CuteDSL kernels on SM100, vLLM from 2026-04"),
          row("flashinfer_cutedsl_batched.nvfp4", {}, "FlashInfer CuteDSL masked grouped GEMM")};
}

}  // namespace fp4moe::backends::flashinfer_cutedsl
