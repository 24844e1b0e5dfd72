// TRT-LLM's scalars: alphas of one maximum over all experts, and g1_scale_c.
#pragma once
#include "fp4moe/layout/transforms.hpp"

namespace fp4moe::backends::flashinfer_trtllm {

extern const layout::ScalarTransform kAlphas, kAlphas202601;

}  // namespace fp4moe::backends::flashinfer_trtllm
