// The functions of this folder that need no tensors, asked and answered in JSON: what the Python
// package calls.
//
//   {"ask": "select", "format": "mxfp4", "context": {"policy": "2026-08-22", "device": "h100"},
//    "config": {"num_experts": 32, ...}}
#pragma once
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/vllm/kernel_weights.hpp"
#include "fp4moe/vllm/moe_config.hpp"
#include "fp4moe/vllm/moe_quant_config.hpp"

namespace fp4moe::vllm {

// Errors: vllm.ask (a request that is not understood), and those of the function asked for.
Result<Json> ask(const Json& request);

// Parts of a request. Errors: vllm.ask, layer.field, layer.value, device.*, environment.*.
Result<WeightFormat> format_from(const Json& request);
Result<MoeConfig> config_from(const Json& request);  // with its context
Result<ConversionOptions> options_from(const Json& request);

// {"name", "dtype", "shape", "bytes", "extents", "strides"} for each tensor.
Json to_json(const KernelWeights& weights);
Json to_json(const FusedMoeQuantConfig& config);

}  // namespace fp4moe::vllm
