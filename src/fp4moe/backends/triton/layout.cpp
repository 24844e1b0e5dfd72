// Triton's layouts depend on the device, on how many warps a kernel is launched with, and on how
// far the pinned triton_kernels pads. Rows keep the checkpoint's order.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/backends/triton/maps.hpp"

namespace fp4moe::backends::triton {
namespace {

using namespace layout;

Layout row(std::string_view generation, Map codes, Map scales, std::string_view reads,
           std::string_view note = {}) {
  return {.id = "triton.mxfp4",
          .generation = generation,
          .format = WeightFormat::mxfp4,
          .order = {.as_loaded = true},
          .codes = codes,
          .scales = scales,
          .bias_type = BiasType::f32,
          .reads = reads,
          .note = note};
}

Map hopper(Pads pads) { return hopper_value(3, pads); }

constexpr std::string_view kWarps =
    "The kernel must be launched with the warps that the generation names: w4 is 4, w8 is 8.";

}  // namespace

std::vector<Layout> layouts() {
  constexpr Pads k35{16, 32}, k36{64, 64}, kAugust2026{256, 64};
  return {
      row("hopper.v3.6.w8", hopper(k36), hopper_scale(8),
          "triton_kernels 3.6 and 3.7 on SM90, 8 warps (vLLM 2026-02 to 2026-05)", kWarps),
      row("hopper.v3.6.w4", hopper(k36), hopper_scale(4),
          "triton_kernels 3.6 and 3.7 on SM90, 4 warps", kWarps),
      row("hopper.v3.5.w8.k4", hopper(k35), hopper_scale(8, 4),
          "triton_kernels 3.5 on SM90 under vLLM from 2026-07, 8 warps", kWarps),
      row("hopper.v3.5.w8", hopper(k35), hopper_scale(8),
          "triton_kernels 3.5 on SM90, 8 warps (vLLM 2026-01)", kWarps),
      row("hopper.v3.5.w4", hopper(k35), hopper_scale(4),
          "triton_kernels 3.5 on SM90, 4 warps: batched experts of vLLM 2026-01", kWarps),
      row("hopper.2026-08.w8", hopper(kAugust2026), hopper_scale(8),
          "triton_kernels of August 2026 on SM90, 8 warps", kWarps),
      row("hopper.2026-08.w4", hopper(kAugust2026), hopper_scale(4),
          "triton_kernels of August 2026 on SM90, 4 warps", kWarps),
      row("blackwell.v3.6", blackwell_value(), blackwell_scale(),
          "triton_kernels 3.5 and 3.6 on SM100 and SM120"),
      row("blackwell.v3.7", blackwell_value(true), blackwell_scale(),
          "triton_kernels 3.7 and later on SM100 and SM120",
          "The reference leaves the padding as it finds it; here it is zero."),
      row("blackwell.2026-08.shuffled", blackwell_value_shuffled(), blackwell_scale(),
          "triton_kernels of August 2026 on SM100, where asked for"),
      row("cdna4.v3.6", strided(), cdna4_scale(false), "triton_kernels 3.5 and 3.6 on gfx950"),
      row("cdna4.v3.7", strided(), cdna4_scale(true), "triton_kernels 3.7 and later on gfx950"),
      row("gfx1250.2026-08", strided(), gfx1250_scale(4),
          "triton_kernels of August 2026 on gfx1250"),
      row("strided", strided(), strided(), "triton_kernels elsewhere"),
  };
}

}  // namespace fp4moe::backends::triton
