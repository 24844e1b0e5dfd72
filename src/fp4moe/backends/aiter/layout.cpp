// AITER and CK: tiles of 16 rows x 16 bytes, 16 gate rows before the 16 up rows that belong to
// them; scales as CDNA4 reads them. AITER's Triton kernels read interleaved rows.
#include "fp4moe/backends/aiter/maps.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::aiter {
namespace {

using namespace layout;

Layout a16w4(std::string_view generation, bool pads, std::string_view reads) {
  return {.id = "aiter.mxfp4",
          .generation = generation,
          .format = WeightFormat::mxfp4,
          .order = {.block = 16},
          .codes = aiter::codes(),
          .scales = aiter::scales(pads),
          .bias_type = BiasType::f32,
          .bias_order = BiasOrder::halves,
          .reads = reads};
}

Layout triton(std::string_view generation, Map scales, std::string_view reads) {
  return {.id = "aiter_triton.mxfp4",
          .generation = generation,
          .format = WeightFormat::mxfp4,
          .order = {.block = 1},
          .codes = triton_strided(),
          .scales = scales,
          .bias_type = BiasType::f32,
          .reads = reads};
}

}  // namespace

std::vector<Layout> layouts() {
  Layout plain16 = a16w4("", false, "AITER kernels with MXFP4 activations, August 2026");
  plain16.id = "aiter_16x16.mxfp4";
  plain16.order = {.as_loaded = true};
  plain16.codes = aiter::codes(32);
  plain16.scales.dims = {};  // vLLM gives them their three dimensions back
  plain16.bias_order = BiasOrder::as_rows;
  std::vector<Layout> result{
      a16w4("2026-08", true, "AITER of August 2026 with BF16 activations"),
      a16w4("2026-04", false, "AITER (CK) of November 2025 to April 2026 with BF16 activations"),
      plain16,
      triton("cdna4.v3.6", triton_scales(),
             "AITER's Triton kernels with BF16 activations on gfx950, vLLM 0.33"),
      triton("strided", triton_strided(),
             "AITER's Triton kernels with BF16 activations on gfx942, and on gfx950 with more than "
             "two ranks, vLLM 0.33")};
  result[0].note = "Where a row's scales do not fill eight, scales of 1 do.";
  return result;
}

}  // namespace fp4moe::backends::aiter
