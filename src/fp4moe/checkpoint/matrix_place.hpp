// The position of an expert's matrix among the rows of its tensor: alone, stacked with the other
// experts, or joined with its partner (gate and up), interleaved or one after the other.
#pragma once
#include <cstdint>

#include "fp4moe/checkpoint/checkpoint.hpp"

namespace fp4moe::checkpoint {

struct MatrixPlace {
  std::uint64_t rows = 0;  // of the matrix
  std::uint64_t k = 0;     // elements of a row
  std::uint64_t tensor_rows =
      0;                    // of one expert in the tensor: twice as many where gate and up join
  std::uint64_t first = 0;  // the matrix's first row in the tensor
  std::uint64_t step = 1;   // from row to row
};

inline MatrixPlace matrix_place(const LayerTensors& layer, std::uint64_t expert, Projection which) {
  const MoeShape& shape = layer.shape;
  const std::uint64_t before = layer.row->grouping == Grouping::per_expert ? 0 : expert;
  if (which == Projection::down) {
    return {shape.hidden, shape.intermediate, shape.hidden, before * shape.hidden, 1};
  }
  const bool joined = !layer.gate.empty() && layer.places(Projection::gate, expert).codes.tensor ==
                                                 layer.places(Projection::up, expert).codes.tensor;
  const std::uint64_t rows = shape.intermediate, all = joined ? 2 * rows : rows;
  MatrixPlace place{rows, shape.hidden, all, before * all, 1};
  if (!joined) return place;
  const bool interleaved = shape.order == RowOrder::interleaved;
  if (interleaved) place.step = 2;
  if (which == Projection::up) place.first += interleaved ? 1 : rows;
  return place;
}

}  // namespace fp4moe::checkpoint
