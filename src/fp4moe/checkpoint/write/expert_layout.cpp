#include "fp4moe/checkpoint/write/expert_layout.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::DType;

constexpr std::uint64_t kScalarBytes = 4;

bool interleaves(const DialectRow& row) {
  return row.dialect == Dialect::gpt_oss || row.dialect == Dialect::openai;
}

// Rows of one matrix on their way: [begin, end) of the view, the first of them to `to`, each
// `step` rows of the output after the one before.
struct RowsPart {
  const ProjectionView* view = nullptr;
  std::uint64_t begin = 0, end = 0;
  std::byte* to = nullptr;
  std::uint64_t step = 1;

  std::uint64_t size() const { return end - begin; }
};

// Gate and up in the order of their first rows in the output, or one matrix alone.
using RowsParts = std::array<RowsPart, 2>;

const ProjectionView& view_of(const Run& run, const ExpertView& view) {
  return run.matrix == Matrix::gate ? view.gate : run.matrix == Matrix::down ? view.down : view.up;
}

RowsParts parts_of(const ExpertLayout& layout, const Run& run, const ExpertView& view, Range rows,
                   std::byte* out) {
  if (run.matrix != Matrix::gate_up || layout.shape.order == RowOrder::single)
    return {{{&view_of(run, view), rows.begin, rows.end, out, 1}, {}}};
  if (layout.shape.order == RowOrder::halves) {
    const std::uint64_t half = run.rows / 2;
    const RowsPart first{&view.gate, std::min(rows.begin, half), std::min(rows.end, half), out, 1};
    return {{first,
             {&view.up, std::max(rows.begin, half) - half, std::max(rows.end, half) - half,
              out + first.size() * run.row_bytes, 1}}};
  }
  // Even rows are the gate's, odd ones up's.
  const RowsPart gate{&view.gate, (rows.begin + 1) / 2, (rows.end + 1) / 2, out, 2};
  const RowsPart up{&view.up, rows.begin / 2, rows.end / 2, out, 2};
  RowsParts parts = rows.begin % 2 == 0 ? RowsParts{gate, up} : RowsParts{up, gate};
  parts[1].to += run.row_bytes;
  return parts;
}

template <std::size_t From, std::size_t To>
void copy_numbers(const BiasView& bias, const RowsPart& part) {
  const std::byte* source = bias.data + part.begin * bias.stride;
  std::byte* to = part.to;
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
void copy_bias(const RowsPart& part, DType dtype) {
  const BiasView& bias = part.view->bias;
  const bool from_wide = tensor::row(bias.dtype).block_bytes == 4;
  const bool to_wide = tensor::row(dtype).block_bytes == 4;
  if (from_wide) {
    (to_wide ? copy_numbers<4, 4> : copy_numbers<4, 2>)(bias, part);
  } else {
    (to_wide ? copy_numbers<2, 4> : copy_numbers<2, 2>)(bias, part);
  }
}

// Moves rows of one run, as many at a time as lie together on both sides.
struct RowMover {
  const ExpertLayout& layout;
  const Run& run;
  GgufBlocks gguf{layout.shape.format};

  void move(const RowsPart& part, std::uint64_t row, std::uint64_t count) const {
    std::byte* to = part.to + row * part.step * run.row_bytes;
    const auto from = [&](const RowsView& rows) -> std::span<const std::byte> {
      return {rows.data + (part.begin + row) * rows.stride, count * rows.row_bytes};
    };
    const ProjectionView& view = *part.view;
    if (layout.row.scales_inside()) {
      gguf.pack(from(view.codes), from(view.scales), {to, count * run.row_bytes});
    } else {
      const auto rows = from(run.part == Part::codes ? view.codes : view.scales);
      std::memcpy(to, rows.data(), rows.size());
    }
  }
};

// Interleaved gate and up rows are copied alternately, so that this side is sequential. Larger
// strides defeat the prefetcher and halve the speed.
void lay_out_parts(const ExpertLayout& layout, const Run& run, const RowsParts& parts) {
  bool whole = true;
  for (const RowsPart& part : parts) {
    if (part.size() == 0) continue;
    if (run.part == Part::bias) copy_bias(part, run.dtype);
    whole = whole && part.step == 1 && part.view->codes.is_dense() && part.view->scales.is_dense();
  }
  if (run.part == Part::bias) return;
  const RowMover mover{layout, run};
  if (whole) {
    for (const RowsPart& part : parts)
      if (part.size() != 0) mover.move(part, 0, part.size());
    return;
  }
  for (std::uint64_t row = 0; row < parts[0].size(); ++row) {
    mover.move(parts[0], row, 1);
    if (row < parts[1].size()) mover.move(parts[1], row, 1);
  }
}

// Columns of codes or scales, one byte of each row after the other.
void lay_out_columns(const ExpertLayout& layout, const Run& run, const ExpertView& view,
                     Range columns, std::byte* out) {
  const auto rows_of = [&](const ProjectionView& from) -> const RowsView& {
    return run.part == Part::codes ? from.codes : from.scales;
  };
  const auto put = [&](const RowsView& rows, std::uint64_t first, std::uint64_t step) {
    for (std::uint64_t row = 0; row < rows.rows; ++row) {
      const std::span<const std::byte> bytes = rows.row(row);
      for (std::uint64_t c = columns.begin; c < columns.end; ++c)
        out[(c - columns.begin) * run.row_bytes + first + row * step] = bytes[c];
    }
  };
  const bool joined = run.matrix == Matrix::gate_up && layout.shape.gated();
  if (!joined) return put(rows_of(view_of(run, view)), 0, 1);
  const bool is_interleaved = layout.shape.order == RowOrder::interleaved;
  put(rows_of(view.gate), 0, is_interleaved ? 2 : 1);
  put(rows_of(view.up), is_interleaved ? 1 : run.row_bytes / 2, is_interleaved ? 2 : 1);
}

bool is_by_columns(const ExpertLayout& layout, const Run& run) {
  return layout.row.is_transposed && (run.part == Part::codes || run.part == Part::scales);
}

std::uint32_t scalar_bits(const ExpertLayout& layout, const Run& run, const ExpertBytes& source) {
  const bool global = run.part == Part::global_scale;
  if (source.scales != nullptr) {
    const StoredScales::Pair& pair = source.scales->at(run.matrix);
    const std::optional<std::uint32_t> exact = global ? pair.global : pair.input;
    if (exact) return *exact;
  }
  const ProjectionView& view = view_of(run, source.view);
  const float value = global ? view.global_scale : view.input_scale.value_or(1.0f);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return layout.row.global_scale == GlobalScale::divides ? reciprocal_bits(bits) : bits;
}

void put_scalar(std::uint32_t bits, DType dtype, std::span<std::byte> out) {
  if (dtype == DType::f32) {
    std::memcpy(out.data(), &bits, sizeof bits);
    return;
  }
  const float value = std::bit_cast<float>(bits);
  const std::uint16_t half =
      dtype == DType::bf16 ? formats::Bf16::encode(value) : formats::F16::encode(value);
  std::memcpy(out.data(), &half, sizeof half);
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
  } else if (row.is_transposed) {  // what a run calls rows are the columns of the matrix
    add(Part::codes, k / 2, rows, row.codes_dtype);
    add(Part::scales, k / block_size(shape.format), rows, row.scales_dtype);
  } else {
    add(Part::codes, rows, k / 2, row.codes_dtype);
    add(Part::scales, rows, k / block_size(shape.format), row.scales_dtype);
  }
  if (row.global_scale != GlobalScale::none) add(Part::global_scale, 1, kScalarBytes, DType::f32);
  if (shape.has_input_scale && !row.parts.input_scale.empty())
    add(Part::input_scale, 1, tensor::row(row.input_scale_dtype).block_bytes,
        row.input_scale_dtype);
  if (shape.has_bias) add(Part::bias, rows, tensor::row(bias_dtype).block_bytes, bias_dtype);
}

// The begin of each run when they lie one after another.
std::vector<std::byte*> run_begins(const ExpertLayout& layout, std::byte* out) {
  std::vector<std::byte*> begins;
  for (const Run& run : layout.runs) {
    begins.push_back(out);
    out += run.bytes();
  }
  return begins;
}

tensor::Shape expert_shape(const ExpertLayout& layout, const Run& run) {
  const std::uint64_t block = block_size(layout.shape.format);
  if (is_by_columns(layout, run)) return {run.rows, run.row_bytes};
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
  if (shape.gated() && !row.is_transposed)
    layout.shape.order = row.joins_gate_up() ? RowOrder::interleaved : RowOrder::halves;
  if (row.joins_gate_up()) {
    add_runs(layout, Matrix::gate_up, bias_dtype);
  } else {
    if (shape.gated()) add_runs(layout, Matrix::gate, bias_dtype);
    add_runs(layout, Matrix::up, bias_dtype);
  }
  add_runs(layout, Matrix::down, bias_dtype);
  return layout;
}

std::span<const std::byte> stored_bytes(const ExpertLayout& layout, const Run& run,
                                        const ExpertBytes& source) {
  if (layout.row.needs_unpacking() || (run.part != Part::codes && run.part != Part::scales))
    return {};
  const auto rows_of = [&](const ProjectionView& view) -> const RowsView& {
    return run.part == Part::codes ? view.codes : view.scales;
  };
  if (run.matrix != Matrix::gate_up || layout.shape.order == RowOrder::single) {
    const RowsView& rows = rows_of(view_of(run, source.view));
    if (rows.is_dense()) return {rows.data, run.bytes()};
    return {};
  }
  const RowsView &gate = rows_of(source.view.gate), &up = rows_of(source.view.up);
  const std::uint64_t stride = 2 * run.row_bytes;
  if (gate.stride == stride && up.stride == stride && up.data == gate.data + run.row_bytes)
    return {gate.data, run.bytes()};
  return {};
}

void lay_out_step(const ExpertLayout& layout, const Step& step, const ExpertBytes& source,
                  std::span<std::byte> out, std::span<std::byte> paired_out) {
  const Run& run = layout.runs[step.run];
  assert(out.size() == step.rows.size() * run.row_bytes);
  if (run.part == Part::global_scale || run.part == Part::input_scale) {
    const std::uint32_t bits = scalar_bits(layout, run, source);
    if (step.rows.size() != 0) put_scalar(bits, run.dtype, out);
    return;
  }
  if (is_by_columns(layout, run))
    return lay_out_columns(layout, run, source.view, step.rows, out.data());
  RowsParts parts = parts_of(layout, run, source.view, step.rows, out.data());
  if (step.paired) {
    assert(paired_out.size() == out.size());
    parts[1] =
        parts_of(layout, layout.runs[*step.paired], source.view, step.rows, paired_out.data())[0];
  }
  lay_out_parts(layout, run, parts);
}

Result<Done> lay_out_expert(const ExpertLayout& layout, const ExpertBytes& source,
                            std::span<std::byte> out) {
  if (out.size() != layout.bytes())
    return usage("expert.buffer", "the buffer does not fit the expert")
        .expects(std::to_string(layout.bytes()) + " bytes", std::to_string(out.size()));
  const std::vector<std::byte*> begins = run_begins(layout, out.data());
  const auto place = [&](std::size_t i) -> std::span<std::byte> {
    return {begins[i], layout.runs[i].bytes()};
  };
  for (const Step& step : steps_of(layout, source, std::numeric_limits<std::uint64_t>::max())) {
    const std::span<const std::byte> stored = stored_bytes(layout, layout.runs[step.run], source);
    const std::span<std::byte> to = place(step.run);
    if (stored.empty()) {
      lay_out_step(layout, step, source, to, step.paired ? place(*step.paired) : to);
    } else if (stored.data() != to.data()) {
      std::memcpy(to.data(), stored.data(), to.size());
    }
  }
  return Done{};
}

ExpertBuffers buffers_in(const ExpertLayout& layout, std::span<std::byte> out) {
  assert(out.size() == layout.bytes() && !layout.row.needs_unpacking());
  const std::vector<std::byte*> begins = run_begins(layout, out.data());
  ExpertBuffers buffers;
  for (std::size_t i = 0; i < layout.runs.size(); ++i) {
    const Run& run = layout.runs[i];
    if (run.part != Part::codes && run.part != Part::scales) continue;
    const auto give = [&](ProjectionBuffers& projection, std::uint64_t row, std::uint64_t step) {
      (run.part == Part::codes ? projection.codes : projection.scales) =
          RowsBuffer{begins[i] + row * run.row_bytes, step * run.row_bytes};
    };
    if (run.matrix == Matrix::gate_up && layout.shape.gated()) {
      give(buffers.gate, 0, 2);
      give(buffers.up, 1, 2);
    } else {
      give(run.matrix == Matrix::gate   ? buffers.gate
           : run.matrix == Matrix::down ? buffers.down
                                        : buffers.up,
           0, 1);
    }
  }
  return buffers;
}

std::vector<Step> steps_of(const ExpertLayout& layout, const ExpertBytes& source,
                           std::uint64_t bytes) {
  const auto interleaved = [&](const Run& run) {
    const ProjectionView& gate = source.view.gate;
    return (run.part == Part::codes && !gate.codes.is_dense()) ||
           (run.part == Part::scales && !gate.scales.is_dense());
  };
  const auto run_of = [&](Matrix matrix, Part part) -> std::optional<std::size_t> {
    for (std::size_t i = 0; i < layout.runs.size(); ++i)
      if (layout.runs[i].matrix == matrix && layout.runs[i].part == part) return i;
    return std::nullopt;
  };
  std::vector<Step> steps;
  for (std::size_t i = 0; i < layout.runs.size(); ++i) {
    const Run& run = layout.runs[i];
    std::optional<std::size_t> paired;
    if (interleaved(run)) {
      if (run.matrix == Matrix::up && run_of(Matrix::gate, run.part)) continue;  // with its gate
      if (run.matrix == Matrix::gate) paired = run_of(Matrix::up, run.part);
    }
    const std::uint64_t share = paired ? bytes / 2 : bytes;
    const std::uint64_t count = std::max<std::uint64_t>(1, share / run.row_bytes);
    for (std::uint64_t row = 0; row < run.rows; row += std::min(count, run.rows - row))
      steps.push_back({i, paired, {row, row + std::min(count, run.rows - row)}});
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
  const bool is_shared = layout.row.is_transposed && is_scalar(run);
  if (layout.row.grouping != Grouping::per_expert && !is_shared)
    spec.shape.insert(spec.shape.begin(), layout.shape.experts);
  return spec;
}

std::uint32_t reciprocal_bits(std::uint32_t bits) {
  return std::bit_cast<std::uint32_t>(1.0f / std::bit_cast<float>(bits));
}

}  // namespace fp4moe::checkpoint
