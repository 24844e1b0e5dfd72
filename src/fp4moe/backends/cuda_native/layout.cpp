// The project's own SM90 layout: records of 64 rows x 64 k, codes in the order of tensor-core
// fragments with their bits where shifts and a mask make BF16 of them, then their scales. In each
// 16 rows eight gate rows precede their eight up rows.
#include "fp4moe/backends/cuda_native/transforms.hpp"
#include "fp4moe/backends/families.hpp"
#include "fp4moe/formats/sm90_scale.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::cuda_native {
namespace {

using namespace layout;

Layout row(WeightFormat format) {
  const bool nvfp4 = format == WeightFormat::nvfp4;
  const auto block = static_cast<std::uint32_t>(block_size(format));
  return {.id = nvfp4 ? "native_sm90.nvfp4" : "native_sm90.mxfp4",
          .generation = formats::kSm90Generation,
          .format = format,
          .order = {.block = 8},
          .codes = native_sm90_codes(block),
          .scales = native_sm90_scales(block),
          .one_record = true,
          .scale_transform = nvfp4 ? &kNvfp4Scales : &kMxfp4Scales,
          .bias_type = BiasType::f32,
          .scalars = nvfp4 ? &kNvfp4Factors : &kMxfp4Factors,
          .reads = "this library's SM90 kernels",
          .note = nvfp4 ? "Codes of blocks whose scale is 0 become 0." : ""};
}

}  // namespace

std::vector<Layout> layouts() { return {row(WeightFormat::mxfp4), row(WeightFormat::nvfp4)}; }

}  // namespace fp4moe::backends::cuda_native
