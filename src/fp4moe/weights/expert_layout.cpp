#include "fp4moe/weights/expert_layout.hpp"

#include <algorithm>
#include <array>
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

// Where rows of a run come from: rows [begin, end) of one view go to every `step`-th row of the
// output, the first of them to row `to`. A fused run has two such parts, gate and up.
struct RowsPart {
  const ProjectionView* view = nullptr;
  std::uint64_t begin = 0, end = 0, to = 0, step = 1;
};

std::array<RowsPart, 2> parts_of(const ExpertLayout& layout, const Run& run, const ExpertView& view,
                                 Range rows) {
  const ProjectionView* one = run.matrix == Matrix::gate   ? &view.gate
                              : run.matrix == Matrix::down ? &view.down
                                                           : &view.up;
  if (run.matrix != Matrix::gate_up || layout.shape.order == RowOrder::single)
    return {{{one, rows.begin, rows.end, 0, 1}, {}}};
  // Even rows are the gate's, odd ones up's.
  const std::uint64_t odd = rows.begin % 2;
  return {{{&view.gate, (rows.begin + 1) / 2, (rows.end + 1) / 2, odd, 2},
           {&view.up, rows.begin / 2, rows.end / 2, 1 - odd, 2}}};
}

void copy_rows(const RowsView& from, const RowsPart& part, std::byte* out) {
  const std::uint64_t size = from.row_bytes;
  const std::byte* source = from.data + part.begin * from.stride;
  std::byte* to = out + part.to * size;
  if (from.is_dense() && part.step == 1) {
    std::memcpy(to, source, (part.end - part.begin) * size);
    return;
  }
  for (std::uint64_t row = part.begin; row < part.end; ++row) {
    std::memcpy(to, source, size);
    source += from.stride;
    to += part.step * size;
  }
}

template <std::size_t From, std::size_t To>
void copy_numbers(const BiasView& bias, const RowsPart& part, std::byte* out) {
  const std::byte* source = bias.data + part.begin * bias.stride;
  std::byte* to = out + part.to * To;
  for (std::uint64_t row = part.begin; row < part.end; ++row) {
    if constexpr (From == To) {
      std::memcpy(to, source, To);
    } else if constexpr (To == 4) {  // bfloat16 is the upper half of a float32
      std::memset(to, 0, 2);
      std::memcpy(to + 2, source, 2);
    } else {
      std::memcpy(to, source + 2, 2);
    }
    source += bias.stride;
    to += part.step * To;
  }
}

// Bias elements change their type only between bfloat16 and float32, where that is exact.
void copy_bias(const BiasView& bias, const RowsPart& part, DType dtype, std::byte* out) {
  const bool from_wide = tensor::row(bias.dtype).block_bytes == 4;
  const bool to_wide = tensor::row(dtype).block_bytes == 4;
  if (from_wide) {
    (to_wide ? copy_numbers<4, 4> : copy_numbers<4, 2>)(bias, part, out);
  } else {
    (to_wide ? copy_numbers<2, 4> : copy_numbers<2, 2>)(bias, part, out);
  }
}

// GGUF keeps gate and up apart, so rows follow each other in the output.
void pack_rows(WeightFormat format, const RowsPart& part, std::uint64_t row_bytes, std::byte* out) {
  const RowsView &codes = part.view->codes, &scales = part.view->scales;
  const std::uint64_t count = part.end - part.begin;
  if (codes.is_dense() && scales.is_dense()) {
    pack_gguf_row(format, {codes.data + part.begin * codes.stride, count * codes.row_bytes},
                  {scales.data + part.begin * scales.stride, count * scales.row_bytes},
                  {out, count * row_bytes});
    return;
  }
  for (std::uint64_t row = part.begin; row < part.end; ++row, out += row_bytes)
    pack_gguf_row(format, codes.row(row), scales.row(row), {out, row_bytes});
}

std::uint32_t scalar_bits(const ExpertLayout& layout, const Run& run, const ExpertSource& source) {
  const bool global = run.part == Part::global_scale;
  if (source.scales != nullptr) {
    const StoredScales::Pair& pair = source.scales->at(run.matrix);
    const std::optional<std::uint32_t> exact = global ? pair.global : pair.input;
    if (exact) return *exact;
  }
  const ProjectionView& view = *parts_of(layout, run, source.view, {0, 1})[0].view;
  const float value = global ? view.global_scale : view.input_scale.value_or(1.0f);
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
  const RowsView& rows = rows_of(*parts_of(layout, run, source.view, {0, 1})[0].view);
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
  if (run.part == Part::global_scale || run.part == Part::input_scale) {
    const std::uint32_t bits = scalar_bits(layout, run, source);
    if (rows.size() != 0) std::memcpy(out.data(), &bits, sizeof bits);
    return;
  }
  for (const RowsPart& part : parts_of(layout, run, source.view, rows)) {
    if (part.begin >= part.end) continue;
    if (run.part == Part::bias) {
      copy_bias(part.view->bias, part, run.dtype, out.data());
    } else if (run.part == Part::scales) {
      copy_rows(part.view->scales, part, out.data());
    } else if (layout.row.scales_inside()) {
      pack_rows(layout.shape.format, part, run.row_bytes, out.data());
    } else {
      copy_rows(part.view->codes, part, out.data());
    }
  }
}

Result<Done> lay_out_expert(const ExpertLayout& layout, const ExpertSource& source,
                            std::span<std::byte> out) {
  if (out.size() != layout.bytes())
    return usage("expert.buffer", "the buffer does not fit the expert")
        .expects(std::to_string(layout.bytes()) + " bytes", std::to_string(out.size()));
  constexpr std::uint64_t kStepBytes = std::uint64_t{1} << 14;
  std::vector<std::byte*> begins;
  std::byte* next = out.data();
  for (const Run& run : layout.runs) {
    begins.push_back(next);
    next += run.bytes();
  }
  for (const Step& step : steps_of(layout, kStepBytes)) {
    const Run& run = layout.runs[step.run];
    const std::uint64_t begin = step.rows.begin * run.row_bytes;
    const std::span<std::byte> to{begins[step.run] + begin, step.rows.size() * run.row_bytes};
    const std::span<const std::byte> stored = stored_bytes(layout, run, source);
    if (stored.empty()) {
      lay_out_rows(layout, run, source, step.rows, to);
    } else {
      std::memcpy(to.data(), stored.data() + begin, to.size());
    }
  }
  return Done{};
}

std::vector<Step> steps_of(const ExpertLayout& layout, std::uint64_t bytes) {
  std::vector<Step> steps;
  const auto twin_of = [&](std::size_t i) -> std::optional<std::size_t> {
    if (layout.runs[i].matrix != Matrix::gate) return std::nullopt;
    for (std::size_t j = 0; j < layout.runs.size(); ++j)
      if (layout.runs[j].matrix == Matrix::up && layout.runs[j].part == layout.runs[i].part)
        return j;
    return std::nullopt;
  };
  const bool has_gate = layout.runs[0].matrix == Matrix::gate;
  for (std::size_t i = 0; i < layout.runs.size(); ++i) {
    const Run& run = layout.runs[i];
    if (has_gate && run.matrix == Matrix::up) continue;  // comes with its gate
    const std::optional<std::size_t> twin = twin_of(i);
    const std::uint64_t count = std::max<std::uint64_t>(1, bytes / run.row_bytes);
    for (std::uint64_t row = 0; row < run.rows; row += count) {
      const Range rows{row, std::min(run.rows, row + count)};
      steps.push_back({i, rows});
      if (twin) steps.push_back({*twin, rows});
    }
  }
  return steps;
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
