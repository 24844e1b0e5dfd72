// Golden data of number formats ("fp4moe-golden-formats/1"):
//
//   tables        {format: [float32 pattern or "nan", one for each code]}
//   encode        [{format, rule, n, inputs, codes}]
//   blocks        [{id, rule, inputs, scale, codes, in_dtype?, unspecified?}]
//   block_scales  [{rule, amax, scale}]
//   nvfp4         [{id, global_scale, inputs, scale_e4m3, codes}]
//   activations   [{gate, up, <name>: decimal float64, ...}]
//
// Each section may be missing; each of its entries is one case. Indices in `unspecified` hold
// non-finite inputs whose codes nobody promises. In `nvfp4` the sign of a zero is not compared.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

Result<Done> run_formats(const Json& document, Report& report);

// One case each; the sections above call them.
Outcome check_table(std::string_view format, const Json& values);
Outcome check_encode(const Json& item);
Outcome check_block(const Json& item);
Outcome check_block_scales(const Json& item);
Outcome check_nvfp4(const Json& item);
Outcome check_activation(const Json& item);

}  // namespace fp4moe::golden
