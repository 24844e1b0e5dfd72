#include "fp4moe/moe/cuda/device_weights.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/checkpoint/copy_expert.hpp"
#include "fp4moe/checkpoint/scale_extremes.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"
#include "fp4moe/formats/sm90_scale.hpp"
#include "fp4moe/kernels/cuda/sm90/pack/params.hpp"
#include "fp4moe/kernels/cuda/sm90/row_scales/params.hpp"

namespace fp4moe::moe::cuda {
namespace {

using checkpoint::ExpertView;
using checkpoint::MoeShape;
using checkpoint::ProjectionView;
using checkpoint::RowsView;
using checkpoint::WeightFormat;

constexpr std::uint64_t kGateRows = 8;  // w13 alternates eight gate rows and eight up rows

Error unusable_scale(std::string_view what, std::string_view where, std::string_view expected) {
  return invalid("experts.scales", fmt::format("invalid {}", what))
      .at(where)
      .expects(expected, "NaN or infinity")
      .try_this("see `fp4moe lint`");
}

Error unfit(std::string_view name, std::string_view expected, std::string_view found) {
  return invalid("experts.layout", "the shape of the weights differs")
      .at(name)
      .expects(expected, found);
}

const ExpertSource::PackedTensor* find_tensor(const ExpertSource& source, std::string_view name) {
  const auto found = std::ranges::find(source.packed, name, &ExpertSource::PackedTensor::name);
  return found == source.packed.end() ? nullptr : &*found;
}

// The layouts of both families have the same bytes.
bool is_layout_of_ours(std::string_view layout, WeightFormat format) {
  return layout == fmt::format("native_sm90.{}", formats::name(format)) ||
         layout == fmt::format("native_sm80.{}", formats::name(format));
}

// True if a tensor of weight tiles has the K blocks of the matrix, and at most its M blocks.
bool has_k_blocks(const ExpertSource::PackedTensor* tensor, const sm90::WeightMatrix& matrix,
                  std::uint64_t experts, std::uint64_t tile_bytes) {
  return tensor != nullptr && tensor->shape.size() == 4 && tensor->shape[0] == experts &&
         tensor->shape[1] <= matrix.m_blocks && tensor->shape[2] == matrix.k_blocks &&
         tensor->shape[3] == tile_bytes &&
         tensor->bytes.size() == tensor::element_count(tensor->shape);
}

bool is_packed(const ExpertSource& source, const sm90::LayerParams& layer) {
  if (!is_layout_of_ours(source.layout, source.shape.format) ||
      source.generation != formats::kSm90Generation)
    return false;
  const std::uint64_t tile_bytes = sm90::weight_tile_bytes(layer.is_nvfp4 != 0);
  return has_k_blocks(find_tensor(source, "w13"), layer.w13, layer.experts, tile_bytes) &&
         has_k_blocks(find_tensor(source, "w2"), layer.w2, layer.experts, tile_bytes);
}

// A tensor of at least `count` floats for each expert.
Result<std::span<const float>> floats_of(const ExpertSource& source, std::string_view name,
                                         std::uint64_t count) {
  const auto* found = find_tensor(source, name);
  const std::size_t bytes = found == nullptr ? 0 : found->bytes.size();
  const std::uint64_t experts = source.shape.experts;
  if (bytes % (experts * sizeof(float)) != 0 || bytes < count * experts * sizeof(float))
    return unfit(name, fmt::format("{} floats for each expert", count),
                 fmt::format("{} bytes", bytes));
  return std::span(reinterpret_cast<const float*>(found->bytes.data()), bytes / sizeof(float));
}

// Weight tiles without the scale byte that stands for the NaN of E4M3.
Result<Done> check_tiles(const ExpertSource::PackedTensor& from) {
  const std::size_t tile_bytes = from.shape[3];
  for (std::size_t at = 0; at < from.bytes.size(); at += tile_bytes) {
    const auto scales =
        from.bytes.subspan(at + sm90::kTileCodeBytes, tile_bytes - sm90::kTileCodeBytes);
    const std::size_t bad = checkpoint::find_scale(
        scales, [](std::uint8_t scale) { return scale == formats::kSm90Nvfp4Nan; });
    if (bad != checkpoint::kNoScale)
      return unusable_scale("block scale", fmt::format("{}, record {}", from.name, at / tile_bytes),
                            "an E4M3 byte other than 0x7F and 0xFF");
  }
  return Done{};
}

Result<Done> check_view(const ExpertView& view, const MoeShape& shape, std::size_t position) {
  const std::uint64_t block = checkpoint::block_size(shape.format);
  const auto fits = [&](const ProjectionView& from, std::uint64_t rows, std::uint64_t columns) {
    return from.codes.rows == rows && from.scales.rows == rows &&
           from.codes.row_bytes == columns / 2 && from.scales.row_bytes == columns / block;
  };
  if ((shape.gated() && !fits(view.gate, shape.intermediate, shape.hidden)) ||
      !fits(view.up, shape.intermediate, shape.hidden) ||
      !fits(view.down, shape.hidden, shape.intermediate))
    return unfit(fmt::format("expert {}", position),
                 fmt::format("matrices of {} x {}", shape.intermediate, shape.hidden),
                 fmt::format("{} rows of {} bytes", view.up.codes.rows, view.up.codes.row_bytes));
  const std::pair<std::string_view, const ProjectionView*> parts[] = {
      {"gate", &view.gate}, {"up", &view.up}, {"down", &view.down}};
  for (const auto& [name, part] : parts) {
    if (!std::isfinite(part->global_scale))
      return unusable_scale("global scale", fmt::format("expert {}, {}", position, name),
                            "a finite number");
    for (std::uint64_t row = 0; row < part->scales.rows; ++row) {
      const std::size_t bad = checkpoint::find_nan_scale(shape.format, part->scales.row(row));
      if (bad != checkpoint::kNoScale)
        return unusable_scale(
            "block scale", fmt::format("expert {}, {} row {}, block {}", position, name, row, bad),
            shape.format == WeightFormat::mxfp4 ? "an E8M0 byte below 255"
                                                : "an E4M3 byte other than 0x7F and 0xFF");
    }
  }
  return Done{};
}

// Biases in the order of rows: eight gates, then their eight ups.
void arrange_bias13(std::span<const float> halves, const MoeShape& shape, std::span<float> to) {
  if (!shape.gated()) {
    std::ranges::copy(halves, to.begin());
    return;
  }
  for (std::uint64_t which = 0; which < 2; ++which)
    for (std::uint64_t i = 0; i < shape.intermediate; ++i)
      to[i / kGateRows * 2 * kGateRows + which * kGateRows + i % kGateRows] =
          halves[which * shape.intermediate + i];
}

Result<Done> check_factors(std::span<const float> factors, std::string_view name) {
  for (const float factor : factors)
    if (!std::isfinite(factor))
      return invalid("scale.global", "a scale overflows on the device")
          .at(name)
          .expects("a finite number", fmt::format("{}", factor));
  return Done{};
}

}  // namespace

Result<DeviceWeights> DeviceWeights::make(std::shared_ptr<const kernels::cuda::Device> device,
                                          const ExpertSource& source, sm90::LayerParams& layer) {
  DeviceWeights result;
  result.device_ = std::move(device);
  if (layer.experts == 0) return result;  // a rank without experts
  for (const auto& [memory, matrix] :
       {std::pair{&result.w13_, &layer.w13}, std::pair{&result.w2_, &layer.w2}}) {
    Result<kernels::cuda::Memory> found =
        result.device_->allocate(layer.experts * matrix->expert_bytes);
    if (!found) return found.why();
    *memory = std::move(*found);
    matrix->tiles = memory->as<const std::uint8_t>();
  }
  Result<Staging> staging = Staging::make(result.device_);
  if (!staging) return staging.why();
  result.staging_ = std::make_unique<Staging>(std::move(*staging));
  Scalars scalars;
  const std::size_t projections = layer.is_gated != 0 ? 2 : 1;
  scalars.factor13.resize(layer.experts * projections);
  scalars.factor2.resize(layer.experts);
  scalars.down_global.resize(layer.experts);
  if (source.shape.has_bias) {
    scalars.bias13.resize(std::size_t{layer.experts} * layer.w13.m_blocks * sm90::kBlockM);
    scalars.bias2.resize(std::size_t{layer.experts} * layer.w2.m_blocks * sm90::kBlockM);
  }
  const auto filled = is_packed(source, layer) ? result.copy_packed(source, layer, scalars)
                                               : result.pack_views(source, layer, scalars);
  if (!filled) return filled.why();
  if (const auto placed = result.upload_scalars(scalars, layer); !placed) return placed.why();
  if (const auto found = result.find_row_scales(layer); !found) return found.why();
  result.staging_.reset();
  result.rows_ = {};
  return result;
}

// M blocks beyond those of the tensor become zeros: codes of 0.
Result<Done> DeviceWeights::copy_tiles(const ExpertSource::PackedTensor& from,
                                       const sm90::WeightMatrix& matrix, std::byte* to) {
  const std::uint64_t experts = from.shape[0];
  if (from.shape[1] == matrix.m_blocks) return staging_->put(to, from.bytes);
  const std::uint64_t bytes = from.bytes.size() / experts;
  for (std::uint64_t e = 0; e < experts; ++e) {
    std::byte* expert = to + e * matrix.expert_bytes;
    const auto cleared =
        device_->clear(expert + bytes, 0, matrix.expert_bytes - bytes, staging_->stream());
    if (!cleared) return cleared.why();
    if (const auto sent = staging_->put(expert, from.bytes.subspan(e * bytes, bytes)); !sent)
      return sent.why();
  }
  return Done{};
}

Result<Done> DeviceWeights::copy_packed(const ExpertSource& source, const sm90::LayerParams& layer,
                                        Scalars& scalars) {
  const MoeShape& shape = source.shape;
  const std::size_t projections = shape.gated() ? 2 : 1;
  const auto factor13 = floats_of(source, "w13_factor", projections);
  if (!factor13) return factor13.why();
  const auto factor2 = floats_of(source, "w2_factor", 1);
  if (!factor2) return factor2.why();
  std::copy_n(factor13->begin(), scalars.factor13.size(), scalars.factor13.begin());
  std::copy_n(factor2->begin(), scalars.factor2.size(), scalars.factor2.begin());
  const bool is_nvfp4 = shape.format == WeightFormat::nvfp4;
  for (std::size_t e = 0; e < shape.experts; ++e) {
    if (source.shares_global && projections == 2)
      scalars.factor13[2 * e + 1] = scalars.factor13[2 * e];
    scalars.down_global[e] = is_nvfp4 ? scalars.factor2[e] / formats::kSm90Nvfp4Factor : 1.0f;
    for (const float factor : {scalars.factor13[projections * e], scalars.factor2[e]})
      if (!is_nvfp4 && factor == std::ldexp(1.0f, formats::kSm90NanOffset))
        return unusable_scale("block scale", fmt::format("expert {}", e), "E8M0 bytes below 255");
  }
  if (shape.has_bias) {
    const auto bias13 = floats_of(source, "w13_bias", shape.w13_rows());
    if (!bias13) return bias13.why();
    const auto bias2 = floats_of(source, "w2_bias", shape.hidden);
    if (!bias2) return bias2.why();
    const auto spread = [&](std::span<const float> from, std::span<float> to) {
      const std::size_t each = from.size() / shape.experts, padded = to.size() / shape.experts;
      for (std::size_t e = 0; e < shape.experts; ++e)
        std::ranges::copy(from.subspan(e * each, std::min(each, padded)),
                          to.subspan(e * padded).begin());
    };
    spread(*bias13, scalars.bias13);
    spread(*bias2, scalars.bias2);
  }
  const auto* w13 = find_tensor(source, "w13");
  const auto* w2 = find_tensor(source, "w2");
  if (is_nvfp4)
    for (const auto* tensor : {w13, w2})
      if (const auto fine = check_tiles(*tensor); !fine) return fine.why();
  if (const auto sent = copy_tiles(*w13, layer.w13, w13_.data()); !sent) return sent.why();
  return copy_tiles(*w2, layer.w2, w2_.data());
}

// One matrix of one expert: its rows are uploaded, and the device packs them.
struct DeviceWeights::Packing {
  const ProjectionView& first;
  const ProjectionView* second = nullptr;  // the up rows, where there is a gate
  WeightFormat format{};
  int offset = 0;
  std::byte* tiles = nullptr;
  const sm90::WeightMatrix& matrix;
};

Result<Done> DeviceWeights::pack_matrix(const Packing& packing) {
  const RowsView& codes = packing.first.codes;
  const RowsView& scales = packing.first.scales;
  if (codes.rows == 0 || codes.row_bytes == 0)  // a rank whose share is empty: all padding
    return device_->clear(packing.tiles, 0, packing.matrix.expert_bytes, staging_->stream());
  std::byte* next = rows_.data();
  const auto put = [&](const RowsView& rows) -> Result<const std::uint8_t*> {
    std::byte* at = next;
    next += round_up(rows.rows * rows.row_bytes, kMemoryAlignment);
    if (const auto sent = staging_->put(at, rows); !sent) return sent.why();
    return reinterpret_cast<const std::uint8_t*>(at);
  };
  sm90::PackParams params{.code_stride = codes.row_bytes,
                          .scale_stride = scales.row_bytes,
                          .rows = static_cast<std::uint32_t>(codes.rows),
                          .columns = static_cast<std::uint32_t>(codes.row_bytes * 2),
                          .is_nvfp4 = packing.format == WeightFormat::nvfp4 ? 1U : 0U,
                          .offset = packing.offset,
                          .tiles = reinterpret_cast<std::uint8_t*>(packing.tiles),
                          .m_blocks = packing.matrix.m_blocks};
  const std::pair<const std::uint8_t**, const RowsView*> parts[] = {
      {&params.codes, &codes},
      {&params.scales, &scales},
      {&params.second_codes, packing.second == nullptr ? nullptr : &packing.second->codes},
      {&params.second_scales, packing.second == nullptr ? nullptr : &packing.second->scales}};
  for (const auto& [to, rows] : parts) {
    if (rows == nullptr) continue;
    const auto at = put(*rows);
    if (!at) return at.why();
    *to = *at;
  }
  if (const auto done = staging_->finish(); !done) return done.why();
  const std::uint64_t tiles =
      std::uint64_t{params.m_blocks} * ceil_div(params.columns, sm90::kBlockK);
  const auto launched =
      device_->launch({.function = pack_,
                       .blocks = sm90::pack_blocks(
                           tiles, static_cast<std::uint32_t>(device_->facts().multiprocessors)),
                       .threads = sm90::kPackThreads,
                       .has_pdl = true,
                       .params = &params},
                      staging_->stream());
  if (!launched) return launched.why();
  return device_->wait(staging_->stream());
}

Result<Done> DeviceWeights::pack_expert(const ExpertView& view, const sm90::LayerParams& layer,
                                        std::size_t position, Scalars& scalars) {
  const MoeShape& shape = view.shape;
  const bool is_nvfp4 = shape.format == WeightFormat::nvfp4, gated = shape.gated();
  checkpoint::ScaleExtremes first = extremes_of(shape.format, view.up.scales);
  if (gated) first.add(extremes_of(shape.format, view.gate.scales));
  const checkpoint::ScaleExtremes second = extremes_of(shape.format, view.down.scales);
  int offsets[2] = {0, 0};
  float factors[2] = {formats::kSm90Nvfp4Factor, formats::kSm90Nvfp4Factor};
  for (std::size_t i = 0; i < 2; ++i) {
    const checkpoint::ScaleExtremes& extremes = i == 0 ? first : second;
    if (is_nvfp4) {
      if (const auto fine = formats::check_sm90_sign(extremes.has_negative); !fine)
        return Error(fine.why()).at(fmt::format("expert {}", position));
      continue;
    }
    const Result<int> offset = formats::sm90_offset(extremes.smallest, extremes.largest);
    if (!offset) return Error(offset.why()).at(fmt::format("expert {}", position));
    offsets[i] = *offset;
    factors[i] = std::ldexp(1.0f, *offset);
  }
  const std::size_t projections = gated ? 2 : 1;
  if (gated) scalars.factor13[projections * position] = factors[0] * view.gate.global_scale;
  scalars.factor13[projections * position + projections - 1] = factors[0] * view.up.global_scale;
  scalars.factor2[position] = factors[1] * view.down.global_scale;
  scalars.down_global[position] = view.down.global_scale;
  if (shape.has_bias) {
    std::vector<float> halves(shape.w13_rows());
    const std::size_t padded13 = std::size_t{layer.w13.m_blocks} * sm90::kBlockM;
    const std::size_t padded2 = std::size_t{layer.w2.m_blocks} * sm90::kBlockM;
    const auto order = gated ? checkpoint::RowOrder::halves : checkpoint::RowOrder::single;
    const auto copied = copy_expert(
        view, order,
        {.w13_bias = halves,
         .w2_bias = std::span(scalars.bias2).subspan(position * padded2, shape.hidden)});
    if (!copied) return copied.why();
    arrange_bias13(halves, shape, std::span(scalars.bias13).subspan(position * padded13, padded13));
  }
  const auto packed = pack_matrix({.first = gated ? view.gate : view.up,
                                   .second = gated ? &view.up : nullptr,
                                   .format = shape.format,
                                   .offset = offsets[0],
                                   .tiles = w13_.data() + position * layer.w13.expert_bytes,
                                   .matrix = layer.w13});
  if (!packed) return packed.why();
  return pack_matrix({.first = view.down,
                      .format = shape.format,
                      .offset = offsets[1],
                      .tiles = w2_.data() + position * layer.w2.expert_bytes,
                      .matrix = layer.w2});
}

Result<Done> DeviceWeights::pack_views(const ExpertSource& source, const sm90::LayerParams& layer,
                                       Scalars& scalars) {
  const Result<kernels::cuda::Function> pack =
      device_->function(fmt::format("fp4moe_{}_pack", kernels::cuda::name(device_->family())));
  if (!pack) return pack.why();
  pack_ = *pack;
  const MoeShape& shape = source.shape;
  const std::uint64_t block = checkpoint::block_size(shape.format);
  const auto bytes_of = [&](std::uint64_t rows, std::uint64_t columns) {
    return round_up(rows * columns / 2, kMemoryAlignment) +
           round_up(rows * columns / block, kMemoryAlignment);
  };
  Result<kernels::cuda::Memory> rows = device_->allocate(
      std::max((shape.gated() ? 2 : 1) * bytes_of(shape.intermediate, shape.hidden),
               bytes_of(shape.hidden, shape.intermediate)));
  if (!rows) return rows.why();
  rows_ = std::move(*rows);
  for (std::size_t e = 0; e < shape.experts; ++e) {
    const auto done = source.visit(e, [&](const ExpertView& view) -> Result<Done> {
      if (const auto fine = check_view(view, shape, e); !fine) return fine.why();
      return pack_expert(view, layer, e, scalars);
    });
    if (!done) return done.why();
  }
  return Done{};
}

// Uploads factors and biases into one allocation.
Result<Done> DeviceWeights::upload_scalars(const Scalars& scalars, sm90::LayerParams& layer) {
  for (const auto& [name, factors] :
       {std::pair{"w13_factor", &scalars.factor13}, std::pair{"w2_factor", &scalars.factor2}})
    if (const auto fine = check_factors(*factors, name); !fine) return fine.why();
  const std::pair<const float**, const std::vector<float>*> parts[] = {
      {&layer.w13.factor, &scalars.factor13},
      {&layer.w2.factor, &scalars.factor2},
      {&layer.w13.bias, &scalars.bias13},
      {&layer.w2.bias, &scalars.bias2},
      {&layer.down_global, &scalars.down_global}};
  std::size_t bytes = 0;
  for (const auto& part : parts)
    bytes += round_up(part.second->size() * sizeof(float), kMemoryAlignment);
  Result<kernels::cuda::Memory> memory = device_->allocate(bytes);
  if (!memory) return memory.why();
  scalars_ = std::move(*memory);
  std::byte* next = scalars_.data();
  for (const auto& [to, from] : parts) {
    *to = from->empty() ? nullptr : reinterpret_cast<const float*>(next);
    if (const auto sent = staging_->put(next, std::as_bytes(std::span(*from))); !sent)
      return sent.why();
    next += round_up(from->size() * sizeof(float), kMemoryAlignment);
  }
  return staging_->finish();
}

// The largest block scale of every row of weights, for the GEMM on FP8 tensor cores, which takes gated
// MXFP4 layers.
Result<Done> DeviceWeights::find_row_scales(sm90::LayerParams& layer) {
  if (layer.is_gated == 0 || layer.is_nvfp4 != 0 ||
      device_->family() != kernels::cuda::Family::sm90)
    return Done{};
  const Result<kernels::cuda::Function> function = device_->function("fp4moe_sm90_row_scales");
  if (!function) return function.why();
  const auto rows = [&](const sm90::WeightMatrix& matrix) {
    return std::uint64_t{layer.experts} * matrix.m_blocks * sm90::kBlockM;
  };
  const std::uint64_t w13_rows = round_up(rows(layer.w13), kMemoryAlignment);
  const std::uint64_t w2_rows = round_up(rows(layer.w2), kMemoryAlignment);
  Result<kernels::cuda::Memory> memory =
      device_->allocate(w13_rows + w2_rows + sizeof(std::uint32_t));
  if (!memory) return memory.why();
  row_scales_ = std::move(*memory);
  auto* const first = row_scales_.as<std::uint8_t>();
  auto* const wide = reinterpret_cast<std::uint32_t*>(first + w13_rows + w2_rows);
  if (const auto cleared =
          device_->clear(reinterpret_cast<std::byte*>(wide), 0, sizeof(*wide), staging_->stream());
      !cleared)
    return cleared.why();
  const std::pair<const sm90::WeightMatrix*, std::uint8_t*> parts[] = {
      {&layer.w13, first}, {&layer.w2, first + w13_rows}};
  for (const auto& [matrix, to] : parts) {
    const sm90::RowScalesParams params{
        .tiles = matrix->tiles, .k_blocks = matrix->k_blocks, .largest = to, .wide_rows = wide};
    const auto launched = device_->launch({.function = *function,
                                           .blocks = layer.experts * matrix->m_blocks,
                                           .threads = sm90::kRowScalesThreads,
                                           .params = &params},
                                          staging_->stream());
    if (!launched) return launched.why();
  }
  std::uint32_t found = 0;
  const auto fetched =
      device_->download(std::as_writable_bytes(std::span(&found, 1)),
                        reinterpret_cast<const std::byte*>(wide), staging_->stream());
  if (!fetched) return fetched.why();
  if (const auto done = device_->wait(staging_->stream()); !done) return done.why();
  wide_rows_ = found;
  if (found != 0) return Done{};
  layer.w13.row_scales = first;
  layer.w2.row_scales = first + w13_rows;
  return Done{};
}

}  // namespace fp4moe::moe::cuda
