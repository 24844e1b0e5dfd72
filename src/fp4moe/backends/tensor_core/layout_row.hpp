// The layout of our own kernels for tensor cores: records of 64 rows x 64 k, codes in the order of
// fragments of mma with their bits where shifts and a mask make BF16 of them, then their scales. In
// each 16 rows eight gate rows precede their eight up rows. A lane's codes of a record are 16 bytes.
// mma.sync and Hopper's wgmma have the same fragments, so both families of kernels read it.
#pragma once
#include <string_view>

#include "fp4moe/backends/tensor_core/maps.hpp"
#include "fp4moe/backends/tensor_core/transforms.hpp"
#include "fp4moe/formats/sm90_scale.hpp"
#include "fp4moe/layout/layout.hpp"

namespace fp4moe::backends::tensor_core {

inline layout::Layout layout_row(std::string_view id, formats::WeightFormat format,
                                 std::string_view reads) {
  using namespace layout;  // NOLINT(google-build-using-namespace): words of the row below
  const bool nvfp4 = format == formats::WeightFormat::nvfp4;
  const auto block = static_cast<std::uint32_t>(formats::block_size(format));
  return {.id = id,
          .generation = formats::kSm90Generation,
          .format = format,
          .order = {.block = 8},
          .codes = codes(block),
          .scales = scales(block),
          .one_record = true,
          .scale_transform = nvfp4 ? &kNvfp4Scales : &kMxfp4Scales,
          .bias_type = BiasType::f32,
          .scalars = nvfp4 ? &kNvfp4Factors : &kMxfp4Factors,
          .reads = reads,
          .note = nvfp4 ? "Codes of blocks whose scale is 0 become 0." : ""};
}

}  // namespace fp4moe::backends::tensor_core
