#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/matrix_place.hpp"
#include "fp4moe/checkpoint/page_release.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"
#include "fp4moe/checkpoint/stored_scalar.hpp"
#include "fp4moe/checkpoint/transpose.hpp"

namespace fp4moe::checkpoint {
namespace {

using tensor::StoredTensor;

constexpr std::string_view kProjectionNames[] = {"gate", "up", "down"};

std::string_view word(Projection which) { return kProjectionNames[static_cast<int>(which)]; }

}  // namespace

// The origin of block scales: the tensor, and the first row and block in the whole matrix.
struct ScaleOrigin {
  const StoredTensor* tensor = nullptr;
  std::uint64_t expert = 0, first_row = 0, first_column = 0;
};

// The part of a layer that one read takes.
struct ExpertReader::Cut {
  const LayerTensors& layer;
  std::uint64_t expert;
  Range range;                   // of the intermediate size
  const ExpertBuffers& buffers;  // where GGUF blocks are unpacked
  bool has_down_bias;
};

// The part of one matrix that a read takes.
struct ExpertReader::Window {
  MatrixPlace place{};
  std::uint64_t first = 0, rows = 0;  // in the tensor's rows
  Range columns{};
  ScaleOrigin origin{};
};

// GGUF rows to be unpacked.
struct ExpertReader::Packed {
  RowsView blocks{};
  RowsBuffer codes{}, scales{};
  std::uint64_t code_bytes = 0, scale_bytes = 0;  // of a row
};

namespace {

Result<Done> check_scales(const tensor::Store& store, const LayerTensors& layer,
                          const RowsView& scales, const ScaleOrigin& origin, Projection which) {
  const WeightFormat format = layer.shape.format;
  // GGUF's scales have no sign; a set bit means that another program wrote something else.
  const bool is_unsigned = layer.row->scales_inside() && format == WeightFormat::nvfp4;
  const auto at = find_in_rows(scales, [=](std::span<const std::byte> row) {
    return is_unsigned ? find_nan_or_negative_scale(row) : find_nan_scale(format, row);
  });
  if (!at) return Done{};
  const bool negative = is_unsigned && scales.row(at->row)[at->column] >= std::byte{0x80};
  return (negative ? invalid("scale.negative", "a block scale is negative")
                   : invalid("scale.nan", "a block scale is NaN"))
      .in(store.path(*origin.tensor))
      .at(origin.tensor->entry.name)
      .expects(negative ? "scales without a sign" : "numbers",
               fmt::format("{} at expert {}, {} row {}, block {}", negative ? "a sign bit" : "NaN",
                           origin.expert, word(which), origin.first_row + at->row,
                           origin.first_column + at->column))
      .try_this("The file is damaged or was exported wrongly: fp4moe lint lists all such scales");
}

// Memory of our own for unpacked rows, one after another.
ProjectionBuffers buffers_at(WeightFormat format, std::byte* at, std::uint64_t rows,
                             std::uint64_t k) {
  return {{at, k / 2}, {at + round_up(rows * (k / 2), 64), k / block_size(format)}};
}

std::uint64_t unpacked_bytes(WeightFormat format, std::uint64_t rows, std::uint64_t k) {
  return round_up(rows * (k / 2), 64) + round_up(rows * (k / block_size(format)), 64);
}

// The columns of whole GGUF blocks that cover a range.
Range covering(WeightFormat format, Range range) {
  const std::uint64_t block = gguf_block_elements(format);
  return {range.begin / block * block, round_up(range.end, block)};
}

}  // namespace

std::span<const std::byte> ExpertReader::touch(const StoredTensor& tensor, std::uint64_t offset,
                                               std::uint64_t size) {
  const std::span<const std::byte> part = checkpoint_->store().bytes(tensor).subspan(offset, size);
  touched_.emplace_back(&tensor, part);
  return part;
}

RowsView ExpertReader::stored_rows(const StoredTensor& tensor, const Window& window,
                                   std::uint64_t per_byte) {
  const std::uint64_t whole = window.place.k / per_byte, stride = whole * window.place.step;
  const std::uint64_t length = window.columns.size() / per_byte;
  const auto bytes = touch(tensor, window.first * whole + window.columns.begin / per_byte,
                           (window.rows - 1) * stride + length);
  return {bytes.data(), window.rows, length, stride};
}

ExpertReader::Window ExpertReader::window_of(const Cut& cut, Projection which) const {
  const DialectRow& dialect = *cut.layer.row;
  const ProjectionPlaces& places = cut.layer.places(which, cut.expert);
  const bool down = which == Projection::down;
  Window window{.place = matrix_place(cut.layer, cut.expert, which)};
  const std::uint64_t skipped = down ? 0 : cut.range.begin;  // rows of the matrix
  window.first = window.place.first + skipped * window.place.step;
  window.rows = down ? window.place.rows : cut.range.size();
  window.columns = down ? cut.range : Range{0, window.place.k};
  window.origin = {dialect.scales_inside() ? places.codes.tensor : places.scales.tensor, cut.expert,
                   skipped, window.columns.begin / block_size(cut.layer.shape.format)};
  return window;
}

ExpertReader::Packed ExpertReader::packed_rows(const Cut& cut, Projection which,
                                               ProjectionView& view) {
  const Window window = window_of(cut, which);
  const WeightFormat format = cut.layer.shape.format;
  const std::uint64_t elements = gguf_block_elements(format), bytes_each = gguf_block_bytes(format);
  const std::uint64_t block = block_size(format), rows = window.rows;
  const Range cover = covering(format, window.columns);
  const std::uint64_t whole = window.place.k / elements * bytes_each;  // bytes of a row in the file
  const std::uint64_t part = cover.size() / elements * bytes_each;
  const auto blocks =
      touch(*window.origin.tensor, window.first * whole + cover.begin / elements * bytes_each,
            (rows - 1) * whole + part);
  const auto& [codes, scales] = cut.buffers.at(which);
  const std::uint64_t skipped = window.columns.begin - cover.begin;
  view.codes = {codes.data + skipped / 2, rows, window.columns.size() / 2, codes.stride};
  view.scales = {scales.data + skipped / block, rows, window.columns.size() / block, scales.stride};
  return {.blocks = {blocks.data(), rows, part, whole},
          .codes = codes,
          .scales = scales,
          .code_bytes = cover.size() / 2,
          .scale_bytes = cover.size() / block};
}

// Gate and up are read alternately, row by row, if the buffers interleave them: so they are filled
// in order.
void ExpertReader::unpack(WeightFormat format, std::span<const Packed> together) {
  const GgufBlocks gguf(format);
  const std::uint64_t rows = together[0].blocks.rows;
  const bool dense = std::ranges::all_of(together, [](const Packed& packed) {
    return packed.blocks.is_dense() && packed.codes.stride == packed.code_bytes &&
           packed.scales.stride == packed.scale_bytes;
  });
  const std::uint64_t count = dense ? rows : 1;
  for (std::uint64_t row = 0; row < rows; row += count) {
    for (const Packed& packed : together) {
      gguf.unpack({packed.blocks.row(row).data(), count * packed.blocks.row_bytes},
                  {packed.codes.data + row * packed.codes.stride, count * packed.code_bytes},
                  {packed.scales.data + row * packed.scales.stride, count * packed.scale_bytes});
    }
  }
}

// Rows of a matrix whose bytes lie by columns.
void ExpertReader::transpose_rows(const Cut& cut, Projection which, ProjectionView& view) {
  const Window window = window_of(cut, which);
  const MatrixPlace& place = window.place;
  const ProjectionPlaces& places = cut.layer.places(which, cut.expert);
  const auto transpose = [&](const StoredTensor& tensor, std::uint64_t per_byte,
                             const RowsBuffer& to) {
    const std::uint64_t first = window.columns.begin / per_byte;
    const std::uint64_t columns = window.columns.size() / per_byte;
    const std::uint64_t begin = first_column_byte(place, cut.expert, place.k / per_byte) +
                                first * place.tensor_rows + (window.first - place.first);
    const auto bytes = touch(
        tensor, begin, (columns - 1) * place.tensor_rows + (window.rows - 1) * place.step + 1);
    gather_rows({bytes.data(), window.rows, columns, place.tensor_rows, place.step}, to);
    return RowsView{to.data, window.rows, columns, to.stride};
  };
  const auto& [codes, scales] = cut.buffers.at(which);
  view.codes = transpose(*places.codes.tensor, 2, codes);
  view.scales = transpose(*places.scales.tensor, block_size(cut.layer.shape.format), scales);
}

void ExpertReader::unpack_expert(const Cut& cut, ExpertView& view) {
  const WeightFormat format = cut.layer.shape.format;
  if (cut.layer.row->is_transposed) {
    if (cut.layer.shape.gated()) transpose_rows(cut, Projection::gate, view.gate);
    transpose_rows(cut, Projection::up, view.up);
    transpose_rows(cut, Projection::down, view.down);
    return;
  }
  const Packed up = packed_rows(cut, Projection::up, view.up);
  if (cut.layer.shape.gated()) {
    const Packed gate = packed_rows(cut, Projection::gate, view.gate);
    unpack(format, std::array{gate, up});
  } else {
    unpack(format, std::array{up});
  }
  unpack(format, std::array{packed_rows(cut, Projection::down, view.down)});
}

Result<Done> ExpertReader::read_projection(const Cut& cut, Projection which, ProjectionView& view) {
  const tensor::Store& store = checkpoint_->store();
  const DialectRow& dialect = *cut.layer.row;
  const ProjectionPlaces& places = cut.layer.places(which, cut.expert);
  const Window window = window_of(cut, which);
  if (!dialect.needs_unpacking()) {
    view.codes = stored_rows(*places.codes.tensor, window, 2);
    view.scales = stored_rows(*places.scales.tensor, window, block_size(cut.layer.shape.format));
  }
  if (const auto fine = check_scales(store, cut.layer, view.scales, window.origin, which); !fine)
    return fine.why();
  if (places.global_scale.tensor != nullptr) {
    const auto scale = read_global_scale(store, dialect, *places.global_scale.tensor, cut.expert);
    if (!scale) return scale.why();
    view.global_scale = *scale;
  }
  if (places.input_scale.tensor != nullptr) {
    view.input_scale =
        canonical_scale(dialect, stored_scalar(store, *places.input_scale.tensor, cut.expert));
  }
  if (places.bias.tensor != nullptr && (which != Projection::down || cut.has_down_bias)) {
    const StoredTensor& bias = *places.bias.tensor;
    const std::uint64_t size = tensor::row(bias.entry.dtype).block_bytes;
    const std::uint64_t stride = window.place.step * size;
    const auto bytes = touch(bias, window.first * size, (window.rows - 1) * stride + size);
    view.bias = {bytes.data(), window.rows, stride, bias.entry.dtype};
  }
  return Done{};
}

Result<ExpertBuffers> ExpertReader::own_buffers(const MoeShape& shape, std::uint64_t rows,
                                                Range columns) {
  const std::uint64_t w13 = unpacked_bytes(shape.format, rows, shape.hidden);
  const std::uint64_t w2 = unpacked_bytes(shape.format, shape.hidden, columns.size());
  const std::uint64_t needed = (shape.gated() ? 2 : 1) * w13 + w2;
  if (scratch_.size() < needed) {
    auto buffer = tensor::Buffer::allocate(needed);
    if (!buffer) return buffer.why();
    scratch_ = std::move(*buffer);
  }
  std::byte* at = scratch_.data();
  ExpertBuffers buffers{.up = buffers_at(shape.format, at, rows, shape.hidden),
                        .down = buffers_at(shape.format, at + w13, shape.hidden, columns.size())};
  if (shape.gated()) buffers.gate = buffers_at(shape.format, at + w13 + w2, rows, shape.hidden);
  return buffers;
}

Result<ExpertView> ExpertReader::read(std::size_t layer_position, std::uint64_t expert,
                                      const ExpertBuffers* buffers) {
  touched_.clear();
  if (layer_position >= checkpoint_->layers().size()) {
    return usage("slice.layer", "there is no such layer")
        .expects(fmt::format("0 to {}", checkpoint_->layers().size() - 1),
                 fmt::format("{}", layer_position));
  }
  const LayerTensors& layer = checkpoint_->layers()[layer_position];
  const MoeShape& shape = layer.shape;
  const Rank ep = slice_.expert_parallel;
  if (ep.rank >= ep.size || !owns_expert(shape.experts, ep, slice_.placement, expert)) {
    return usage("slice.expert", "the expert is not of this rank")
        .at(layer.prefix)
        .expects(fmt::format("one of {} experts that expert-parallel rank {} of {} holds",
                             shape.experts, ep.rank, ep.size),
                 fmt::format("expert {}", expert));
  }
  const auto range = split_intermediate(shape.intermediate, block_size(shape.format),
                                        slice_.tensor_parallel, split_rule(*checkpoint_, layer));
  if (!range) return range.why();
  if (range->size() == 0) {
    return usage("slice.empty", "the tensor-parallel rank holds no rows of this layer")
        .at(layer.prefix)
        .expects(
            "at least one scale block for each rank",
            fmt::format("{} blocks among {} ranks", shape.intermediate / block_size(shape.format),
                        slice_.tensor_parallel.size))
        .try_this("Use fewer ranks, or expert parallel");
  }
  const bool packed = layer.row->needs_unpacking();
  ExpertBuffers own;
  if (packed && (buffers == nullptr || range->size() != shape.intermediate)) {
    const Range columns =
        layer.row->scales_inside() ? covering(shape.format, *range) : Range(*range);
    const Result<ExpertBuffers> result = own_buffers(shape, range->size(), columns);
    if (!result) return result.why();
    own = *result;
    buffers = nullptr;
  }
  ExpertView view{.shape = shape};
  view.shape.intermediate = range->size();
  const Cut cut{layer, expert, *range, buffers == nullptr ? own : *buffers,
                slice_.tensor_parallel.rank == 0};
  if (packed) unpack_expert(cut, view);
  for (const auto& [which, into] :
       {std::pair{Projection::gate, &view.gate}, std::pair{Projection::up, &view.up},
        std::pair{Projection::down, &view.down}}) {
    if (which == Projection::gate && !shape.gated()) continue;
    if (const auto done = read_projection(cut, which, *into); !done) return done.why();
  }
  return view;
}

void ExpertReader::release() {
  for (const auto& [tensor, part] : touched_) release_pages(checkpoint_->store(), *tensor, part);
  touched_.clear();
}

}  // namespace fp4moe::checkpoint
