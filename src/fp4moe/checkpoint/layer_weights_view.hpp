// A layer's experts in memory that belongs to the caller: no file, no names, no config.json. Nothing
// is copied; the memory outlives the view and every ExpertView that it gives.
//
//   LayerWeights given{.shape = {.format = WeightFormat::mxfp4, .experts = 32, .hidden = 2880,
//                                .intermediate = 2880, .order = RowOrder::interleaved}};
//   given.w13 = {.codes = {w13_bytes}, .scales = {w13_scale_bytes}, .bias = {w13_bias_bytes}};
//   given.w2 = {.codes = {w2_bytes}, .scales = {w2_scale_bytes}, .bias = {w2_bias_bytes}};
//   Result<LayerWeightsView> view = LayerWeightsView::make(given);
//   Result<ExpertView> expert = view->expert(7);
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::checkpoint {

// Rows of bytes of all experts, [experts, rows, bytes of a row]. Strides are in bytes; 0: one after
// the other, without gaps. The bytes of a row always lie together.
struct StackedRows {
  std::span<const std::byte> bytes{};
  std::uint64_t expert_stride = 0, row_stride = 0;
};

// [experts, rows] of bf16, f16 or f32, at any address.
struct StackedBias {
  std::span<const std::byte> bytes{};
  tensor::DType dtype = tensor::DType::bf16;
  std::uint64_t expert_stride = 0;  // bytes; 0: one after the other
};

// One matrix of all experts, canonical as in checkpoint/expert.hpp. Not given: all of it empty.
struct MatrixWeights {
  StackedRows codes{};   // [experts, rows, k / 2]
  StackedRows scales{};  // [experts, rows, k / block]
  // NVFP4: factors, not their reciprocals. One for all, one for each expert, or for a w13 with a
  // gate two for each expert: the gate's, then the up's.
  std::span<const float> global_scales{};
  // The same for what activations are divided by; none: the weights bring none.
  std::span<const float> input_scales{};
  StackedBias bias{};  // none: no bytes
};

// A caller's weights: w13 with rows in the order of the shape, or gate and up apart (where the
// order is of no account). Without a gate w13 and up are the same.
struct LayerWeights {
  MoeShape shape{};  // `has_bias` and `has_input_scale` follow from what is given
  MatrixWeights w13{}, gate{}, up{};
  MatrixWeights w2{};
};

class LayerWeightsView {
 public:
  // Errors: weights.shape (a size of 0, one that is not whole blocks, too many bytes),
  // weights.missing (a matrix or its global scales), weights.given (w13 and its parts, a gate where
  // there is none, global scales of MXFP4), weights.size (memory of another size, or another number
  // of scales), weights.stride (rows that would overlap), weights.bias (another type, several).
  static Result<LayerWeightsView> make(const LayerWeights& given);

  const MoeShape& shape() const { return shape_; }
  tensor::DType bias_type() const { return bias_type_; }  // bf16 without biases
  // As given, NaN and zero too; none where there are none.
  std::optional<float> input_scale(Projection which, std::uint64_t expert) const;

  // Errors: slice.expert (no such expert), scale.nan (a block scale), scale.global (one that is
  // zero, negative or not finite).
  Result<ExpertView> expert(std::uint64_t number) const;

  // A tensor-parallel rank's part of every expert of a layer whose whole intermediate size is
  // `whole`; weights that are the rank's part already stay as they are. Ranks above 0 have no bias
  // of w2, so that a sum over ranks adds it once. Errors: those of split_intermediate, slice.empty,
  // weights.slice (neither all nor this part).
  Result<LayerWeightsView> slice(Rank tensor_parallel, SplitRule rule, std::uint64_t whole) const;

 private:
  struct Rows {
    RowsView of_first{};  // expert 0
    std::uint64_t expert_stride = 0;
    RowsView at(std::uint64_t expert) const;
  };
  struct Numbers {
    std::span<const float> values{};
    std::uint64_t first = 0, step = 0;  // of expert 0; from expert to expert
    float at(std::uint64_t expert) const { return values[first + expert * step]; }
  };
  struct Part {
    Rows codes{}, scales{};
    Numbers globals{}, inputs{};
    BiasView bias{};  // of expert 0
    std::uint64_t bias_stride = 0;
  };
  struct Maker;

  LayerWeightsView() = default;
  void cut(Range intermediate);
  const Part& part(Projection which) const { return parts_[static_cast<std::size_t>(which)]; }

  MoeShape shape_{};
  tensor::DType bias_type_ = tensor::DType::bf16;
  Part parts_[3]{};  // gate, up, down
};

}  // namespace fp4moe::checkpoint
