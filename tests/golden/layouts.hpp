// Golden data of weight layouts ("fp4moe-golden-layouts/1"): seeds of tensors, and what a layout
// makes of them: shapes, strides, sizes, digests and the first 64 bytes.
//
//   {prng: {name, check(s)}, fill_checks?, cases: [{id, layout, params, inputs, outputs,
//    reference?, roundtrip?, expect?}]}
//   input    {name, dtype, shape, seed, fill or gen, sha256?}
//   output   {name, dtype, shape, nbytes, sha256, head_hex or first64, strides?, logical_shape?,
//             layout?, pad?}
//
// A case is about one operation on one tensor or about a whole layer. Each runs over the map and
// over the fast path, which must agree, and back again. Padding that a reference leaves unset was
// zero when the digests were made, as it is here, so storages are compared whole. `expect: error`:
// the sizes must be refused.
#pragma once
#include "golden/layout_data.hpp"
#include "golden/report.hpp"

namespace fp4moe::golden {

Result<Done> run_layouts(const Json& document, Report& report);

Outcome check_layout(const Json& item);

// One tensor: "op_*", "triton.*", "aiter.*", "cpu.*", "deepgemm.*". Nothing when the layout's name
// is not of this kind.
std::optional<Outcome> check_layout_operation(const LayoutCase& given);
// A whole layer.
std::optional<Outcome> check_layout_layer(const LayoutCase& given);

// The answer for sizes that a layout refused.
Outcome refused(const LayoutCase& given, const Error& why);
// The answer when they should have been.
Outcome not_refused();

}  // namespace fp4moe::golden
