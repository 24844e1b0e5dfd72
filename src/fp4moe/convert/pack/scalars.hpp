// The small tensors beside the weights: global scales, input scales and what kernels make of them.
// All arithmetic is float32, each operation rounded once, in the order written here.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/layout/layout.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::convert {

// Of one expert; gate's are absent where there is no gate.
struct ExpertScalars {
  float gate_global = 1, up_global = 1, down_global = 1;
  std::optional<float> gate_input{}, up_input{}, down_input{};
};

// Input scales of every expert of every rank, where a layout shares one among them all.
struct InputScales {
  std::vector<float> gate{}, up{}, down{};  // multiply; NaN where the checkpoint has none
};

struct ScalarTensor {
  std::string name{};
  tensor::DType dtype = tensor::DType::f32;
  tensor::Shape shape{};
  std::vector<float> values{};  // already rounded to dtype
};

struct ScalarProblem {
  layout::ScalarRule rule{};
  layout::ScaleRule scale_rule{};
  bool gated = true;
  tensor::DType params_type = tensor::DType::bf16;
  int w13_exponent = 0, w2_exponent = 0;         // Marlin
  std::vector<int> w13_offsets{}, w2_offsets{};  // native_sm90, per expert
  const InputScales* all_inputs = nullptr;       // null: those of `experts`
};

// The tensors without values: names, types, shapes.
std::vector<ScalarTensor> scalar_tensors(const ScalarProblem& problem, std::uint64_t experts);

// Errors: scale.input, scale.global.
Result<std::vector<ScalarTensor>> make_scalars(const ScalarProblem& problem,
                                               const std::vector<ExpertScalars>& experts);

}  // namespace fp4moe::convert
