#include "fp4moe/moe/cpu/stored.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/checkpoint/copy_expert.hpp"

namespace fp4moe::moe::cpu {
namespace {

using checkpoint::ExpertView;
using checkpoint::MoeShape;
using checkpoint::ProjectionView;
using checkpoint::RowOrder;
using checkpoint::RowsView;
using formats::WeightFormat;
using kernels::cpu::GemmRows;
using kernels::cpu::kChunk;
using kernels::cpu::TileForm;

constexpr std::size_t kTileColumns = 32;
constexpr std::size_t kNowhere = ~std::size_t{0};

bool is_number(WeightFormat format, std::uint8_t scale) {
  return format == WeightFormat::mxfp4 ? scale != 255 : (scale & 0x7F) != 0x7F;
}

// The first scale that is not a number, or kNowhere.
std::size_t first_bad(WeightFormat format, std::span<const std::byte> scales) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(scales.data());
  if (format == WeightFormat::mxfp4) {
    const void* found = scales.empty() ? nullptr : std::memchr(bytes, 255, scales.size());
    return found == nullptr
               ? kNowhere
               : static_cast<std::size_t>(static_cast<const std::uint8_t*>(found) - bytes);
  }
  bool any = false;
  for (std::size_t i = 0; i < scales.size(); ++i) any |= (bytes[i] & 0x7F) == 0x7F;
  if (!any) return kNowhere;
  const auto* found = std::find_if(bytes, bytes + scales.size(),
                                   [&](std::uint8_t byte) { return !is_number(format, byte); });
  return static_cast<std::size_t>(found - bytes);
}

struct BadScale {
  std::size_t expert = 0;
  std::string_view matrix{};
  std::uint64_t row = 0, block = 0;
};
Error bad_scale(WeightFormat format, const BadScale& where) {
  const bool mxfp4 = format == WeightFormat::mxfp4;
  return invalid("experts.scales", "a block scale is not a number")
      .at(fmt::format("expert {}, {} row {}, block {}", where.expert, where.matrix, where.row,
                      where.block))
      .expects(mxfp4 ? "an E8M0 byte below 255" : "an E4M3 byte other than 0x7F and 0xFF", "NaN")
      .try_this("see `fp4moe lint`");
}

Result<Done> check_globals(const CpuExpert& expert, std::size_t position) {
  for (const float value : {expert.gate_global, expert.up_global, expert.down_global})
    if (!std::isfinite(value))
      return invalid("experts.scales", "a global scale is not a number")
          .at(fmt::format("expert {}", position))
          .expects("a finite number", fmt::format("{}", value))
          .try_this("see `fp4moe lint`");
  return Done{};
}

Error wrong_tensor(std::string_view name, std::string_view expected, std::string_view found) {
  return invalid("experts.layout", "a packed tensor does not fit the experts")
      .at(name)
      .expects(expected, found);
}

const ExpertSource::PackedTensor* find(const ExpertSource& source, std::string_view name) {
  const auto found = std::ranges::find(source.packed, name, &ExpertSource::PackedTensor::name);
  return found == source.packed.end() ? nullptr : &*found;
}

// A matrix of all experts: [experts, groups, blocks, ...] with its scales.
struct PackedMatrix {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  std::size_t groups = 0, blocks = 0, scale_columns = 0;
};
struct MatrixRequest {
  std::string_view codes{}, scales{};  // names
  std::uint64_t rows = 0, columns = 0, block = 32;
};
Result<PackedMatrix> find_matrix(const ExpertSource& source, const TileForm& tiles,
                                 const MatrixRequest& request) {
  const auto* codes = find(source, request.codes);
  const auto* scales = find(source, request.scales);
  const std::uint64_t experts = source.shape.experts;
  if (codes == nullptr || scales == nullptr)
    return wrong_tensor(codes == nullptr ? request.codes : request.scales, "codes and scales",
                        "none");
  const auto fits = [&](const ExpertSource::PackedTensor& tensor, std::uint64_t last) {
    return tensor.shape.size() == 4 && tensor.shape[0] == experts && tensor.shape[3] == last &&
           tensor::element_count(tensor.shape) == tensor.bytes.size();
  };
  const std::uint64_t scales_each = kTileColumns / request.block;  // of a row in a tile
  if (!fits(*codes, tiles.group * 16))
    return wrong_tensor(request.codes,
                        fmt::format("[{}, groups, blocks, {}]", experts, tiles.group * 16),
                        tensor::text(codes->shape));
  const std::uint64_t groups = codes->shape[1], blocks = codes->shape[2];
  const bool holds =
      groups * tiles.group >= request.rows && blocks * kTileColumns >= request.columns;
  if (!holds || !fits(*scales, tiles.group * scales_each) || scales->shape[1] != groups ||
      scales->shape[2] != blocks)
    return wrong_tensor(request.scales,
                        fmt::format("tiles of at least {} x {}", request.rows, request.columns),
                        fmt::format("codes {}, scales {}", tensor::text(codes->shape),
                                    tensor::text(scales->shape)));
  return PackedMatrix{.codes = reinterpret_cast<const std::uint8_t*>(codes->bytes.data()),
                      .scales = reinterpret_cast<const std::uint8_t*>(scales->bytes.data()),
                      .groups = groups,
                      .blocks = blocks,
                      .scale_columns = blocks * scales_each};
}

CpuMatrix matrix_of(const PackedMatrix& all, const TileForm& tiles, std::size_t expert) {
  const std::size_t codes = all.groups * all.blocks * tiles.group * 16;
  const std::size_t scales = all.groups * all.scale_columns * tiles.group;
  return {.tiles = {.codes = all.codes + expert * codes,
                    .scales = all.scales + expert * scales,
                    .blocks = all.blocks,
                    .scale_columns = all.scale_columns},
          .padded_rows = all.groups * tiles.group};
}

// Rows of w13 are interleaved if there is a gate.
Result<Done> check_packed_scales(const MoeShape& shape, const TileForm& tiles,
                                 const CpuExpert& expert, std::size_t position) {
  const auto look = [&](const CpuMatrix& matrix, bool is_w13) -> Result<Done> {
    const std::size_t bytes = matrix.padded_rows * matrix.tiles.scale_columns;
    const std::size_t at =
        first_bad(shape.format, std::as_bytes(std::span(matrix.tiles.scales, bytes)));
    if (at == kNowhere) return Done{};
    const std::size_t whole = matrix.tiles.scale_columns * tiles.group, rest = at % whole;
    const std::size_t row = at / whole * tiles.group + rest % tiles.group;
    const bool is_interleaved = is_w13 && shape.gated();
    return bad_scale(shape.format, {.expert = position,
                                    .matrix = !is_w13                          ? "down"
                                              : is_interleaved && row % 2 == 0 ? "gate"
                                                                               : "up",
                                    .row = is_interleaved ? row / 2 : row,
                                    .block = rest / tiles.group});
  };
  if (const auto fine = look(expert.w13, true); !fine) return fine.why();
  return look(expert.w2, false);
}

Result<Done> check_view_scales(const ExpertView& view, std::size_t position) {
  const auto look = [&](const ProjectionView& from, std::string_view matrix) -> Result<Done> {
    for (std::uint64_t row = 0; row < from.scales.rows; ++row) {
      const std::size_t at = first_bad(view.shape.format, from.scales.row(row));
      if (at != kNowhere)
        return bad_scale(view.shape.format,
                         {.expert = position, .matrix = matrix, .row = row, .block = at});
    }
    return Done{};
  };
  if (const auto fine = look(view.gate, "gate"); !fine) return fine.why();
  if (const auto fine = look(view.up, "up"); !fine) return fine.why();
  return look(view.down, "down");
}

// Rows that the kernels can cut: gate and up with equal strides.
GemmRows rows_of(const ProjectionView& even, const ProjectionView* odd, std::uint64_t columns,
                 std::uint64_t block) {
  const auto bytes = [](const RowsView& rows) {
    return reinterpret_cast<const std::uint8_t*>(rows.data);
  };
  return {.codes = bytes(even.codes),
          .scales = bytes(even.scales),
          .odd_codes = odd == nullptr ? nullptr : bytes(odd->codes),
          .odd_scales = odd == nullptr ? nullptr : bytes(odd->scales),
          .code_stride = even.codes.stride,
          .scale_stride = even.scales.stride,
          .rows = even.codes.rows * (odd == nullptr ? 1 : 2),
          .columns = columns,
          .block = block};
}

bool has_equal_strides(const ExpertView& view) {
  return !view.shape.gated() || (view.gate.codes.stride == view.up.codes.stride &&
                                 view.gate.scales.stride == view.up.scales.stride);
}

Result<Done> check_view(const ExpertView& view, const MoeShape& shape, std::size_t position) {
  const std::uint64_t block = checkpoint::block_size(shape.format);
  const auto fits = [&](const ProjectionView& from, std::uint64_t rows, std::uint64_t columns) {
    return from.codes.rows == rows && from.scales.rows == rows &&
           from.codes.row_bytes == columns / 2 && from.scales.row_bytes == columns / block;
  };
  const bool gated = shape.gated();
  if ((gated && !fits(view.gate, shape.intermediate, shape.hidden)) ||
      !fits(view.up, shape.intermediate, shape.hidden) ||
      !fits(view.down, shape.hidden, shape.intermediate) || !has_equal_strides(view))
    return invalid("experts.layout", "an expert does not fit the shape of the layer")
        .at(fmt::format("expert {}", position))
        .expects(fmt::format("matrices of {} x {}", shape.intermediate, shape.hidden),
                 fmt::format("{} rows of {} bytes", view.up.codes.rows, view.up.codes.row_bytes));
  return Done{};
}

}  // namespace

void CpuWeights::set_sizes(std::size_t hidden_blocks, std::size_t middle_blocks,
                           std::uint64_t block) {
  hidden_chunks_ = ceil_div(hidden_blocks, kChunk / kTileColumns);
  middle_chunks_ = ceil_div(middle_blocks, kChunk / kTileColumns);
  max_blocks_ = std::max(hidden_blocks, middle_blocks);
  max_scales_ = max_blocks_ * kTileColumns / block;
}

// Allocates biases of whole chunks and sets each expert's addresses.
Result<Done> CpuWeights::make_biases(const ExpertSource& source) {
  if (!source.shape.has_bias) return Done{};
  const std::size_t middle = middle_chunks_ * kChunk, hidden = hidden_chunks_ * kChunk;
  const std::size_t each = 2 * middle + hidden;
  biases_.assign(experts_.size() * each, 0.0f);
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    const float* at = biases_.data() + e * each;
    if (source.shape.gated()) experts_[e].gate_bias = at;
    experts_[e].up_bias = at + middle;
    experts_[e].down_bias = at + 2 * middle;
  }
  return Done{};
}

Result<Done> CpuWeights::read_packed(const ExpertSource& source, const TileForm& tiles,
                                     ThreadPool& pool) {
  const MoeShape& shape = source.shape;
  const std::uint64_t block = checkpoint::block_size(shape.format);
  const auto w13 =
      find_matrix(source, tiles, {"w13", "w13_scale", shape.w13_rows(), shape.hidden, block});
  if (!w13) return w13.why();
  const auto w2 =
      find_matrix(source, tiles, {"w2", "w2_scale", shape.hidden, shape.intermediate, block});
  if (!w2) return w2.why();
  set_sizes(w13->blocks, w2->blocks, block);
  if (const auto result = make_biases(source); !result) return result.why();

  // A small tensor as numbers, `count` or more of each expert.
  const auto floats = [&](std::string_view name,
                          std::size_t count) -> Result<std::span<const float>> {
    const auto* found = find(source, name);
    const std::size_t bytes = found == nullptr ? 0 : found->bytes.size();
    if (bytes % (sizeof(float) * shape.experts) != 0 ||
        bytes < count * shape.experts * sizeof(float))
      return wrong_tensor(name, fmt::format("{} numbers of each expert", count),
                          fmt::format("{} bytes", bytes));
    return std::span(reinterpret_cast<const float*>(found->bytes.data()), bytes / sizeof(float));
  };
  const std::size_t projections = shape.gated() ? 2 : 1;
  std::span<const float> bias13, bias2, global13, global2;
  const auto take = [&](std::span<const float>& to, std::string_view name,
                        std::size_t count) -> Result<Done> {
    const auto found = floats(name, count);
    if (!found) return found.why();
    to = *found;
    return Done{};
  };
  if (shape.has_bias)
    for (const auto& done :
         {take(bias13, "w13_bias", shape.w13_rows()), take(bias2, "w2_bias", shape.hidden)})
      if (!done) return done.why();
  if (shape.format == WeightFormat::nvfp4)
    for (const auto& done :
         {take(global13, "w13_scale_2", projections), take(global2, "w2_scale_2", 1)})
      if (!done) return done.why();

  std::vector<std::optional<Error>> failures(shape.experts);
  pool.run(shape.experts, [&](std::size_t e) {
    CpuExpert& expert = experts_[e];
    expert.w13 = matrix_of(*w13, tiles, e);
    expert.w2 = matrix_of(*w2, tiles, e);
    if (!global13.empty()) {
      expert.gate_global = global13[e * projections];
      expert.up_global = source.shares_global ? global13[e * projections]
                                              : global13[e * projections + projections - 1];
      expert.down_global = global2[e];
    }
    if (shape.has_bias) {
      auto* to = biases_.data() + e * (2 * middle_chunks_ + hidden_chunks_) * kChunk;
      const auto rows13 = bias13.subspan(e * (bias13.size() / shape.experts));
      const auto rows2 = bias2.subspan(e * (bias2.size() / shape.experts));
      for (std::size_t i = 0; i < shape.intermediate; ++i) {
        if (projections == 2) to[i] = rows13[2 * i];
        to[middle_chunks_ * kChunk + i] = rows13[i * projections + projections - 1];
      }
      std::copy_n(rows2.begin(), shape.hidden, to + 2 * middle_chunks_ * kChunk);
    }
    auto fine = check_globals(expert, e);
    if (fine) fine = check_packed_scales(shape, tiles, expert, e);
    if (!fine) failures[e] = fine.why();
  });
  for (const auto& failure : failures)
    if (failure) return *failure;
  return Done{};
}

// Tiles of an expert in memory of our own, columns as the checkpoint has them.
Result<Done> CpuWeights::cut(const TileForm& tiles, std::size_t position) {
  CpuExpert& expert = experts_[position];
  const auto buffer = [](const GemmRows& rows) {
    const std::uint64_t padded = round_up(rows.rows, kRowPadding);
    return std::pair(padded * ceil_div(rows.columns, kTileColumns) * 16,
                     padded * (rows.columns / rows.block));
  };
  const auto [codes13, scales13] = buffer(expert.w13.rows);
  const auto [codes2, scales2] = buffer(expert.w2.rows);
  Result<tensor::Buffer> memory = tensor::Buffer::allocate(codes13 + codes2 + scales13 + scales2);
  if (!memory) return memory.why();
  auto* codes = reinterpret_cast<std::uint8_t*>(memory->data());
  std::uint8_t* scales = codes + codes13 + codes2;
  const auto fill = [&](CpuMatrix& matrix, std::uint8_t* to, std::uint8_t* to_scales) {
    cut_tiles(tiles, matrix.rows, 0, matrix.padded_rows, to, to_scales);
    matrix.tiles.codes = to;
    matrix.tiles.scales = to_scales;
    matrix.rows = {};
  };
  fill(expert.w13, codes, scales);
  fill(expert.w2, codes + codes13, scales + scales13);
  memory_[position] = std::move(*memory);
  return Done{};
}

Result<Done> CpuWeights::read_views(const ExpertSource& source, const TileForm& tiles,
                                    ThreadPool& pool) {
  const MoeShape& shape = source.shape;
  const std::uint64_t block = checkpoint::block_size(shape.format);
  set_sizes(ceil_div(shape.hidden, kTileColumns), ceil_div(shape.intermediate, kTileColumns),
            block);
  is_zipped_ = true;
  if (const auto result = make_biases(source); !result) return result.why();
  memory_.resize(is_mapped_ ? 0 : shape.experts);

  const auto take = [&](std::size_t e, const ExpertView& view) -> Result<Done> {
    if (const auto fine = check_view(view, shape, e); !fine) return fine.why();
    if (const auto fine = check_view_scales(view, e); !fine) return fine.why();
    CpuExpert& expert = experts_[e];
    const auto matrix = [&](const GemmRows& rows) {
      return CpuMatrix{.tiles = {.blocks = ceil_div(rows.columns, kTileColumns),
                                 .scale_columns = rows.columns / block},
                       .rows = rows,
                       .padded_rows = round_up(rows.rows, kRowPadding)};
    };
    expert.w13 = matrix(shape.gated() ? rows_of(view.gate, &view.up, shape.hidden, block)
                                      : rows_of(view.up, nullptr, shape.hidden, block));
    expert.w2 = matrix(rows_of(view.down, nullptr, shape.intermediate, block));
    expert.up_global = view.up.global_scale;
    expert.gate_global = shape.gated() ? view.gate.global_scale : view.up.global_scale;
    expert.down_global = view.down.global_scale;
    if (const auto fine = check_globals(expert, e); !fine) return fine.why();
    if (shape.has_bias) {
      std::vector<float> bias13(shape.w13_rows()), bias2(shape.hidden);
      const RowOrder order = shape.gated() ? RowOrder::halves : RowOrder::single;
      const auto copied = copy_expert(view, order, {.w13_bias = bias13, .w2_bias = bias2});
      if (!copied) return copied.why();
      auto* to = biases_.data() + e * (2 * middle_chunks_ + hidden_chunks_) * kChunk;
      if (shape.gated()) std::copy_n(bias13.begin(), shape.intermediate, to);
      std::copy_n(bias13.end() - static_cast<std::ptrdiff_t>(shape.intermediate),
                  shape.intermediate, to + middle_chunks_ * kChunk);
      std::ranges::copy(bias2, to + 2 * middle_chunks_ * kChunk);
    }
    return is_mapped_ ? Result<Done>(Done{}) : cut(tiles, e);
  };
  std::vector<std::optional<Error>> failures(shape.experts);
  pool.run(shape.experts, [&](std::size_t e) {
    const auto done =
        source.visit(e, [&](const ExpertView& view) -> Result<Done> { return take(e, view); });
    if (!done) failures[e] = done.why();
  });
  for (const auto& failure : failures)
    if (failure) return *failure;
  return Done{};
}

Result<CpuWeights> CpuWeights::make(const ExpertSource& source, const TileForm& tiles,
                                    WeightsHome home, ThreadPool& pool) {
  CpuWeights result;
  result.experts_.resize(source.shape.experts);
  const bool is_packed =
      source.layout.starts_with("cpu_native.") && source.generation == tiles.generation;
  result.is_mapped_ = home == WeightsHome::mapped && source.views_stay;
  if (source.shape.experts == 0) return result;  // a rank without experts
  const auto done = is_packed && !result.is_mapped_ ? result.read_packed(source, tiles, pool)
                                                    : result.read_views(source, tiles, pool);
  if (!done) return done.why();
  return result;
}

}  // namespace fp4moe::moe::cpu
