// The small tensors beside the weights: global scales, input scales and what kernels make of them.
#pragma once
#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/transforms.hpp"

namespace fp4moe::convert {

using layout::ExpertScalars;
using layout::InputScales;
using layout::ScalarProblem;
using layout::Scalars;
using layout::ScalarTensor;
using layout::ScalarTransform;

// A null transform has no tensors.

// Without values: names, types, shapes.
Scalars scalar_tensors(const ScalarTransform* transform, const ScalarProblem& problem,
                       std::uint64_t experts);

// Errors: scale.input, scale.global.
Result<Scalars> make_scalars(const ScalarTransform* transform, const ScalarProblem& problem,
                             layout::ExpertList experts);

}  // namespace fp4moe::convert
