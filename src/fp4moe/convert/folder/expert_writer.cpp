#include "fp4moe/convert/folder/expert_writer.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/checkpoint/gguf_blocks.hpp"
#include "fp4moe/checkpoint/matrix_place.hpp"
#include "fp4moe/checkpoint/transpose.hpp"

namespace fp4moe::convert {
namespace {

using checkpoint::LayerTensors;
using checkpoint::MatrixPlace;
using checkpoint::MoeShape;
using checkpoint::Projection;
using checkpoint::Range;

bool is_joined_layer(const LayerTensors& layer) {
  return !layer.gate.empty() && layer.gate[0].codes.tensor == layer.up[0].codes.tensor;
}

// Hands out aligned parts of one buffer.
class Parts {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    return std::exchange(size_, size_ + round_up(bytes, tensor::Buffer::kAlignment));
  }
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_ = 0;
};

}  // namespace

Result<ExpertMemory> ExpertMemory::make(const LayerTensors& layer, Range range,
                                        tensor::DType bias_type) {
  const MoeShape& shape = layer.shape;
  const std::uint64_t block = checkpoint::block_size(shape.format), rows = range.size();
  const std::uint64_t code_row = shape.hidden / 2, scale_row = shape.hidden / block;
  const std::uint64_t down_code_row = rows / 2, down_scale_row = rows / block;
  const std::uint64_t bias_bytes = tensor::row(bias_type).block_bytes;
  const bool is_interleaved =
      is_joined_layer(layer) && shape.order == checkpoint::RowOrder::interleaved;
  Parts parts;
  const std::uint64_t w13 = shape.gated() ? 2 * rows : rows;
  const std::uint64_t codes = parts.take(w13 * code_row), scales = parts.take(w13 * scale_row);
  const std::uint64_t down_codes = parts.take(shape.hidden * down_code_row);
  const std::uint64_t down_scales = parts.take(shape.hidden * down_scale_row);
  const std::uint64_t bias13 = parts.take(shape.has_bias ? w13 * bias_bytes : 0);
  const std::uint64_t bias2 = parts.take(shape.has_bias ? shape.hidden * bias_bytes : 0);
  const bool packed = layer.row->scales_inside();
  const std::uint64_t blocks_bytes =
      packed
          ? std::max(rows * (code_row + scale_row), shape.hidden * (down_code_row + down_scale_row))
          : 0;
  const std::uint64_t blocks = parts.take(blocks_bytes);
  Result<tensor::Buffer> buffer = tensor::Buffer::allocate(parts.size());
  if (!buffer) return buffer.why();
  ExpertMemory memory;
  memory.shape_ = shape;
  memory.shape_.intermediate = rows;
  memory.bias_type_ = bias_type;
  memory.buffer_ = *std::move(buffer);
  std::byte* at = memory.buffer_.data();
  const auto w13_buffers = [&](bool second) {
    const std::uint64_t before = second ? (is_interleaved ? 1 : rows) : 0,
                        step = is_interleaved ? 2 : 1;
    return checkpoint::ProjectionBuffers{{at + codes + before * code_row, step * code_row},
                                         {at + scales + before * scale_row, step * scale_row}};
  };
  checkpoint::ExpertBuffers& buffers = memory.target_.buffers;
  if (shape.gated()) buffers.gate = w13_buffers(false);
  buffers.up = w13_buffers(shape.gated());
  buffers.down = {{at + down_codes, down_code_row}, {at + down_scales, down_scale_row}};
  if (shape.has_bias) {
    memory.target_.bias13 = {at + bias13, w13 * bias_bytes};
    memory.target_.bias2 = {at + bias2, shape.hidden * bias_bytes};
  }
  memory.blocks_ = {at + blocks, blocks_bytes};
  return memory;
}

checkpoint::ExpertView ExpertMemory::view(bool has_down_bias) const {
  const std::uint64_t rows = shape_.intermediate, block = checkpoint::block_size(shape_.format);
  const std::uint64_t each = tensor::row(bias_type_).block_bytes;
  const bool is_interleaved = shape_.order == checkpoint::RowOrder::interleaved;
  checkpoint::ExpertView view{.shape = shape_};
  const auto fill = [&](checkpoint::ProjectionView& part,
                        const checkpoint::ProjectionBuffers& buffers, std::uint64_t count,
                        std::uint64_t k) {
    part.codes = {buffers.codes.data, count, k / 2, buffers.codes.stride};
    part.scales = {buffers.scales.data, count, k / block, buffers.scales.stride};
  };
  if (shape_.gated()) fill(view.gate, target_.buffers.gate, rows, shape_.hidden);
  fill(view.up, target_.buffers.up, rows, shape_.hidden);
  fill(view.down, target_.buffers.down, shape_.hidden, rows);
  if (!shape_.has_bias) return view;
  const std::uint64_t stride = shape_.gated() && is_interleaved ? 2 * each : each;
  const std::uint64_t second = shape_.gated() ? (is_interleaved ? each : rows * each) : 0;
  if (shape_.gated()) view.gate.bias = {target_.bias13.data(), rows, stride, bias_type_};
  view.up.bias = {target_.bias13.data() + second, rows, stride, bias_type_};
  if (has_down_bias) view.down.bias = {target_.bias2.data(), shape_.hidden, each, bias_type_};
  return view;
}

// Rows of one part of a matrix: where they lie in memory and in the tensor.
struct ExpertWriter::Rows {
  const std::byte* data = nullptr;
  std::uint64_t count = 0, bytes = 0;   // rows, and the bytes of one
  std::uint64_t stride = 0;             // in memory
  std::uint64_t offset = 0, apart = 0;  // in the tensor: the first one, and from row to row
};

Result<ExpertWriter> ExpertWriter::make(const checkpoint::Checkpoint& checkpoint,
                                        std::size_t number, checkpoint::Slice slice,
                                        std::span<const RawFile> files) {
  const LayerTensors& layer = checkpoint.layers()[number];
  const MoeShape& shape = layer.shape;
  ExpertWriter writer(layer, slice, files);
  const auto range = checkpoint::split_intermediate(
      shape.intermediate, checkpoint::block_size(shape.format), slice.tensor_parallel,
      checkpoint::split_rule(checkpoint, layer));
  if (!range) return range.why();
  writer.range_ = *range;
  const std::uint64_t unit = checkpoint::gguf_block_elements(shape.format);
  if (layer.row->scales_inside() && (range->begin % unit != 0 || range->size() % unit != 0))
    return usage("unconvert.blocks", "the ranks' parts cut through blocks of the GGUF file")
        .at(layer.prefix)
        .expects(fmt::format("parts that are multiples of {}", unit),
                 fmt::format("rows {} to {}", range->begin, range->end))
        .try_this("convert without --tp, or keep the GGUF file");
  return writer;
}

bool ExpertWriter::is_joined(std::uint64_t expert) const {
  return layer_->shape.gated() && layer_->places(Projection::gate, expert).codes.tensor ==
                                      layer_->places(Projection::up, expert).codes.tensor;
}

Result<Done> ExpertWriter::write_rows(const tensor::StoredTensor& tensor, const Rows& rows) const {
  const RawFile& file = files_[tensor.file];
  const std::uint64_t begin = tensor.entry.begin + rows.offset;
  if (rows.stride == rows.bytes && rows.apart == rows.bytes)
    return file.write(begin, {rows.data, rows.count * rows.bytes});
  for (std::uint64_t row = 0; row < rows.count; ++row)
    if (Result<Done> done =
            file.write(begin + row * rows.apart, {rows.data + row * rows.stride, rows.bytes});
        !done)
      return done;
  return Done{};
}

// Interleaved gate and up are one matrix of twice the rows, in memory as in the tensor.
Result<Done> ExpertWriter::write_matrix(std::uint64_t expert, Projection which,
                                        const ExpertMemory& memory) const {
  const MatrixPlace place = checkpoint::matrix_place(*layer_, expert, which);
  const checkpoint::ProjectionPlaces& places = layer_->places(which, expert);
  const checkpoint::ProjectionBuffers& buffers = memory.target_.buffers.at(which);
  const bool down = which == Projection::down;
  const std::uint64_t skipped = down ? 0 : range_.begin, rows = down ? place.rows : range_.size();
  const Range columns = down ? range_ : Range{0, place.k};
  const std::uint64_t step = place.step;
  const auto part = [&](const checkpoint::RowsBuffer& from, std::uint64_t per_byte) {
    const std::uint64_t whole = place.k / per_byte;
    return Rows{.data = from.data,
                .count = rows * step,
                .bytes = columns.size() / per_byte,
                .stride = from.stride / step,
                .offset = (place.first + skipped * step) * whole + columns.begin / per_byte,
                .apart = whole};
  };
  if (Result<Done> done = write_rows(*places.codes.tensor, part(buffers.codes, 2)); !done)
    return done;
  return write_rows(*places.scales.tensor,
                    part(buffers.scales, checkpoint::block_size(layer_->shape.format)));
}

// As write_matrix, into tensors whose bytes lie by columns.
Result<Done> ExpertWriter::write_columns(std::uint64_t expert, Projection which,
                                         const ExpertMemory& memory) const {
  const MatrixPlace place = checkpoint::matrix_place(*layer_, expert, which);
  const checkpoint::ProjectionPlaces& places = layer_->places(which, expert);
  const checkpoint::ProjectionBuffers& buffers = memory.target_.buffers.at(which);
  const bool down = which == Projection::down;
  const std::uint64_t skipped = down ? 0 : range_.begin, rows = down ? place.rows : range_.size();
  const Range columns = down ? range_ : Range{0, place.k};
  const std::uint64_t step = place.step, count = rows * step;
  const auto write = [&](const tensor::StoredTensor& tensor, const checkpoint::RowsBuffer& from,
                         std::uint64_t per_byte) -> Result<Done> {
    const std::uint64_t first = columns.begin / per_byte, size = columns.size() / per_byte;
    Result<tensor::Buffer> turned = tensor::Buffer::allocate(size * count);
    if (!turned) return turned.why();
    checkpoint::gather_rows({from.data, size, count, from.stride / step, 1},
                            {turned->data(), count});
    return write_rows(tensor,
                      {.data = turned->data(),
                       .count = size,
                       .bytes = count,
                       .stride = count,
                       .offset = checkpoint::first_column_byte(place, expert, place.k / per_byte) +
                                 first * place.tensor_rows + skipped * step,
                       .apart = place.tensor_rows});
  };
  if (Result<Done> done = write(*places.codes.tensor, buffers.codes, 2); !done) return done;
  return write(*places.scales.tensor, buffers.scales, checkpoint::block_size(layer_->shape.format));
}

Result<Done> ExpertWriter::write_blocks(std::uint64_t expert, Projection which,
                                        const ExpertMemory& memory) const {
  const checkpoint::WeightFormat format = layer_->shape.format;
  const MatrixPlace place = checkpoint::matrix_place(*layer_, expert, which);
  const checkpoint::ProjectionBuffers& buffers = memory.target_.buffers.at(which);
  const bool down = which == Projection::down;
  const std::uint64_t skipped = down ? 0 : range_.begin, rows = down ? place.rows : range_.size();
  const Range columns = down ? range_ : Range{0, place.k};
  const std::uint64_t elements = checkpoint::gguf_block_elements(format);
  const std::uint64_t bytes = columns.size() / elements * checkpoint::gguf_block_bytes(format);
  const std::uint64_t whole = place.k / elements * checkpoint::gguf_block_bytes(format);
  const checkpoint::GgufBlocks gguf(format);
  for (std::uint64_t row = 0; row < rows; ++row)
    gguf.pack({buffers.codes.data + row * buffers.codes.stride, columns.size() / 2},
              {buffers.scales.data + row * buffers.scales.stride,
               columns.size() / checkpoint::block_size(format)},
              memory.blocks_.subspan(row * bytes, bytes));
  return write_rows(*layer_->places(which, expert).codes.tensor,
                    {.data = memory.blocks_.data(),
                     .count = rows,
                     .bytes = bytes,
                     .stride = bytes,
                     .offset = (place.first + skipped * place.step) * whole +
                               columns.begin / elements * checkpoint::gguf_block_bytes(format),
                     .apart = whole});
}

Result<Done> ExpertWriter::write_bias(std::uint64_t expert, const ExpertMemory& memory) const {
  const MoeShape& shape = layer_->shape;
  const std::span<const std::byte> bias13 = memory.target_.bias13;
  const bool is_interleaved = shape.order == checkpoint::RowOrder::interleaved;
  for (const Projection which : {Projection::gate, Projection::up}) {
    if (which == Projection::gate && !shape.gated()) continue;
    const tensor::StoredTensor* tensor = layer_->places(which, expert).bias.tensor;
    if (tensor == nullptr) continue;
    const MatrixPlace place = checkpoint::matrix_place(*layer_, expert, which);
    const std::uint64_t each = tensor::row(tensor->entry.dtype).block_bytes;
    const bool second = which == Projection::up && shape.gated();
    const std::uint64_t before = second ? (is_interleaved ? 1 : range_.size()) : 0;
    const Rows rows{.data = bias13.data() + before * each,
                    .count = range_.size(),
                    .bytes = each,
                    .stride = (is_interleaved && shape.gated() ? 2 : 1) * each,
                    .offset = (place.first + range_.begin * place.step) * each,
                    .apart = place.step * each};
    if (place.step == 2 && is_interleaved) {  // both at once, as they lie
      if (second) continue;
      Rows both = rows;
      both.count *= 2;
      both.stride = both.apart = each;
      if (Result<Done> done = write_rows(*tensor, both); !done) return done;
      continue;
    }
    if (Result<Done> done = write_rows(*tensor, rows); !done) return done;
  }
  const tensor::StoredTensor* down = layer_->places(Projection::down, expert).bias.tensor;
  if (down == nullptr || slice_.tensor_parallel.rank != 0) return Done{};
  const MatrixPlace place = checkpoint::matrix_place(*layer_, expert, Projection::down);
  const std::uint64_t each = tensor::row(down->entry.dtype).block_bytes;
  return files_[down->file].write(down->entry.begin + place.first * each, memory.target_.bias2);
}

Result<Done> ExpertWriter::write(std::uint64_t expert, const ExpertMemory& memory) const {
  const bool packed = layer_->row->scales_inside();
  const bool together =
      is_joined(expert) && layer_->shape.order == checkpoint::RowOrder::interleaved;
  for (const Projection which : {Projection::gate, Projection::up, Projection::down}) {
    if (which == Projection::gate && !layer_->shape.gated()) continue;
    if (which == Projection::up && together) continue;  // written with the gate
    Result<Done> done = packed                       ? write_blocks(expert, which, memory)
                        : layer_->row->is_transposed ? write_columns(expert, which, memory)
                                                     : write_matrix(expert, which, memory);
    if (!done) return done;
  }
  return layer_->shape.has_bias ? write_bias(expert, memory) : Done{};
}

}  // namespace fp4moe::convert
