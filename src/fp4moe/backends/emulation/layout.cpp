// Emulation dequantizes at run time: everything stays as it was loaded.
#include "fp4moe/backends/families.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::backends::emulation {
namespace {

using namespace layout;

Layout as_loaded(std::string_view id, WeightFormat format) {
  return {.id = id,
          .format = format,
          .order = {.as_loaded = true},
          .codes = plain(),
          .scales = plain(),
          .scales_type = format == WeightFormat::nvfp4 ? tensor::DType::f8_e4m3 : tensor::DType::u8,
          .scalars = format == WeightFormat::nvfp4 ? &kGlobalScales : nullptr,
          .reads = "emulation, and whoever wants canonical rows"};
}

}  // namespace

std::vector<Layout> layouts() {
  return {as_loaded("as_loaded.mxfp4", WeightFormat::mxfp4),
          as_loaded("as_loaded.nvfp4", WeightFormat::nvfp4)};
}

}  // namespace fp4moe::backends::emulation
