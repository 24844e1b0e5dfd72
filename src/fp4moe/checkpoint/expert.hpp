// One expert's weights as canonical matrices, without copying where the checkpoint allows it.
//
// Canonical: FP4 codes two to a byte, even element in the low nibble; one scale byte per block
// (E8M0 for 32 in MXFP4, E4M3 for 16 in NVFP4); value = e2m1 * scale * global_scale. Rows may be
// strided: in an interleaved w13 the gate is every second row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/tensor/dtype.hpp"

namespace fp4moe::checkpoint {

// Rows of bytes at a fixed distance.
struct RowsView {
  const std::byte* data = nullptr;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t stride = 0;  // bytes from row to row

  std::span<const std::byte> row(std::uint64_t index) const {
    return {data + index * stride, row_bytes};
  }
  bool is_dense() const { return stride == row_bytes; }
};

struct BiasView {
  const std::byte* data = nullptr;
  std::uint64_t size = 0;    // elements; 0: there is no bias
  std::uint64_t stride = 0;  // bytes from element to element
  tensor::DType dtype = tensor::DType::bf16;
};

struct ProjectionView {
  RowsView codes{};                    // [rows, k / 2]
  RowsView scales{};                   // [rows, k / block]
  float global_scale = 1.0f;           // multiplies; 1 for MXFP4
  std::optional<float> input_scale{};  // multiplies; absent when the checkpoint has none
  BiasView bias{};
};

struct ExpertView {
  MoeShape shape{};       // of the slice: `intermediate` is what this view holds
  ProjectionView gate{};  // empty when the model has no gate
  ProjectionView up{};
  ProjectionView down{};

  const ProjectionView& at(Projection which) const {
    return which == Projection::gate ? gate : which == Projection::up ? up : down;
  }
};

// Memory for an expert's codes and scales, for blocks that must be unpacked.
struct RowsBuffer {
  std::byte* data = nullptr;
  std::uint64_t stride = 0;  // bytes from row to row
};

struct ProjectionBuffers {
  RowsBuffer codes{}, scales{};
};

struct ExpertBuffers {
  ProjectionBuffers gate{}, up{}, down{};

  const ProjectionBuffers& at(Projection which) const {
    return which == Projection::gate ? gate : which == Projection::up ? up : down;
  }
};

}  // namespace fp4moe::checkpoint
