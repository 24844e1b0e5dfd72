#include "fp4moe/weights/expert_layout.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "fp4moe/weights/gguf_blocks.hpp"

namespace fp4moe::weights {
namespace {

using tensor::DType;

constexpr std::uint64_t kScalarBytes = 4;

bool interleaves(const DialectRow& row) {
  return row.dialect == Dialect::gpt_oss || row.dialect == Dialect::openai;
}

// The rows of a run: those of one view, or of gate and up together.
struct RowPlace {
  const ProjectionView* view;
  std::uint64_t row;
};

RowPlace place_of(const ExpertLayout& layout, const Run& run, const ExpertView& view,
                  std::uint64_t row) {
  switch (run.matrix) {
    case Matrix::gate:
      return {&view.gate, row};
    case Matrix::up:
      return {&view.up, row};
    case Matrix::down:
      return {&view.down, row};
    case Matrix::gate_up:
      break;
  }
  if (layout.shape.order == RowOrder::single) return {&view.up, row};
  if (layout.shape.order == RowOrder::interleaved)
    return {row % 2 == 0 ? &view.gate : &view.up, row / 2};
  const std::uint64_t half = run.rows / 2;
  return {row < half ? &view.gate : &view.up, row % half};
}

void copy_row(const RowsView& rows, std::uint64_t row, std::byte* out) {
  std::memcpy(out, rows.data + row * rows.stride, rows.row_bytes);
}

// Bias elements change their type only between bfloat16 and float32, where that is exact.
void copy_bias(const BiasView& bias, std::uint64_t row, DType dtype, std::byte* out) {
  const std::byte* from = bias.data + row * bias.stride;
  if (bias.dtype == dtype) {
    std::memcpy(out, from, tensor::row(dtype).block_bytes);
  } else if (dtype == DType::f32) {
    std::uint32_t bits = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, from, 2);
    std::memcpy(out, &bits, 4);
  } else {
    std::memcpy(out, from + 2, 2);
  }
}

std::uint32_t scalar_bits(const ExpertLayout& layout, const Run& run, const ExpertSource& source) {
  const bool global = run.part == Part::global_scale;
  if (source.scales != nullptr) {
    const StoredScales::Pair& pair = source.scales->at(run.matrix);
    const std::optional<std::uint32_t> exact = global ? pair.global : pair.input;
    if (exact) return *exact;
  }
  const RowPlace place = place_of(layout, run, source.view, 0);
  const float value = global ? place.view->global_scale : place.view->input_scale.value_or(1.0f);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return layout.row.global_scale == GlobalScale::divides ? reciprocal_bits(bits) : bits;
}

void add_runs(ExpertLayout& layout, Matrix matrix, DType bias_dtype) {
  const DialectRow& row = layout.row;
  const MoeShape& shape = layout.shape;
  const bool is_down = matrix == Matrix::down;
  const std::uint64_t k = is_down ? shape.intermediate : shape.hidden;
  const std::uint64_t rows = is_down                     ? shape.hidden
                             : matrix == Matrix::gate_up ? shape.w13_rows()
                                                         : shape.intermediate;
  const auto add = [&](Part part, std::uint64_t count, std::uint64_t row_bytes, DType dtype) {
    layout.runs.push_back({.part = part,
                           .matrix = matrix,
                           .rows = count,
                           .row_bytes = row_bytes,
                           .k = k,
                           .dtype = dtype});
  };
  if (row.scales_inside()) {
    const std::uint64_t blocks = k / gguf_block_elements(shape.format);
    add(Part::codes, rows, blocks * gguf_block_bytes(shape.format), row.codes_dtype);
  } else {
    add(Part::codes, rows, k / 2, row.codes_dtype);
    add(Part::scales, rows, k / block_size(shape.format), row.scales_dtype);
  }
  if (row.global_scale != GlobalScale::none) add(Part::global_scale, 1, kScalarBytes, DType::f32);
  if (shape.has_input_scale && !row.parts.input_scale.empty())
    add(Part::input_scale, 1, kScalarBytes, DType::f32);
  if (shape.has_bias) add(Part::bias, rows, tensor::row(bias_dtype).block_bytes, bias_dtype);
}

tensor::Shape expert_shape(const ExpertLayout& layout, const Run& run) {
  const std::uint64_t block = block_size(layout.shape.format);
  switch (run.part) {
    case Part::codes:
      if (layout.row.scales_inside()) return {run.rows, run.k};
      if (interleaves(layout.row)) return {run.rows, run.k / block, block / 2};
      return {run.rows, run.k / 2};
    case Part::scales:
      return {run.rows, run.k / block};
    case Part::bias:
      return {run.rows};
    case Part::global_scale:
    case Part::input_scale:
      break;
  }
  // ModelOpt stores a scalar, compressed-tensors one element.
  if (layout.row.dialect == Dialect::compressed_tensors) return {1};
  return {};
}

}  // namespace

std::uint64_t ExpertLayout::bytes() const {
  std::uint64_t total = 0;
  for (const Run& run : runs) total += run.bytes();
  return total;
}

ExpertLayout expert_layout(const DialectRow& row, const MoeShape& shape, DType bias_dtype) {
  ExpertLayout layout{.row = row, .shape = shape};
  if (shape.gated())
    layout.shape.order = row.grouping == Grouping::fused ? RowOrder::interleaved : RowOrder::halves;
  if (row.grouping == Grouping::fused) {
    add_runs(layout, Matrix::gate_up, bias_dtype);
  } else {
    if (shape.gated()) add_runs(layout, Matrix::gate, bias_dtype);
    add_runs(layout, Matrix::up, bias_dtype);
  }
  add_runs(layout, Matrix::down, bias_dtype);
  return layout;
}

std::span<const std::byte> stored_bytes(const ExpertLayout& layout, const Run& run,
                                        const ExpertSource& source) {
  if (layout.row.scales_inside() || (run.part != Part::codes && run.part != Part::scales))
    return {};
  const auto rows_of = [&](const ProjectionView& view) -> const RowsView& {
    return run.part == Part::codes ? view.codes : view.scales;
  };
  const RowPlace first = place_of(layout, run, source.view, 0);
  const RowsView& rows = rows_of(*first.view);
  if (run.matrix != Matrix::gate_up || layout.shape.order == RowOrder::single) {
    if (rows.is_dense()) return {rows.data, run.bytes()};
    return {};
  }
  const RowsView& up = rows_of(source.view.up);
  const bool interleaved = layout.shape.order == RowOrder::interleaved;
  const std::uint64_t stride = interleaved ? 2 * run.row_bytes : run.row_bytes;
  const std::uint64_t distance = interleaved ? run.row_bytes : run.bytes() / 2;
  if (rows.stride == stride && up.stride == stride && up.data == rows.data + distance)
    return {rows.data, run.bytes()};
  return {};
}

void lay_out_rows(const ExpertLayout& layout, const Run& run, const ExpertSource& source,
                  Range rows, std::span<std::byte> out) {
  assert(out.size() == rows.size() * run.row_bytes);
  std::byte* to = out.data();
  for (std::uint64_t i = rows.begin; i < rows.end; ++i, to += run.row_bytes) {
    if (run.part == Part::global_scale || run.part == Part::input_scale) {
      const std::uint32_t bits = scalar_bits(layout, run, source);
      std::memcpy(to, &bits, sizeof bits);
      continue;
    }
    const RowPlace place = place_of(layout, run, source.view, i);
    if (run.part == Part::bias) {
      copy_bias(place.view->bias, place.row, run.dtype, to);
    } else if (run.part == Part::scales) {
      copy_row(place.view->scales, place.row, to);
    } else if (layout.row.scales_inside()) {
      pack_gguf_row(layout.shape.format, place.view->codes.row(place.row),
                    place.view->scales.row(place.row), {to, run.row_bytes});
    } else {
      copy_row(place.view->codes, place.row, to);
    }
  }
}

Result<Done> lay_out_expert(const ExpertLayout& layout, const ExpertSource& source,
                            std::span<std::byte> out) {
  if (out.size() != layout.bytes())
    return usage("expert.buffer", "the buffer does not fit the expert")
        .expects(std::to_string(layout.bytes()) + " bytes", std::to_string(out.size()));
  std::byte* to = out.data();
  for (const Run& run : layout.runs) {
    const std::span<const std::byte> stored = stored_bytes(layout, run, source);
    if (stored.empty()) {
      lay_out_rows(layout, run, source, {0, run.rows}, {to, run.bytes()});
    } else {
      std::memcpy(to, stored.data(), stored.size());
    }
    to += run.bytes();
  }
  return Done{};
}

tensor::TensorSpec run_tensor(const ExpertLayout& layout, const Run& run, std::string_view prefix,
                              std::uint64_t expert) {
  const PartNames& parts = layout.row.parts;
  const std::string_view part = run.part == Part::codes          ? parts.codes
                                : run.part == Part::scales       ? parts.scales
                                : run.part == Part::bias         ? parts.bias
                                : run.part == Part::global_scale ? parts.global_scale
                                                                 : parts.input_scale;
  const Projection projection = run.matrix == Matrix::down ? Projection::down
                                : run.matrix == Matrix::up ? Projection::up
                                                           : Projection::gate;
  tensor::TensorSpec spec{
      .name = projection_stem(layout.row, prefix, expert, projection) + std::string(part),
      .dtype = run.dtype,
      .shape = expert_shape(layout, run)};
  if (layout.row.grouping != Grouping::per_expert)
    spec.shape.insert(spec.shape.begin(), layout.shape.experts);
  return spec;
}

std::uint32_t reciprocal_bits(std::uint32_t bits) {
  return std::bit_cast<std::uint32_t>(1.0f / std::bit_cast<float>(bits));
}

}  // namespace fp4moe::weights
