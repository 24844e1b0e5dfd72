// Models and layers as programs read them: what the C API and the Python package hand out.
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/runtime/run.hpp"

namespace fp4moe::runtime {

// {"path", "is_converted", "layers": [...]}. A layer that cannot be run says why, so that the
// others can be read all the same.
Json describe(const Model& model);

// {"backend", "policy", "layout", "numerics", "weights_bytes", ...}; "engine" and "kernel" once the
// layer is processed, then "wide_rows" (DeviceLayer::wide_rows), too, if its weights are on a device.
Json describe(const MoeLayer& layer);

}  // namespace fp4moe::runtime
