// Transforms of scale bytes, biases and scalars on the way into a layout: functions of its row.
// Those of one family stand in backends/<family>/transforms.cpp, those that several share are here.
// Scalars are float32, each operation rounded once, in the order written.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/formats/scale_extremes.hpp"
#include "fp4moe/tensor/tensor.hpp"

namespace fp4moe::layout {

using formats::ScaleExtremes;

// An extreme positive scale that is written as `byte` has lost its value.
struct ScaleLoss {
  std::uint8_t byte;
  std::uint8_t ScaleExtremes::*extreme;
  std::string_view says;
};

struct ScaleTransform {
  std::string_view says;
  std::uint8_t (*byte)(int code, int exponent);
  // The power of two that is taken out of the scales. Null: none. Errors: scale.range,
  // scale.negative.
  Result<int> (*exponent)(const ScaleExtremes& extremes, tensor::DType params_type) = nullptr;
  bool has_shared_exponent = false;      // one of all experts of the layer
  bool has_cleared_zero_blocks = false;  // FP4 codes of blocks of scale 0 become 0
  bool is_unsigned = false;              // signs of scales are dropped
  std::span<const ScaleLoss> losses{};
};

struct BiasTransform {
  std::string_view says;
  std::uint64_t (*row_of)(std::uint64_t row);
  std::uint64_t multiple = 1;  // of rows
};

// Scalars of one expert; gate's are absent if there is no gate.
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
  bool gated = true;
  tensor::DType params_type = tensor::DType::bf16;
  std::vector<int> w13_exponents{}, w2_exponents{};  // of the scale transform, per expert
  const InputScales* all_inputs = nullptr;           // null: those of the experts
};

using Scalars = std::vector<ScalarTensor>;
using ExpertList = std::span<const ExpertScalars>;

enum class InputUse : std::uint8_t { none, per_expert, shared };

struct ScalarTransform {
  std::string_view says;
  InputUse inputs = InputUse::none;   // input scales that it needs
  bool has_gate_and_up = false;       // both global scales
  bool has_folded_exponents = false;  // those of the scale transform, into global scales
  Scalars (*tensors)(const ScalarProblem& problem, std::uint64_t experts);  // without values
  // Errors: scale.input.
  Result<Done> (*fill)(const ScalarProblem& problem, ExpertList experts, Scalars& tensors);
};

// w13_scale_2 [E, gate and up], w2_scale_2 [E], as they are.
extern const ScalarTransform kGlobalScales;
// Alphas with input scales: the larger of gate's and up's, for each expert, or one for all.
extern const ScalarTransform kAlphasPerExpert, kAlphasShared;

// Helpers for the families' own transforms.
ScalarTensor scalar_row(std::string_view name, std::uint64_t experts,
                        tensor::DType type = tensor::DType::f32);
ScalarTensor scalar_pairs(std::string_view name, bool gated, std::uint64_t experts);
float gate_or_up(const ScalarProblem& problem, const ExpertScalars& expert);
float rounded(tensor::DType type, float x);
Scalars alpha_tensors(const ScalarProblem& problem, std::uint64_t experts);
Result<Done> fill_shared_alphas(const ScalarProblem& problem, ExpertList experts, Scalars& tensors);

}  // namespace fp4moe::layout
