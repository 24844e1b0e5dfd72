// Packs and unpacks one expert's matrices and biases.
#include <algorithm>
#include <cstring>
#include <deque>
#include <initializer_list>

#include <fmt/format.h>

#include "fp4moe/convert/pack/bias.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/convert/pack/layer_packer_tensors.hpp"

namespace fp4moe::convert {

using layout::IndexMap;
using tensor::DType;

namespace {

bool has_code(std::span<const std::byte> codes) {
  return std::ranges::any_of(codes, [](std::byte byte) { return byte != std::byte{0}; });
}

bool has_zero(std::span<const std::byte> scales) {
  return std::memchr(scales.data(), 0, scales.size()) != nullptr;
}
// Possibly, if rows are not contiguous.
bool has_zero(const checkpoint::RowsView& rows) {
  return !rows.is_dense() || has_zero(std::span(rows.data, rows.rows * rows.row_bytes));
}

// A row's codes without those of blocks of scale 0; `count` counts such blocks that had any.
std::vector<std::byte> cleared_codes(const checkpoint::ProjectionView& from, std::uint64_t i,
                                     std::uint64_t& count) {
  const std::span<const std::byte> codes = from.codes.row(i), scales = from.scales.row(i);
  std::vector<std::byte> result(codes.begin(), codes.end());
  for (std::size_t block = 0; block < scales.size(); ++block) {
    if (scales[block] != std::byte{0}) continue;
    const std::span<std::byte> part = std::span(result).subspan(block * 8, 8);
    if (has_code(part)) ++count;
    std::ranges::fill(part, std::byte{0});
  }
  return result;
}

// Row i of a view becomes row stored[i] of a matrix.
void scatter_rows(const checkpoint::RowsView& view, std::span<const std::uint64_t> stored,
                  std::span<const std::byte*> rows) {
  const std::byte* at = view.data;
  for (const std::uint64_t row : stored) {
    rows[row] = at;
    at += view.stride;
  }
}

constexpr ByteTable kNoNegativeZero = [] {
  ByteTable table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    const unsigned low = (byte & 15) == 8 ? 0 : byte & 15, high = (byte >> 4) == 8 ? 0 : byte >> 4;
    table[byte] = static_cast<std::uint8_t>(high << 4 | low);
  }
  return table;
}();

}  // namespace

// The rows of one matrix in the order its map sees them; null where there is padding.
struct LayerPacker::Matrix {
  std::vector<const std::byte*> rows{};
  std::deque<std::vector<std::byte>> copies{};  // rows that had to be changed
};

struct LayerPacker::Tables {
  std::optional<ByteTable> w13{}, w2{};
};

// Exponents of this expert's scales, or of the layer's.
Result<LayerPacker::Tables> LayerPacker::tables(std::size_t position) const {
  ScaleExtremes w13, w2;
  const bool all = needs_all_experts();
  for (std::size_t i = all ? 0 : position; i < (all ? facts_.size() : position + 1); ++i) {
    if (all && !facts_[i].is_noted)
      return usage("layout.notes", "the scales of all experts must be known first")
          .expects(fmt::format("{} experts", facts_.size()), fmt::format("none of expert {}", i));
    w13.add(facts_[i].w13);
    w2.add(facts_[i].w2);
  }
  const ScaleTransform* transform = layout_.scale_transform;
  const Result<int> x13 = exponent_of(transform, w13, problem_.params_type);
  if (!x13) return Error(x13.why()).at(kTensorNames[kW13Scale]);
  const Result<int> x2 = exponent_of(transform, w2, problem_.params_type);
  if (!x2) return Error(x2.why()).at(kTensorNames[kW2Scale]);
  return Tables{scale_table(transform, *x13), scale_table(transform, *x2)};
}

Result<Done> LayerPacker::pack(std::size_t position, const checkpoint::ExpertView& view,
                               std::span<const std::span<std::byte>> targets, PackPath path) {
  if (Result<Done> fits = check(position, view); !fits) return fits;
  if (targets.size() != tensors_.size())
    return usage("layout.memory", "wrong number of spans")
        .expects(fmt::format("{} spans", tensors_.size()), fmt::format("{}", targets.size()))
        .try_this("ask tensors() for their number and sizes");
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    if (targets[t].size() != tensors_[t].expert_bytes)
      return usage("layout.memory", "the memory for an expert has another size")
          .at(tensors_[t].name)
          .expects(fmt::format("{} bytes", tensors_[t].expert_bytes),
                   fmt::format("{}", targets[t].size()));
  if (!needs_all_experts() || !facts_[position].is_noted)
    if (Result<Done> noted = note(position, view); !noted) return noted;
  const Result<Tables> table = tables(position);
  if (!table) return table.why();

  Facts& facts = facts_[position];
  facts.zeroed_blocks = 0;
  struct Part {
    const checkpoint::ProjectionView& from;
    const std::vector<std::uint64_t>& rows;
  };
  // One list of rows after the other, so that the allocator has enough kept memory for all.
  const auto lay_out = [&](std::initializer_list<Part> parts, std::size_t index,
                           const IndexMap& codes, const IndexMap& scales) {
    const std::optional<ByteTable>& scale_bytes = index == kW13 ? table->w13 : table->w2;
    const bool clears =
        layout_.scale_transform != nullptr && layout_.scale_transform->has_cleared_zero_blocks;
    Matrix matrix;
    matrix.rows.resize(codes.padded().rows);
    for (const Part& part : parts) {
      scatter_rows(part.from.codes, part.rows, matrix.rows);
      const bool looks = clears && has_zero(part.from.scales);
      for (std::uint64_t i = 0; looks && i < part.rows.size(); ++i)
        if (has_zero(part.from.scales.row(i))) {
          matrix.copies.push_back(cleared_codes(part.from, i, facts.zeroed_blocks));
          matrix.rows[part.rows[i]] = matrix.copies.back().data();
        }
    }
    pack_matrix(codes, {matrix.rows, layout_.has_no_negative_zero ? &kNoNegativeZero : nullptr},
                targets[index], path);
    matrix.rows.assign(scales.padded().rows, nullptr);
    for (const Part& part : parts) scatter_rows(part.from.scales, part.rows, matrix.rows);
    pack_matrix(scales, {matrix.rows, scale_bytes ? &*scale_bytes : nullptr},
                targets[layout_.one_record ? index : index + kW13Scale], path);
  };
  const Part gate{view.gate, rows_[0]}, up{view.up, rows_[1]}, down{view.down, rows_[2]};
  if (view.shape.gated())
    lay_out({gate, up}, kW13, *codes13_, *scales13_);
  else
    lay_out({up}, kW13, *codes13_, *scales13_);
  lay_out({down}, kW2, *codes2_, *scales2_);

  if (problem_.has_bias) facts.bias_rounded = !pack_biases(view, targets);
  return Done{};
}

// True if every bias kept its value.
bool LayerPacker::pack_biases(const checkpoint::ExpertView& view,
                              std::span<const std::span<std::byte>> targets) const {
  const std::size_t first = layout_.one_record ? 2 : 4;
  const BiasStore store13{targets[first], tensors_[first].dtype},
      store2{targets[first + 1], tensors_[first + 1].dtype};
  std::ranges::fill(store13.bytes, std::byte{0});
  std::ranges::fill(store2.bytes, std::byte{0});
  bool are_exact = true;
  for (std::uint64_t i = 0; i < problem_.real.intermediate; ++i) {
    if (view.shape.gated() && !put_bias(view.gate.bias, i, store13, bias_row(0, i)))
      are_exact = false;
    if (!put_bias(view.up.bias, i, store13, bias_row(1, i))) are_exact = false;
  }
  for (std::uint64_t i = 0; i < problem_.real.hidden; ++i)
    if (!put_bias(view.down.bias, i, store2, bias_row(2, i))) are_exact = false;
  return are_exact;
}

// The row of bias i of gate (0), up (1) or down (2).
std::uint64_t LayerPacker::bias_row(unsigned which, std::uint64_t i) const {
  std::uint64_t row = rows_[which][i];
  if (which < 2 && layout_.bias_order == layout::BiasOrder::halves &&
      problem_.order != checkpoint::RowOrder::single)
    row = which * problem_.padded.intermediate + i;
  return layout_.bias_transform == nullptr ? row : layout_.bias_transform->row_of(row);
}

Result<Done> LayerPacker::unpack(std::size_t position,
                                 std::span<const std::span<const std::byte>> sources,
                                 const ExpertTarget& to, PackPath path) const {
  if (position >= facts_.size() || sources.size() != tensors_.size())
    return usage("layout.position", "there is no such expert, or not one span for each tensor")
        .expects(fmt::format("an expert below {} and {} spans", facts_.size(), tensors_.size()),
                 fmt::format("expert {} and {} spans", position, sources.size()));
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    if (sources[t].size() != tensors_[t].expert_bytes)
      return usage("layout.memory", "the memory of an expert has another size")
          .at(tensors_[t].name)
          .expects(fmt::format("{} bytes", tensors_[t].expert_bytes),
                   fmt::format("{}", sources[t].size()));
  const Facts& facts = facts_[position];
  ScaleExtremes w13 = facts.w13, w2 = facts.w2;
  if (needs_all_experts())
    for (const Facts& other : facts_) {
      w13.add(other.w13);
      w2.add(other.w2);
    }
  const auto inverse = [&](const ScaleExtremes& extremes) -> Result<std::optional<ByteTable>> {
    const Result<int> x = exponent_of(layout_.scale_transform, extremes, problem_.params_type);
    if (!x) return x.why();
    return inverse_scale_table(layout_.scale_transform, *x);
  };
  const Result<std::optional<ByteTable>> table13 = inverse(w13), table2 = inverse(w2);
  if (!table13) return table13.why();
  if (!table2) return table2.why();

  const auto row_at = [](const checkpoint::RowsBuffer& buffers, std::uint64_t i) {
    return buffers.data == nullptr ? nullptr : buffers.data + i * buffers.stride;
  };
  const auto take = [&](const IndexMap& map, const std::vector<std::byte*>& rows, std::size_t index,
                        const std::optional<ByteTable>& table) {
    unpack_matrix(map, sources[index], {rows, table ? &*table : nullptr}, path);
  };
  const bool gated = problem_.order != checkpoint::RowOrder::single;
  std::vector<std::byte*> codes(codes13_->padded().rows), scales(scales13_->padded().rows);
  for (std::uint64_t i = 0; i < problem_.real.intermediate; ++i)
    for (unsigned which = gated ? 0 : 1; which < 2; ++which) {
      const checkpoint::ProjectionBuffers& buffers = which == 0 ? to.buffers.gate : to.buffers.up;
      codes[rows_[which][i]] = row_at(buffers.codes, i);
      scales[rows_[which][i]] = row_at(buffers.scales, i);
    }
  take(*codes13_, codes, kW13, std::nullopt);
  take(*scales13_, scales, layout_.one_record ? kW13 : kW13Scale, *table13);
  codes.assign(codes2_->padded().rows, nullptr);
  scales.assign(scales2_->padded().rows, nullptr);
  for (std::uint64_t i = 0; i < problem_.real.hidden; ++i) {
    const std::uint64_t row = rows_[2][i];
    codes[row] = row_at(to.buffers.down.codes, i);
    scales[row] = row_at(to.buffers.down.scales, i);
  }
  take(*codes2_, codes, kW2, std::nullopt);
  take(*scales2_, scales, layout_.one_record ? kW2 : kW2Scale, *table2);

  if (problem_.has_bias) unpack_biases(sources, to);
  return Done{};
}

void LayerPacker::unpack_biases(std::span<const std::span<const std::byte>> sources,
                                const ExpertTarget& to) const {
  const bool gated = problem_.order != checkpoint::RowOrder::single;
  const std::size_t first = layout_.one_record ? 2 : 4;
  const DType stored = tensors_[first].dtype, wanted = problem_.bias_type;
  for (std::uint64_t i = 0; i < problem_.real.intermediate && !to.bias13.empty(); ++i)
    for (unsigned which = gated ? 0 : 1; which < 2; ++which) {
      const std::uint64_t row = !gated ? i
                                : problem_.order == checkpoint::RowOrder::interleaved
                                    ? 2 * i + which
                                    : which * problem_.real.intermediate + i;
      put_float(get_float(sources[first], stored, bias_row(which, i)), {to.bias13, wanted}, row);
    }
  for (std::uint64_t i = 0; i < problem_.real.hidden && !to.bias2.empty(); ++i)
    put_float(get_float(sources[first + 1], stored, bias_row(2, i)), {to.bias2, wanted}, i);
}

}  // namespace fp4moe::convert
