// Calls on arrays that lie on a GPU: enqueued on the framework's current stream, nothing is copied
// and nothing waits.
#pragma once
#include <cstdint>

#include "arrays.hpp"
#include "bindings.hpp"
#include "layer.hpp"

namespace fp4moe::python {

// `tokens` is `x` as memory, on a device. Errors: rows.device (arrays in different places),
// layer.device, cuda.*.
nb::object run_on_device(const Layer& layer, nb::handle x, const Array& tokens, nb::handle logits,
                         nb::handle out);

struct DeviceRoutes {
  nb::handle ids, weights;
};
nb::object apply_on_device(const Layer& layer, nb::handle x, const Array& tokens,
                           const DeviceRoutes& routes, nb::handle out);

// Memory for calls of up to `tokens` tokens, before a stream is captured into a graph.
void reserve(const Layer& layer, std::int64_t tokens, std::int64_t top_k);

}  // namespace fp4moe::python
