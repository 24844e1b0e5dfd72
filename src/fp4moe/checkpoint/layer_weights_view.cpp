#include "fp4moe/checkpoint/layer_weights_view.hpp"

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/checkpoint/scale_scan.hpp"

namespace fp4moe::checkpoint {
namespace {

constexpr std::string_view kPartNames[] = {"gate", "up", "w2"};

// The position of a part's rows among the rows of the given matrix.
struct PartPlace {
  std::string_view name{};  // of the matrix, human-readable
  std::uint64_t rows = 0;   // of the matrix
  std::uint64_t k = 0;      // elements of a row
  std::uint64_t first = 0, step = 1, count = 0;
};

std::string_view word_of(Projection which) { return kPartNames[static_cast<std::size_t>(which)]; }

bool is_given(const MatrixWeights& matrix) {
  return !matrix.codes.bytes.empty() || !matrix.scales.bytes.empty() ||
         !matrix.bias.bytes.empty() || !matrix.global_scales.empty() ||
         !matrix.input_scales.empty();
}

std::string part_name(std::string_view matrix, std::string_view part) {
  return fmt::format("{} {}", matrix, part);
}

Result<Done> check_blocks(std::string_view name, std::uint64_t size, std::uint64_t block) {
  if (size != 0 && size % block == 0) return Done{};
  return usage("weights.shape", fmt::format("the {} is not whole blocks", name))
      .expects(fmt::format("a multiple of {}", block), fmt::format("{}", size));
}

Result<Done> check_shape(const MoeShape& shape) {
  if (shape.experts == 0)
    return usage("weights.shape", "the layer has no experts").expects("at least 1", "0");
  const std::uint64_t block = block_size(shape.format);
  if (const auto fine = check_blocks("hidden size", shape.hidden, block); !fine) return fine;
  if (const auto fine = check_blocks("intermediate size", shape.intermediate, block); !fine)
    return fine;
  // The largest matrix, element by element: every smaller product fits, too.
  const std::array<std::uint64_t, 4> factors{2, shape.experts, shape.hidden, shape.intermediate};
  if (checked_product(factors)) return Done{};
  return usage("weights.shape", "the layer has too many weights")
      .expects(
          "sizes whose product fits into 64 bits",
          fmt::format("{} experts of {} x {}", shape.experts, shape.hidden, shape.intermediate));
}

// Bytes from the first of a stack to behind its last; none when that overflows.
std::optional<std::uint64_t> extent(std::uint64_t experts, std::uint64_t expert_stride,
                                    std::uint64_t rows, std::uint64_t row_stride,
                                    std::uint64_t row_bytes) {
  const auto before = checked_multiply(experts - 1, expert_stride);
  const auto above = checked_multiply(rows - 1, row_stride);
  if (!before || !above) return std::nullopt;
  const auto sum = checked_add(*before, *above);
  return sum ? checked_add(*sum, row_bytes) : std::nullopt;
}

}  // namespace

struct LayerWeightsView::Maker {
  const LayerWeights& given;
  LayerWeightsView result{};

  Result<Done> check_given() const {
    const bool gated = given.shape.gated(), joined = is_given(given.w13);
    if (joined && (is_given(given.gate) || is_given(given.up)))
      return usage("weights.given", "w13 is given together with its parts")
          .expects("w13, or gate and up", "both");
    if (!gated && is_given(given.gate))
      return usage("weights.given", "a gate is given for a layer that has none")
          .expects("row order interleaved or halves", name(given.shape.order));
    return Done{};
  }

  Result<Rows> rows(const StackedRows& from, const PartPlace& place, std::uint64_t row_bytes,
                    std::string_view what) const {
    if (from.bytes.empty() || from.bytes.data() == nullptr)
      return usage("weights.missing", "weights are not given")
          .at(part_name(place.name, what))
          .expects(fmt::format("[{}, {}, {}] bytes", given.shape.experts, place.rows, row_bytes),
                   "none");
    const std::uint64_t row_stride = from.row_stride == 0 ? row_bytes : from.row_stride;
    const auto dense = checked_multiply(place.rows, row_stride);
    if (row_stride < row_bytes || (from.expert_stride != 0 && from.expert_stride < row_bytes) ||
        !dense)
      return usage("weights.stride", "rows overlap")
          .at(part_name(place.name, what))
          .expects(fmt::format("strides of {} bytes and more", row_bytes),
                   fmt::format("{} from row to row, {} from expert to expert", from.row_stride,
                               from.expert_stride));
    const std::uint64_t expert_stride = from.expert_stride == 0 ? *dense : from.expert_stride;
    const auto needed =
        extent(given.shape.experts, expert_stride, place.rows, row_stride, row_bytes);
    const bool exact = from.row_stride == 0 && from.expert_stride == 0;
    if (!needed || from.bytes.size() < *needed || (exact && from.bytes.size() != *needed))
      return usage("weights.size", "the memory has another size")
          .at(part_name(place.name, what))
          .expects(needed ? fmt::format("{}{} bytes", exact ? "" : "at least ", *needed)
                          : "strides whose sum fits into 64 bits",
                   fmt::format("{} bytes", from.bytes.size()));
    return Rows{{from.bytes.data() + place.first * row_stride, place.count, row_bytes,
                 place.step * row_stride},
                expert_stride};
  }

  // `number`: which of two for each expert is this part's.
  Result<Numbers> numbers(std::span<const float> from, const PartPlace& place, unsigned number,
                          std::string_view what) const {
    const std::uint64_t experts = given.shape.experts;
    const bool joined = place.count != place.rows;
    if (from.size() == experts) return Numbers{from, 0, 1};
    if (from.size() == 1) return Numbers{from, 0, 0};
    if (joined && from.size() == 2 * experts) return Numbers{from, number, 2};
    return usage("weights.size", "another number of scales is given")
        .at(part_name(place.name, what))
        .expects(joined ? fmt::format("1, {} or {}", experts, 2 * experts)
                        : fmt::format("1 or {}", experts),
                 fmt::format("{}", from.size()));
  }

  Result<Done> bias(const StackedBias& from, const PartPlace& place, Part& part) {
    using tensor::DType;
    if (from.dtype != DType::bf16 && from.dtype != DType::f16 && from.dtype != DType::f32)
      return usage("weights.bias", "the bias has another type")
          .at(part_name(place.name, "bias"))
          .expects("BF16, F16 or F32", tensor::name(from.dtype));
    if (result.shape_.has_bias && result.bias_type_ != from.dtype)
      return usage("weights.bias", "the biases of a layer have several types")
          .at(part_name(place.name, "bias"))
          .expects(tensor::name(result.bias_type_), tensor::name(from.dtype));
    const std::uint64_t size = tensor::row(from.dtype).block_bytes;
    const auto row = rows({from.bytes, from.expert_stride}, {place.name, 1, 0, 0, 1, 1},
                          place.rows * size, "bias");
    if (!row) return row.why();
    part.bias = {row->of_first.data + place.first * size, place.count, place.step * size,
                 from.dtype};
    part.bias_stride = row->expert_stride;
    result.bias_type_ = from.dtype;
    result.shape_.has_bias = true;
    return Done{};
  }

  Result<Done> global_scales(const MatrixWeights& from, const PartPlace& place, unsigned number,
                             Part& part) const {
    const bool wanted = given.shape.format == WeightFormat::nvfp4;
    if (!wanted && !from.global_scales.empty())
      return usage("weights.given", "MXFP4 has no global scales")
          .at(part_name(place.name, "global scales"))
          .expects("none", fmt::format("{}", from.global_scales.size()));
    if (!wanted) return Done{};
    if (from.global_scales.empty())
      return usage("weights.missing", "NVFP4 needs global scales")
          .at(part_name(place.name, "global scales"))
          .expects(fmt::format("1 or {}", given.shape.experts), "none");
    auto scales = numbers(from.global_scales, place, number, "global scales");
    if (!scales) return scales.why();
    part.globals = *scales;
    return Done{};
  }

  Result<Done> add(Projection which, const MatrixWeights& from, const PartPlace& place) {
    Part& part = result.parts_[static_cast<std::size_t>(which)];
    auto codes = rows(from.codes, place, place.k / 2, "codes");
    if (!codes) return codes.why();
    auto scales = rows(from.scales, place, place.k / block_size(given.shape.format), "scales");
    if (!scales) return scales.why();
    part.codes = *codes;
    part.scales = *scales;
    const unsigned number = which == Projection::up ? 1 : 0;
    if (const auto fine = global_scales(from, place, number, part); !fine) return fine;
    if (!from.input_scales.empty()) {
      auto inputs = numbers(from.input_scales, place, number, "input scales");
      if (!inputs) return inputs.why();
      part.inputs = *inputs;
      result.shape_.has_input_scale = true;
    }
    return from.bias.bytes.empty() ? Result<Done>(Done{}) : bias(from.bias, place, part);
  }

  Result<Done> add_all() {
    const MoeShape& shape = given.shape;
    const std::uint64_t rows = shape.intermediate, k = shape.hidden;
    result.shape_ = shape;
    result.shape_.has_bias = result.shape_.has_input_scale = false;
    // w13 without a gate is up; neither is missed as w13.
    const bool joined = shape.gated() && !is_given(given.gate) && !is_given(given.up);
    if (joined) {
      const bool is_interleaved = shape.order == RowOrder::interleaved;
      PartPlace place{"w13", 2 * rows, k, 0, is_interleaved ? 2u : 1u, rows};
      if (const auto fine = add(Projection::gate, given.w13, place); !fine) return fine;
      place.first = is_interleaved ? 1 : rows;
      if (const auto fine = add(Projection::up, given.w13, place); !fine) return fine;
    } else {
      if (shape.gated()) result.shape_.order = RowOrder::halves;
      const bool is_w13 = !shape.gated() && !is_given(given.up);
      if (shape.gated()) {
        if (const auto fine = add(Projection::gate, given.gate, {"gate", rows, k, 0, 1, rows});
            !fine)
          return fine;
      }
      if (const auto fine = add(Projection::up, is_w13 ? given.w13 : given.up,
                                {is_w13 ? "w13" : "up", rows, k, 0, 1, rows});
          !fine)
        return fine;
    }
    return add(Projection::down, given.w2, {"w2", k, rows, 0, 1, k});
  }
};

RowsView LayerWeightsView::Rows::at(std::uint64_t expert) const {
  RowsView rows = of_first;
  if (rows.data != nullptr) rows.data += expert * expert_stride;
  return rows;
}

Result<LayerWeightsView> LayerWeightsView::make(const LayerWeights& given) {
  Maker maker{given, {}};
  if (const auto fine = check_shape(given.shape); !fine) return fine.why();
  if (const auto fine = maker.check_given(); !fine) return fine.why();
  if (const auto fine = maker.add_all(); !fine) return fine.why();
  return std::move(maker.result);
}

std::optional<float> LayerWeightsView::input_scale(Projection which, std::uint64_t expert) const {
  const Numbers& inputs = part(which).inputs;
  if (inputs.values.empty()) return std::nullopt;
  return inputs.at(expert);
}

Result<ExpertView> LayerWeightsView::expert(std::uint64_t number) const {
  if (number >= shape_.experts)
    return usage("slice.expert", "there is no such expert")
        .expects(fmt::format("below {}", shape_.experts), fmt::format("{}", number));
  ExpertView view{.shape = shape_};
  for (const auto& [which, into] :
       {std::pair{Projection::gate, &view.gate}, std::pair{Projection::up, &view.up},
        std::pair{Projection::down, &view.down}}) {
    if (which == Projection::gate && !shape_.gated()) continue;
    const Part& from = part(which);
    into->codes = from.codes.at(number);
    into->scales = from.scales.at(number);
    const WeightFormat format = shape_.format;
    const auto nan = find_in_rows(
        into->scales, [=](std::span<const std::byte> row) { return find_nan_scale(format, row); });
    if (nan)
      return invalid("scale.nan", "a block scale is NaN")
          .at(fmt::format("{} scales", word_of(which)))
          .expects("numbers", fmt::format("NaN at expert {}, row {}, block {}", number, nan->row,
                                          nan->column));
    if (!from.globals.values.empty()) {
      const float scale = from.globals.at(number);
      if (!(std::isfinite(scale) && scale > 0))
        return invalid("scale.global", "invalid global scale")
            .at(fmt::format("{} global scales", word_of(which)))
            .expects("a finite number above zero", fmt::format("{} for expert {}", scale, number));
      into->global_scale = scale;
    }
    into->input_scale = input_scale(which, number);
    if (from.bias.size == 0) continue;
    into->bias = from.bias;
    into->bias.data += number * from.bias_stride;
  }
  return view;
}

void LayerWeightsView::cut(Range intermediate) {
  const std::uint64_t block = block_size(shape_.format);
  shape_.intermediate = intermediate.size();
  const auto keep_rows = [&](Rows& rows) {
    rows.of_first.data += intermediate.begin * rows.of_first.stride;
    rows.of_first.rows = intermediate.size();
  };
  for (const Projection which : {Projection::gate, Projection::up}) {
    Part& part = parts_[static_cast<std::size_t>(which)];
    if (part.codes.of_first.data == nullptr) continue;
    keep_rows(part.codes);
    keep_rows(part.scales);
    if (part.bias.size == 0) continue;
    part.bias.data += intermediate.begin * part.bias.stride;
    part.bias.size = intermediate.size();
  }
  Part& down = parts_[static_cast<std::size_t>(Projection::down)];
  down.codes.of_first.data += intermediate.begin / 2;
  down.codes.of_first.row_bytes = intermediate.size() / 2;
  down.scales.of_first.data += intermediate.begin / block;
  down.scales.of_first.row_bytes = intermediate.size() / block;
}

Result<LayerWeightsView> LayerWeightsView::slice(Rank tensor_parallel, SplitRule rule,
                                                 std::uint64_t whole) const {
  const auto range = split_intermediate(whole, block_size(shape_.format), tensor_parallel, rule);
  if (!range) return range.why();
  if (range->size() == 0)
    return usage("slice.empty", "the tensor-parallel rank holds no rows of this layer")
        .expects("at least one scale block for each rank",
                 fmt::format("none on rank {}", tensor_parallel.rank))
        .try_this("Use fewer ranks, or expert parallel");
  LayerWeightsView result = *this;
  if (shape_.intermediate == whole)
    result.cut(*range);
  else if (shape_.intermediate != range->size())
    return usage("weights.slice", "the weights are neither the layer's nor the rank's")
        .expects(fmt::format("intermediate size {} or {}", whole, range->size()),
                 fmt::format("{}", shape_.intermediate));
  if (tensor_parallel.rank != 0) result.parts_[2].bias = {.dtype = bias_type_};
  return result;
}

}  // namespace fp4moe::checkpoint
