// The experts of a checkpoint's layer copied into memory as callers have them: w13 in one piece or
// gate and up apart, dense or with gaps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/layer_weights_view.hpp"

namespace fp4moe::checkpoint::testing {

enum class Arrangement : std::uint8_t { interleaved, halves, apart };

// Memory for one matrix of all experts. Every array has exactly the size that is claimed.
struct StackedMatrix {
  std::vector<std::byte> codes{}, scales{}, bias{};
  std::vector<float> globals{}, inputs{};
  std::uint64_t gap = 0;  // bytes after each row, and 3 more after each expert; none after the last
  tensor::DType bias_type = tensor::DType::bf16;

  void add_rows(const ProjectionView& view, std::uint64_t row) {
    add(view.codes.row(row), codes);
    add(view.scales.row(row), scales);
    if (view.bias.size == 0) return;
    bias_type = view.bias.dtype;
    const std::byte* at = view.bias.data + row * view.bias.stride;
    bias.insert(bias.end(), at, at + tensor::row(bias_type).block_bytes);
  }
  void add_scalars(const ProjectionView& view, WeightFormat format) {
    if (format == WeightFormat::nvfp4) globals.push_back(view.global_scale);
    if (view.input_scale) inputs.push_back(*view.input_scale);
  }
  void end_expert() {
    for (std::vector<std::byte>* bytes : {&codes, &scales})
      if (gap != 0) bytes->insert(bytes->end(), 3, std::byte{0xFF});
  }
  void finish() {
    if (gap == 0) return;
    codes.resize(codes.size() - gap - 3);
    scales.resize(scales.size() - gap - 3);
  }
  MatrixWeights given(std::uint64_t rows, std::uint64_t k, std::uint64_t block) const {
    const auto strided = [&](const std::vector<std::byte>& bytes, std::uint64_t row_bytes) {
      StackedRows result{.bytes = bytes};
      if (gap != 0) {
        result.row_stride = row_bytes + gap;
        result.expert_stride = rows * result.row_stride + 3;
      }
      return result;
    };
    return {.codes = strided(codes, k / 2),
            .scales = strided(scales, k / block),
            .global_scales = globals,
            .input_scales = inputs,
            .bias = {.bytes = bias, .dtype = bias_type}};
  }

 private:
  void add(std::span<const std::byte> row, std::vector<std::byte>& to) const {
    to.insert(to.end(), row.begin(), row.end());
    to.insert(to.end(), gap, std::byte{0xFF});  // NaN as a scale
  }
};

struct StackedWeights {
  MoeShape shape{};
  Arrangement arrangement{};
  StackedMatrix w13{}, gate{}, up{}, w2{};

  // What `slice` leaves of a layer.
  StackedWeights(const Checkpoint& checkpoint, Arrangement arranged, std::uint64_t gap = 0,
                 const Slice& slice = {}, std::size_t layer = 0)
      : arrangement(arranged) {
    for (StackedMatrix* matrix : {&w13, &gate, &up, &w2}) matrix->gap = gap;
    const auto experts = local_experts(checkpoint.layers()[layer].shape.experts,
                                       slice.expert_parallel, slice.placement);
    EXPECT_TRUE(experts) << text(experts.why());
    ExpertReader reader(checkpoint, slice);
    for (const std::uint64_t expert : *experts) {
      const auto view = reader.read(layer, expert);
      EXPECT_TRUE(view) << text(view.why());
      shape = view->shape;
      add(*view);
    }
    shape.experts = experts->size();
    for (StackedMatrix* matrix : used()) matrix->finish();
    if (arrangement == Arrangement::apart) return;
    shape.order =
        arrangement == Arrangement::interleaved ? RowOrder::interleaved : RowOrder::halves;
  }

  LayerWeights given() const {
    const std::uint64_t block = block_size(shape.format), rows = shape.intermediate;
    LayerWeights result{.shape = shape};
    if (arrangement == Arrangement::apart) {
      result.gate = gate.given(rows, shape.hidden, block);
      result.up = up.given(rows, shape.hidden, block);
    } else {
      result.w13 = w13.given(2 * rows, shape.hidden, block);
    }
    result.w2 = w2.given(shape.hidden, rows, block);
    return result;
  }
  LayerWeightsView view() const {
    auto result = LayerWeightsView::make(given());
    EXPECT_TRUE(result) << text(result.why());
    return *result;
  }

 private:
  std::vector<StackedMatrix*> used() {
    if (arrangement == Arrangement::apart) return {&gate, &up, &w2};
    return {&w13, &w2};
  }
  void add(const ExpertView& view) {
    const std::uint64_t rows = view.shape.intermediate;
    switch (arrangement) {
      case Arrangement::interleaved:
        for (std::uint64_t row = 0; row < rows; ++row)
          for (const ProjectionView* part : {&view.gate, &view.up}) w13.add_rows(*part, row);
        break;
      case Arrangement::halves:
        for (const ProjectionView* part : {&view.gate, &view.up})
          for (std::uint64_t row = 0; row < rows; ++row) w13.add_rows(*part, row);
        break;
      case Arrangement::apart:
        for (std::uint64_t row = 0; row < rows; ++row) {
          gate.add_rows(view.gate, row);
          up.add_rows(view.up, row);
        }
    }
    for (std::uint64_t row = 0; row < view.shape.hidden; ++row) w2.add_rows(view.down, row);
    const bool apart = arrangement == Arrangement::apart;
    (apart ? gate : w13).add_scalars(view.gate, shape.format);
    (apart ? up : w13).add_scalars(view.up, shape.format);
    w2.add_scalars(view.down, shape.format);
    for (StackedMatrix* matrix : used()) matrix->end_expert();
  }
};

inline constexpr Arrangement kArrangements[] = {Arrangement::interleaved, Arrangement::halves,
                                                Arrangement::apart};

}  // namespace fp4moe::checkpoint::testing
