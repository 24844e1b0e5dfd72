#include "fp4moe/convert/layer_packer.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/convert/bias.hpp"
#include "fp4moe/layout/maps.hpp"

namespace fp4moe::convert {
namespace {

using layout::Element;
using layout::Extent;
using layout::IndexMap;
using layout::ScaleRule;
using tensor::DType;
using weights::Projection;

constexpr std::string_view kNames[] = {"w13", "w2", "w13_scale", "w2_scale", "w13_bias", "w2_bias"};
enum Slot : std::size_t { kW13, kW2, kW13Scale, kW2Scale, kW13Bias, kW2Bias };

Error size_error(std::string_view what, std::uint64_t found, std::uint64_t need) {
  return usage("layout.size", fmt::format("the {} does not fit the layout", what))
      .expects(fmt::format("a multiple of {}", need), fmt::format("{}", found))
      .try_this(fmt::format("pad it to {}", round_up(found, need)));
}

// Where all of k is one scale group the kernel permutes scales singly.
layout::Map scale_map(const layout::Layout& layout, std::uint64_t k) {
  const bool is_one_group = k == block_size(layout.format);
  return is_one_group && layout.scales.name == layout::marlin_scales().name
             ? layout::marlin_scales_single_exchanged()
             : layout.scales;
}

struct MatrixSizes {
  std::uint64_t rows = 0, k = 0, padded_k = 0;
};

Result<IndexMap> bind_codes(const layout::Map& map, const MatrixSizes& sizes) {
  const std::uint64_t per = map.element == Element::nibble ? 1 : 2;
  return IndexMap::bind(map, {sizes.rows, sizes.k / per}, {sizes.rows, sizes.padded_k / per});
}

Result<IndexMap> bind_scales(const layout::Layout& layout, const MatrixSizes& sizes) {
  const std::uint64_t block = block_size(layout.format);
  return IndexMap::bind(scale_map(layout, sizes.padded_k), {sizes.rows, sizes.k / block},
                        {sizes.rows, sizes.padded_k / block});
}

bool has_code(std::span<const std::byte> codes) {
  return std::ranges::any_of(codes, [](std::byte byte) { return byte != std::byte{0}; });
}

bool has_zero(std::span<const std::byte> scales) {
  return std::memchr(scales.data(), 0, scales.size()) != nullptr;
}
// Maybe, where rows lie apart.
bool has_zero(const weights::RowsView& rows) {
  return !rows.is_dense() || has_zero(std::span(rows.data, rows.rows * rows.row_bytes));
}

// A row's codes without those of blocks of scale 0; `count` counts such blocks that had any.
std::vector<std::byte> cleared_codes(const weights::ProjectionView& from, std::uint64_t i,
                                     std::uint64_t& count) {
  const std::span<const std::byte> codes = from.codes.row(i), scales = from.scales.row(i);
  std::vector<std::byte> made(codes.begin(), codes.end());
  for (std::size_t block = 0; block < scales.size(); ++block) {
    if (scales[block] != std::byte{0}) continue;
    const std::span<std::byte> part = std::span(made).subspan(block * 8, 8);
    if (has_code(part)) ++count;
    std::ranges::fill(part, std::byte{0});
  }
  return made;
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

Result<LayerPacker> LayerPacker::make(const layout::Layout& layout, const Problem& problem) {
  LayerPacker made(layout);
  made.problem_ = problem;
  Problem& p = made.problem_;
  if (p.global_experts == 0) p.global_experts = p.experts;
  p.padded.hidden = std::max(p.padded.hidden, p.real.hidden);
  p.padded.intermediate = std::max(p.padded.intermediate, p.real.intermediate);
  const std::uint64_t block = block_size(layout.format);
  for (const std::uint64_t size : {p.real.hidden, p.padded.hidden})
    if (size == 0 || size % block != 0) return size_error("hidden size", size, block);
  for (const std::uint64_t size : {p.real.intermediate, p.padded.intermediate})
    if (size == 0 || size % block != 0) return size_error("intermediate size", size, block);
  const bool gated = p.order != weights::RowOrder::single;
  const std::uint64_t rows13 = p.padded.intermediate * (gated ? 2 : 1);
  if (gated && layout.order.block > 1 && p.padded.intermediate % layout.order.block != 0)
    return size_error("intermediate size", p.padded.intermediate, layout.order.block);
  if (gated && rows13 % layout.gated_rows != 0)
    return size_error("intermediate size", p.padded.intermediate, layout.gated_rows / 2);
  if (layout.shuffles_rows)
    for (const std::uint64_t rows : {rows13, p.padded.hidden})
      if (rows % 32 != 0) return size_error("number of rows", rows, 32);
  if (p.params_type != DType::bf16 && p.params_type != DType::f16)
    return usage("layout.params", "parameters are of another type")
        .expects("bf16 or f16", tensor::name(p.params_type))
        .try_this("give bf16, which every kernel takes");
  if (p.params_type == DType::f16 && layout.id.starts_with("marlin") &&
      layout.format == layout::WeightFormat::mxfp4)
    return usage("layout.params", "Marlin's MXFP4 kernels take BF16 alone")
        .expects("bf16", "f16")
        .try_this("leave the type of parameters at bf16");

  const MatrixSizes w13{rows13, p.real.hidden, p.padded.hidden};
  const MatrixSizes w2{p.padded.hidden, p.real.intermediate, p.padded.intermediate};
  const auto bind = [](std::optional<IndexMap>& to, Result<IndexMap> bound,
                       std::string_view name) -> Result<Done> {
    if (!bound) return Error(bound.why()).at(name);
    to = *bound;
    return Done{};
  };
  for (Result<Done> bound : {bind(made.codes13_, bind_codes(layout.codes, w13), kNames[kW13]),
                             bind(made.codes2_, bind_codes(layout.codes, w2), kNames[kW2]),
                             bind(made.scales13_, bind_scales(layout, w13), kNames[kW13Scale]),
                             bind(made.scales2_, bind_scales(layout, w2), kNames[kW2Scale])})
    if (!bound) return bound.why();
  made.facts_.resize(p.experts);
  made.place_rows();
  if (Result<Done> added = made.add_tensors(); !added) return added.why();
  return made;
}

Result<Done> LayerPacker::add_tensors() {
  const auto matrix = [&](Slot slot, const IndexMap& map, DType type) {
    tensors_.push_back({.name = std::string(kNames[slot]),
                        .dtype = type,
                        .shape = layout::stored_shape(map, problem_.experts),
                        .kernel = layout::kernel_shape(map, problem_.experts),
                        .bytes = map.bytes() * problem_.experts,
                        .expert_bytes = map.bytes()});
  };
  const auto vector = [&](std::string_view name, DType type, const tensor::Shape& shape) {
    PackedTensor& made = tensors_.emplace_back(
        PackedTensor{.name = std::string(name), .dtype = type, .shape = shape});
    made.kernel = {.extents = shape, .strides = std::vector<std::uint64_t>(shape.size(), 1)};
    for (std::size_t i = shape.size(); i-- > 1;)
      made.kernel.strides[i - 1] = made.kernel.strides[i] * shape[i];
    made.bytes = tensor::byte_count(type, shape).value_or(0);
  };
  matrix(kW13, *codes13_, layout_.codes_type);
  matrix(kW2, *codes2_, layout_.codes_type);
  if (!layout_.one_record) {
    matrix(kW13Scale, *scales13_, layout_.scales_type);
    matrix(kW2Scale, *scales2_, layout_.scales_type);
  }
  if (problem_.has_bias) {
    const DType type = stored_bias(layout_.bias_type, problem_.bias_type);
    const std::uint64_t rows[] = {codes13_->logical().rows, codes2_->logical().rows};
    for (std::size_t i = 0; i < 2; ++i) {
      vector(kNames[kW13Bias + i], type, {problem_.experts, rows[i]});
      tensors_.back().expert_bytes =
          tensors_.back().bytes / std::max<std::uint64_t>(problem_.experts, 1);
      if (layout_.bias_order == layout::BiasOrder::marlin_single && rows[i] % 32 != 0)
        return size_error("number of rows", rows[i], 32).at(kNames[kW13Bias + i]);
    }
  }
  for (const ScalarTensor& scalar : scalar_tensors(scalar_problem(), problem_.experts))
    vector(scalar.name, scalar.dtype, scalar.shape);
  return Done{};
}

std::uint64_t LayerPacker::expert_bytes() const {
  std::uint64_t total = 0;
  for (const PackedTensor& tensor : tensors_) total += tensor.expert_bytes;
  return total;
}

bool LayerPacker::needs_all_experts() const {
  return convert::needs_all_experts(layout_.scale_rule);
}

Result<Done> LayerPacker::check(std::size_t position, const weights::ExpertView& view) const {
  if (position >= facts_.size())
    return usage("layout.position", "there is no such expert on this rank")
        .expects(fmt::format("below {}", facts_.size()), fmt::format("{}", position));
  const weights::MoeShape& shape = view.shape;
  if (shape.hidden != problem_.real.hidden || shape.intermediate != problem_.real.intermediate ||
      shape.format != layout_.format ||
      shape.gated() != (problem_.order != weights::RowOrder::single))
    return usage("layout.expert", "the expert is not what the layout was made for")
        .expects(fmt::format("{} {} x {}", name(layout_.format), problem_.real.intermediate,
                             problem_.real.hidden),
                 fmt::format("{} {} x {}", name(shape.format), shape.intermediate, shape.hidden));
  return Done{};
}

Result<Done> LayerPacker::note(std::size_t position, const weights::ExpertView& view) {
  if (Result<Done> fits = check(position, view); !fits) return fits;
  Facts& facts = facts_[position];
  facts.scalars = {view.gate.global_scale, view.up.global_scale, view.down.global_scale,
                   view.gate.input_scale,  view.up.input_scale,  view.down.input_scale};
  facts.is_noted = true;
  if (!needs_extremes(layout_.scale_rule)) return Done{};
  facts.w13 = extremes_of(layout_.format, view.up.scales);
  if (view.shape.gated()) facts.w13.add(extremes_of(layout_.format, view.gate.scales));
  facts.w2 = extremes_of(layout_.format, view.down.scales);
  return Done{};
}

void LayerPacker::set_all_input_scales(InputScales scales) { all_inputs_ = std::move(scales); }

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
  const ScaleRule rule = layout_.scale_rule;
  const Result<int> x13 = common_exponent(rule, w13, problem_.params_type);
  if (!x13) return Error(x13.why()).at(kNames[kW13Scale]);
  const Result<int> x2 = common_exponent(rule, w2, problem_.params_type);
  if (!x2) return Error(x2.why()).at(kNames[kW2Scale]);
  return Tables{scale_table(rule, *x13), scale_table(rule, *x2)};
}

void LayerPacker::place_rows() {
  const bool is_single = problem_.order == weights::RowOrder::single;
  const bool is_interleaved = problem_.order == weights::RowOrder::interleaved;
  for (unsigned which = 0; which < 3; ++which) {
    const bool is_placed = which == 2 || is_single;
    rows_[which].resize(which == 2 ? problem_.real.hidden : problem_.real.intermediate);
    for (std::uint64_t i = 0; i < rows_[which].size(); ++i) {
      const std::uint64_t row = is_placed ? i
                                          : layout::w13_row(layout_, problem_.real, problem_.padded,
                                                            is_interleaved, which, i);
      rows_[which][i] = layout_.shuffles_rows ? layout::shuffled_row(row) : row;
    }
  }
}

Result<Done> LayerPacker::pack(std::size_t position, const weights::ExpertView& view,
                               std::span<const std::span<std::byte>> targets, Path path) {
  if (Result<Done> fits = check(position, view); !fits) return fits;
  if (targets.size() != tensors_.size())
    return usage("layout.memory", "one span for each tensor is wanted")
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
    const weights::ProjectionView& from;
    const std::vector<std::uint64_t>& rows;
  };
  // One list of rows after the other, so that the allocator has enough kept memory for all.
  const auto lay_out = [&](std::initializer_list<Part> parts, Slot slot, const IndexMap& codes,
                           const IndexMap& scales) {
    const std::optional<ByteTable>& scale_bytes = slot == kW13 ? table->w13 : table->w2;
    const bool clears = layout_.scale_rule == ScaleRule::native_sm90_nvfp4;
    Matrix matrix;
    matrix.rows.resize(codes.padded().rows);
    for (const Part& part : parts) {
      for (std::uint64_t i = 0; i < part.rows.size(); ++i)
        matrix.rows[part.rows[i]] = part.from.codes.row(i).data();
      const bool looks = clears && has_zero(part.from.scales);
      for (std::uint64_t i = 0; looks && i < part.rows.size(); ++i)
        if (has_zero(part.from.scales.row(i))) {
          matrix.copies.push_back(cleared_codes(part.from, i, facts.zeroed_blocks));
          matrix.rows[part.rows[i]] = matrix.copies.back().data();
        }
    }
    pack_matrix(codes, {matrix.rows, layout_.clears_negative_zero ? &kNoNegativeZero : nullptr},
                targets[slot], path);
    matrix.rows.assign(scales.padded().rows, nullptr);
    for (const Part& part : parts)
      for (std::uint64_t i = 0; i < part.rows.size(); ++i)
        matrix.rows[part.rows[i]] = part.from.scales.row(i).data();
    pack_matrix(scales, {matrix.rows, scale_bytes ? &*scale_bytes : nullptr},
                targets[layout_.one_record ? slot : slot + kW13Scale], path);
  };
  const Part gate{view.gate, rows_[0]}, up{view.up, rows_[1]}, down{view.down, rows_[2]};
  if (view.shape.gated())
    lay_out({gate, up}, kW13, *codes13_, *scales13_);
  else
    lay_out({up}, kW13, *codes13_, *scales13_);
  lay_out({down}, kW2, *codes2_, *scales2_);

  if (!problem_.has_bias) return Done{};
  const std::size_t first = layout_.one_record ? 2 : 4;
  const BiasStore store13{targets[first], tensors_[first].dtype},
      store2{targets[first + 1], tensors_[first + 1].dtype};
  std::ranges::fill(store13.bytes, std::byte{0});
  std::ranges::fill(store2.bytes, std::byte{0});
  facts.bias_rounded = false;
  for (std::uint64_t i = 0; i < problem_.real.intermediate; ++i) {
    if (view.shape.gated() && !put_bias(view.gate.bias, i, store13, bias_place(0, i)))
      facts.bias_rounded = true;
    if (!put_bias(view.up.bias, i, store13, bias_place(1, i))) facts.bias_rounded = true;
  }
  for (std::uint64_t i = 0; i < problem_.real.hidden; ++i)
    if (!put_bias(view.down.bias, i, store2, bias_place(2, i))) facts.bias_rounded = true;
  return Done{};
}

// Where bias i of gate (0), up (1) or down (2) goes.
std::uint64_t LayerPacker::bias_place(unsigned which, std::uint64_t i) const {
  std::uint64_t row = rows_[which][i];
  if (which < 2 && layout_.bias_order == layout::BiasOrder::halves &&
      problem_.order != weights::RowOrder::single)
    row = which * problem_.padded.intermediate + i;
  return layout_.bias_order == layout::BiasOrder::marlin_single ? layout::marlin_single(row) : row;
}

ScalarProblem LayerPacker::scalar_problem() const {
  ScalarProblem made{.rule = layout_.scalars,
                     .scale_rule = layout_.scale_rule,
                     .gated = problem_.order != weights::RowOrder::single,
                     .params_type = problem_.params_type,
                     .all_inputs = all_inputs_ ? &*all_inputs_ : nullptr};
  ScaleExtremes all13, all2;
  for (const Facts& facts : facts_) {
    all13.add(facts.w13);
    all2.add(facts.w2);
    if (layout_.scale_rule != ScaleRule::native_sm90_mxfp4) continue;
    // pack() has refused what has no exponent.
    const auto offset = [&](const ScaleExtremes& extremes) {
      const Result<int> found = common_exponent(layout_.scale_rule, extremes, problem_.params_type);
      return found ? *found : 0;
    };
    made.w13_offsets.push_back(offset(facts.w13));
    made.w2_offsets.push_back(offset(facts.w2));
  }
  if (layout_.scalars != layout::ScalarRule::marlin) return made;
  const Result<int> x13 = common_exponent(layout_.scale_rule, all13, problem_.params_type);
  const Result<int> x2 = common_exponent(layout_.scale_rule, all2, problem_.params_type);
  made.w13_exponent = x13 ? *x13 : 0;
  made.w2_exponent = x2 ? *x2 : 0;
  return made;
}

Result<Done> LayerPacker::pack_scalars(std::span<const std::span<std::byte>> targets) const {
  std::vector<ExpertScalars> experts;
  for (const Facts& facts : facts_) {
    if (!facts.is_noted)
      return usage("layout.notes", "not every expert was packed")
          .expects(fmt::format("{} experts", facts_.size()), "fewer")
          .try_this("pack() or note() all of them first");
    experts.push_back(facts.scalars);
  }
  const Result<std::vector<ScalarTensor>> made = make_scalars(scalar_problem(), experts);
  if (!made) return made.why();
  const std::size_t first = tensors_.size() - made->size();
  for (std::size_t i = 0; i < made->size(); ++i) {
    const ScalarTensor& tensor = (*made)[i];
    if (targets[first + i].size() != tensors_[first + i].bytes)
      return usage("layout.memory", "the memory for a tensor has another size")
          .at(tensor.name)
          .expects(fmt::format("{} bytes", tensors_[first + i].bytes),
                   fmt::format("{}", targets[first + i].size()));
    const BiasStore store{targets[first + i], tensor.dtype};
    for (std::size_t e = 0; e < tensor.values.size(); ++e) put_float(tensor.values[e], store, e);
  }
  return Done{};
}

Result<Done> LayerPacker::unpack(std::size_t position,
                                 std::span<const std::span<const std::byte>> sources,
                                 const ExpertTarget& to, Path path) const {
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
    const Result<int> x = common_exponent(layout_.scale_rule, extremes, problem_.params_type);
    if (!x) return x.why();
    return inverse_scale_table(layout_.scale_rule, *x);
  };
  const Result<std::optional<ByteTable>> table13 = inverse(w13), table2 = inverse(w2);
  if (!table13) return table13.why();
  if (!table2) return table2.why();

  const auto row_at = [](const weights::RowsRoom& room, std::uint64_t i) {
    return room.data == nullptr ? nullptr : room.data + i * room.stride;
  };
  const auto take = [&](const IndexMap& map, const std::vector<std::byte*>& rows, std::size_t slot,
                        const std::optional<ByteTable>& table) {
    unpack_matrix(map, sources[slot], {rows, table ? &*table : nullptr}, path);
  };
  const bool gated = problem_.order != weights::RowOrder::single;
  std::vector<std::byte*> codes(codes13_->padded().rows), scales(scales13_->padded().rows);
  for (std::uint64_t i = 0; i < problem_.real.intermediate; ++i)
    for (unsigned which = gated ? 0 : 1; which < 2; ++which) {
      const weights::ProjectionRoom& room = which == 0 ? to.rooms.gate : to.rooms.up;
      codes[rows_[which][i]] = row_at(room.codes, i);
      scales[rows_[which][i]] = row_at(room.scales, i);
    }
  take(*codes13_, codes, kW13, std::nullopt);
  take(*scales13_, scales, layout_.one_record ? kW13 : kW13Scale, *table13);
  codes.assign(codes2_->padded().rows, nullptr);
  scales.assign(scales2_->padded().rows, nullptr);
  for (std::uint64_t i = 0; i < problem_.real.hidden; ++i) {
    const std::uint64_t row = rows_[2][i];
    codes[row] = row_at(to.rooms.down.codes, i);
    scales[row] = row_at(to.rooms.down.scales, i);
  }
  take(*codes2_, codes, kW2, std::nullopt);
  take(*scales2_, scales, layout_.one_record ? kW2 : kW2Scale, *table2);

  if (!problem_.has_bias) return Done{};
  const std::size_t first = layout_.one_record ? 2 : 4;
  const DType stored = tensors_[first].dtype, wanted = problem_.bias_type;
  for (std::uint64_t i = 0; i < problem_.real.intermediate && !to.bias13.empty(); ++i)
    for (unsigned which = gated ? 0 : 1; which < 2; ++which) {
      const std::uint64_t row = !gated ? i
                                : problem_.order == weights::RowOrder::interleaved
                                    ? 2 * i + which
                                    : which * problem_.real.intermediate + i;
      put_float(get_float(sources[first], stored, bias_place(which, i)), {to.bias13, wanted}, row);
    }
  for (std::uint64_t i = 0; i < problem_.real.hidden && !to.bias2.empty(); ++i)
    put_float(get_float(sources[first + 1], stored, bias_place(2, i)), {to.bias2, wanted}, i);
  return Done{};
}

Json LayerPacker::record() const {
  Json record = Json::object();
  const ScalarProblem problem = scalar_problem();
  if (layout_.scalars == layout::ScalarRule::marlin) {
    record["w13_exponent"] = problem.w13_exponent;
    record["w2_exponent"] = problem.w2_exponent;
  }
  Json& experts = record["experts"] = Json::array();
  const bool has_scalars = layout_.format == layout::WeightFormat::nvfp4;
  const auto bits = [](const std::optional<float>& value) -> Json {
    if (!value) return nullptr;
    return fmt::format("{:08x}", std::bit_cast<std::uint32_t>(*value));
  };
  for (const Facts& facts : facts_) {
    Json expert = Json::object();
    const ExpertScalars& s = facts.scalars;
    if (has_scalars) {
      expert["global"] = {bits(s.gate_global), bits(s.up_global), bits(s.down_global)};
      expert["input"] = {bits(s.gate_input), bits(s.up_input), bits(s.down_input)};
    }
    if (needs_extremes(layout_.scale_rule))
      expert["scales"] = {facts.w13.smallest, facts.w13.largest, facts.w2.smallest,
                          facts.w2.largest};
    if (facts.zeroed_blocks != 0) expert["zeroed_blocks"] = facts.zeroed_blocks;
    experts.push_back(std::move(expert));
  }
  return record;
}

Result<Done> LayerPacker::restore(const Json& record) {
  const Error broken = invalid("converted.manifest", "the record of a layer is damaged")
                           .expects(fmt::format("what packing noted of {} experts", facts_.size()),
                                    "fields that are missing or of another form")
                           .try_this("convert the checkpoint again");
  if (!record.is_object() || !record.contains("experts") || !record["experts"].is_array() ||
      record["experts"].size() != facts_.size())
    return broken;
  const auto float_of = [](const Json& value) -> std::optional<float> {
    if (!value.is_string() || value.get_ref<const std::string&>().size() != 8) return std::nullopt;
    std::uint32_t bits = 0;
    for (const char digit : value.get_ref<const std::string&>()) {
      const std::size_t at = std::string_view("0123456789abcdef").find(digit);
      if (at == std::string_view::npos) return std::nullopt;
      bits = bits << 4 | static_cast<std::uint32_t>(at);
    }
    return std::bit_cast<float>(bits);
  };
  const bool has_scalars = layout_.format == layout::WeightFormat::nvfp4;
  for (std::size_t e = 0; e < facts_.size(); ++e) {
    const Json& expert = record["experts"][e];
    const auto list = [&](const char* key, std::size_t size) {
      return expert.is_object() && expert.contains(key) && expert[key].is_array() &&
             expert[key].size() == size;
    };
    Facts& facts = facts_[e];
    if (has_scalars) {
      if (!list("global", 3) || !list("input", 3)) return broken;
      const std::optional<float> global[] = {float_of(expert["global"][0]),
                                             float_of(expert["global"][1]),
                                             float_of(expert["global"][2])};
      if (!global[0] || !global[1] || !global[2]) return broken;
      facts.scalars = {*global[0],
                       *global[1],
                       *global[2],
                       float_of(expert["input"][0]),
                       float_of(expert["input"][1]),
                       float_of(expert["input"][2])};
    }
    if (needs_extremes(layout_.scale_rule)) {
      if (!list("scales", 4)) return broken;
      std::array<std::uint8_t, 4> read{};
      for (std::size_t i = 0; i < 4; ++i) {
        const Json& byte = expert["scales"][i];
        if (!byte.is_number_unsigned() || byte.get<std::uint64_t>() > 255) return broken;
        read[i] = byte.get<std::uint8_t>();
      }
      facts.w13 = {.largest = read[1], .smallest = read[0]};
      facts.w2 = {.largest = read[3], .smallest = read[2]};
    }
    facts.is_noted = true;
  }
  return Done{};
}

std::vector<std::string> LayerPacker::losses() const {
  std::vector<std::string> found;
  std::uint64_t zeroed = 0, rounded = 0, negative = 0;
  for (const Facts& facts : facts_) {
    zeroed += facts.zeroed_blocks;
    rounded += facts.bias_rounded ? 1 : 0;
    negative += facts.w13.has_negative || facts.w2.has_negative ? 1 : 0;
  }
  if (layout_.clears_negative_zero)
    found.emplace_back("the sign of FP4 zeros is cleared and cannot be restored");
  if (zeroed != 0)
    found.push_back(
        fmt::format("{} blocks with scale 0 had codes, which are written as 0", zeroed));
  if (rounded != 0)
    found.push_back(fmt::format("biases of {} experts are rounded to the layout's type", rounded));
  const bool is_marlin = layout_.scalars == layout::ScalarRule::marlin;
  if (is_marlin && negative != 0)
    found.push_back(fmt::format("negative block scales of {} experts lose their sign", negative));
  if (is_marlin && layout_.scale_rule == ScaleRule::marlin_2026_04 &&
      any_scale_becomes(0, &ScaleExtremes::smallest))
    found.emplace_back("block scales too small for the kernel are written as 0");
  if (is_marlin && layout_.scale_rule == ScaleRule::marlin_2026_03 &&
      any_scale_becomes(0xF8, &ScaleExtremes::largest))
    found.emplace_back("block scales too large for the common exponent are written as infinity");
  return found;
}

std::vector<std::string> LayerPacker::warnings() const {
  const bool keeps_both = layout_.scalars == layout::ScalarRule::none ||
                          layout_.scalars == layout::ScalarRule::global_scales ||
                          layout_.scalars == layout::ScalarRule::native_sm90_offsets;
  if (keeps_both || problem_.order == weights::RowOrder::single) return {};
  const auto differ = std::ranges::count_if(facts_, [](const Facts& facts) {
    return facts.scalars.gate_global != facts.scalars.up_global;
  });
  if (differ == 0) return {};
  return {fmt::format(
      "gate and up of {} experts have different global scales; the kernel uses the gate's for both",
      differ)};
}

// An extreme positive scale of an expert is written as `byte`.
bool LayerPacker::any_scale_becomes(std::uint8_t byte, std::uint8_t ScaleExtremes::*extreme) const {
  const ScalarProblem problem = scalar_problem();
  const auto becomes = [&](const ScaleExtremes& extremes, int exponent) {
    const std::optional<ByteTable> table = scale_table(layout_.scale_rule, exponent);
    const std::uint8_t code = extremes.*extreme;
    return code > 0 && code < 0x80 && (*table)[code] == byte;
  };
  return std::ranges::any_of(facts_, [&](const Facts& facts) {
    return becomes(facts.w13, problem.w13_exponent) || becomes(facts.w2, problem.w2_exponent);
  });
}

}  // namespace fp4moe::convert
