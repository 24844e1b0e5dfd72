// Whole layers on a device, from router logits to output, tokens and weights in its memory.
//
// Several layers with weights of their own rotate, each call with a routing of its own, so that
// weights come from memory and not from its cache. One graph holds the rotation, as a model's
// layers follow each other; a time is that of a replay divided by its calls.
#pragma once
#include <cstdint>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/layer.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::bench {

Result<LayerReport> bench_layer_cuda(const LayerBenchOptions& options);

// Reading and copying memory (both count), multiplying on tensor cores; int8 is not measured.
Result<Ceilings> device_ceilings(const kernels::cuda::Device& device);

}  // namespace fp4moe::bench
