// The project's own CPU layouts: gate_i and up_i lie in one tile, so that a task yields both.
#include "fp4moe/backends/cpu_native/maps.hpp"
#include "fp4moe/backends/families.hpp"

namespace fp4moe::backends::cpu_native {
namespace {

using namespace layout;

Layout row(std::string_view generation, WeightFormat format, Map codes, Map scales,
           std::string_view reads) {
  const bool nvfp4 = format == WeightFormat::nvfp4;
  return {.id = nvfp4 ? "cpu_native.nvfp4" : "cpu_native.mxfp4",
          .generation = generation,
          .format = format,
          .order = {.block = 1},
          .codes = codes,
          .scales = scales,
          .bias_type = BiasType::f32,
          .scalars = nvfp4 ? &kGlobalScales : nullptr,
          .reads = reads};
}

}  // namespace

std::vector<Layout> layouts() {
  std::vector<Layout> result;
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const auto block = static_cast<std::uint32_t>(block_size(format));
    result.push_back(
        row("arm.4x32", format, arm_codes(), arm_scales(block), "this library's Arm kernels"));
    result.push_back(row("x86.16x32.bf16", format, x86_codes(X86Form::bf16), x86_scales(block),
                         "this library's x86 kernels on BF16 operands"));
    result.push_back(row("x86.16x32.int8", format, x86_codes(X86Form::int8), x86_scales(block),
                         "this library's x86 kernels on INT8 operands"));
  }
  return result;
}

}  // namespace fp4moe::backends::cpu_native
