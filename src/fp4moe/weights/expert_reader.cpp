#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/weights/checkpoint.hpp"
#include "fp4moe/weights/gguf_blocks.hpp"
#include "fp4moe/weights/matrix_place.hpp"
#include "fp4moe/weights/page_release.hpp"
#include "fp4moe/weights/scale_scan.hpp"
#include "fp4moe/weights/stored_scalar.hpp"

namespace fp4moe::weights {
namespace {

using tensor::StoredTensor;

constexpr std::string_view kProjectionNames[] = {"gate", "up", "down"};

std::string_view word(Projection which) { return kProjectionNames[static_cast<int>(which)]; }

// Where block scales are: the tensor, and the first row and block in the whole matrix.
struct ScaleOrigin {
  const StoredTensor* tensor = nullptr;
  std::uint64_t expert = 0, first_row = 0, first_column = 0;
};

}  // namespace

// What one read takes of a layer.
struct ExpertReader::Cut {
  const MoeLayer& layer;
  std::uint64_t expert;
  Range range;         // of the intermediate size
  std::byte* scratch;  // where the next GGUF matrix is unpacked
  bool has_down_bias;
};

// The part of one matrix that a read takes.
struct ExpertReader::Window {
  MatrixPlace place{};
  std::uint64_t first = 0, rows = 0;  // in the tensor's rows
  Range columns{};
  ScaleOrigin origin{};
};

namespace {

Error bad_scale(const tensor::Store& store, const ScaleOrigin& origin, Projection which,
                std::uint64_t row, std::uint64_t column) {
  return invalid("scale.nan", "a block scale is NaN")
      .in(store.path(*origin.tensor))
      .at(origin.tensor->entry.name)
      .expects("numbers",
               fmt::format("NaN at expert {}, {} row {}, block {}", origin.expert, word(which),
                           origin.first_row + row, origin.first_column + column))
      .try_this("The file is damaged or was exported wrongly: fp4moe lint lists all such scales");
}

Result<Done> check_scales(const tensor::Store& store, WeightFormat format, const RowsView& scales,
                          const ScaleOrigin& origin, Projection which) {
  // Dense rows are one run.
  const bool dense = scales.is_dense();
  const std::uint64_t runs = dense ? 1 : scales.rows;
  const std::uint64_t length = dense ? scales.rows * scales.row_bytes : scales.row_bytes;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const std::size_t at = find_nan_scale(format, {scales.data + run * scales.stride, length});
    if (at == kNoScale) continue;
    return bad_scale(store, origin, which, run + at / scales.row_bytes, at % scales.row_bytes);
  }
  return Done{};
}

// GGUF's scales have no sign; a set bit means that another program wrote something else.
Result<Done> check_signs(const tensor::Store& store, std::span<const std::byte> blocks,
                         const ScaleOrigin& origin, Projection which) {
  constexpr std::size_t kBlock = 36;
  for (std::size_t at = 0; at + kBlock <= blocks.size(); at += kBlock) {
    std::uint32_t four = 0;
    std::memcpy(&four, blocks.data() + at, sizeof four);
    if ((four & 0x80808080u) == 0) continue;
    return invalid("scale.negative", "a block scale is negative")
        .in(store.path(*origin.tensor))
        .at(origin.tensor->entry.name)
        .expects("scales without a sign",
                 fmt::format("a sign bit at expert {}, {}", origin.expert, word(which)));
  }
  return Done{};
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

Result<Done> ExpertReader::unpack(Cut& cut, const Window& window, Projection which,
                                  ProjectionView& view) {
  const WeightFormat format = cut.layer.shape.format;
  const std::uint64_t elements = gguf_block_elements(format), bytes_each = gguf_block_bytes(format);
  const std::uint64_t block = block_size(format), rows = window.rows;
  const Range cover = covering(format, window.columns);
  const std::uint64_t whole = window.place.k / elements * bytes_each;  // bytes of a row in the file
  const std::uint64_t part = cover.size() / elements * bytes_each;
  const auto source =
      touch(*window.origin.tensor, window.first * whole + cover.begin / elements * bytes_each,
            (rows - 1) * whole + part);
  const std::uint64_t code_row = cover.size() / 2, scale_row = cover.size() / block;
  std::byte* codes = cut.scratch;
  std::byte* scales = codes + round_up(rows * code_row, 64);
  cut.scratch += unpacked_bytes(format, rows, cover.size());
  // Whole rows follow each other and are unpacked as one.
  const std::uint64_t runs = part == whole ? 1 : rows, count = rows / runs;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const auto blocks = source.subspan(run * whole, count * part);
    if (format == WeightFormat::nvfp4) {
      const auto fine = check_signs(checkpoint_->store(), blocks, window.origin, which);
      if (!fine) return fine.why();
    }
    unpack_gguf_row(format, blocks, {codes + run * code_row, count * code_row},
                    {scales + run * scale_row, count * scale_row});
  }
  const std::uint64_t skipped = window.columns.begin - cover.begin;
  view.codes = {codes + skipped / 2, rows, window.columns.size() / 2, code_row};
  view.scales = {scales + skipped / block, rows, window.columns.size() / block, scale_row};
  return Done{};
}

Result<ProjectionView> ExpertReader::read_projection(Cut& cut, Projection which) {
  const tensor::Store& store = checkpoint_->store();
  const DialectRow& dialect = *cut.layer.row;
  const WeightFormat format = cut.layer.shape.format;
  const ProjectionPlaces& places = cut.layer.places(which, cut.expert);
  const bool down = which == Projection::down;

  Window window{.place = matrix_place(cut.layer, cut.expert, which)};
  const std::uint64_t skipped = down ? 0 : cut.range.begin;  // rows of the matrix
  window.first = window.place.first + skipped * window.place.step;
  window.rows = down ? window.place.rows : cut.range.size();
  window.columns = down ? cut.range : Range{0, window.place.k};
  window.origin = {dialect.scales_inside() ? places.codes.tensor : places.scales.tensor, cut.expert,
                   skipped, window.columns.begin / block_size(format)};

  ProjectionView view;
  if (dialect.scales_inside()) {
    if (const auto fine = unpack(cut, window, which, view); !fine) return fine.why();
  } else {
    view.codes = stored_rows(*places.codes.tensor, window, 2);
    view.scales = stored_rows(*places.scales.tensor, window, block_size(format));
  }
  if (const auto fine = check_scales(store, format, view.scales, window.origin, which); !fine) {
    return fine.why();
  }
  if (places.global_scale.tensor != nullptr) {
    const auto scale = read_global_scale(store, dialect, *places.global_scale.tensor, cut.expert);
    if (!scale) return scale.why();
    view.global_scale = *scale;
  }
  if (places.input_scale.tensor != nullptr) {
    view.input_scale =
        canonical_scale(dialect, stored_scalar(store, *places.input_scale.tensor, cut.expert));
  }
  if (places.bias.tensor != nullptr && (!down || cut.has_down_bias)) {
    const StoredTensor& bias = *places.bias.tensor;
    const std::uint64_t size = tensor::row(bias.entry.dtype).block_bytes;
    const std::uint64_t stride = window.place.step * size;
    const auto bytes = touch(bias, window.first * size, (window.rows - 1) * stride + size);
    view.bias = {bytes.data(), window.rows, stride, bias.entry.dtype};
  }
  return view;
}

Result<ExpertView> ExpertReader::read(std::size_t layer_position, std::uint64_t expert) {
  touched_.clear();
  if (layer_position >= checkpoint_->layers().size()) {
    return usage("slice.layer", "there is no such layer")
        .expects(fmt::format("0 to {}", checkpoint_->layers().size() - 1),
                 fmt::format("{}", layer_position));
  }
  const MoeLayer& layer = checkpoint_->layers()[layer_position];
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
  if (layer.row->scales_inside()) {
    const std::uint64_t w13 = unpacked_bytes(shape.format, range->size(), shape.hidden);
    const std::uint64_t w2 =
        unpacked_bytes(shape.format, shape.hidden, covering(shape.format, *range).size());
    const std::uint64_t needed = (shape.gated() ? 2 : 1) * w13 + w2;
    if (scratch_.size() < needed) {
      auto buffer = tensor::Buffer::allocate(needed);
      if (!buffer) return buffer.why();
      scratch_ = std::move(*buffer);
    }
  }

  ExpertView view{.shape = shape};
  view.shape.intermediate = range->size();
  Cut cut{layer, expert, *range, scratch_.data(), slice_.tensor_parallel.rank == 0};
  for (const auto& [which, into] :
       {std::pair{Projection::gate, &view.gate}, std::pair{Projection::up, &view.up},
        std::pair{Projection::down, &view.down}}) {
    if (which == Projection::gate && !shape.gated()) continue;
    auto projection = read_projection(cut, which);
    if (!projection) return projection.why();
    *into = *projection;
  }
  return view;
}

void ExpertReader::release() {
  for (const auto& [tensor, part] : touched_) release_pages(checkpoint_->store(), *tensor, part);
  touched_.clear();
}

}  // namespace fp4moe::weights
