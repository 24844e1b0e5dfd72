#include "fp4moe/checkpoint/edit/quantize_expert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/checkpoint/codec.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::checkpoint {
namespace {

using kernels::cpu::Element;
using tensor::DType;

constexpr std::uint64_t kPiece = std::uint64_t{1} << 18;  // numbers at a time

Element element_of(DType dtype) {
  return dtype == DType::bf16 ? Element::bf16 : dtype == DType::f16 ? Element::f16 : Element::f32;
}

float number_at(const std::byte* from, DType dtype) {
  std::uint16_t half = 0;
  float whole = 0;
  if (dtype == DType::f32) {
    std::memcpy(&whole, from, 4);
    return whole;
  }
  std::memcpy(&half, from, 2);
  return dtype == DType::bf16 ? formats::Bf16::decode(half) : formats::F16::decode(half);
}

std::uint64_t rows_per_piece(const PlainMatrix& matrix) {
  return std::max<std::uint64_t>(1, kPiece / matrix.k);
}

Result<Done> grow(tensor::Buffer& buffer, std::uint64_t bytes) {
  if (buffer.size() >= bytes) return Done{};
  Result<tensor::Buffer> larger = tensor::Buffer::allocate(bytes);
  if (!larger) return larger.why();
  buffer = *std::move(larger);
  return Done{};
}

struct Blocks {
  std::uint64_t count, size;
};

// Compares what went in with what comes out. Eight running values each, so that the compiler can
// use vectors without reordering anything.
template <class Decode>
void add_block_errors(Decode decode, const float* back, Blocks blocks, ErrorSums& sums) {
  constexpr std::size_t kLanes = 8;
  using Lanes = std::array<float, kLanes>;
  for (std::uint64_t b = 0; b < blocks.count; ++b) {
    Lanes amax{}, worst{}, squared{}, squared_error{};
    for (std::uint64_t i = 0; i < blocks.size; i += kLanes) {
      const std::uint64_t at = b * blocks.size + i;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const float value = decode(at + lane);
        const float magnitude = std::fabs(value), wrong = std::fabs(value - back[at + lane]);
        amax[lane] = amax[lane] < magnitude ? magnitude : amax[lane];
        worst[lane] = worst[lane] < wrong ? wrong : worst[lane];
        squared[lane] += value * value;
        squared_error[lane] += wrong * wrong;
      }
    }
    const float max = *std::ranges::max_element(amax);
    if (max > 0)
      sums.max = std::max(sums.max, static_cast<double>(*std::ranges::max_element(worst)) / max);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums.squared += squared[lane];
      sums.squared_error += squared_error[lane];
    }
  }
}

void add_errors(const std::byte* values, DType dtype, const float* back, Blocks blocks,
                ErrorSums& sums) {
  if (dtype == DType::bf16) {
    const auto decode = [values](std::uint64_t at) {
      std::uint16_t half = 0;
      std::memcpy(&half, values + at * 2, 2);
      return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
    };
    add_block_errors(decode, back, blocks, sums);
  } else {
    const std::uint64_t width = tensor::row(dtype).block_bytes;
    const auto decode = [=](std::uint64_t at) { return number_at(values + at * width, dtype); };
    add_block_errors(decode, back, blocks, sums);
  }
}

}  // namespace

void ErrorSums::add(const ErrorSums& other) {
  max = std::max(max, other.max);
  squared_error += other.squared_error;
  squared += other.squared;
}

Result<std::optional<float>> input_scale_of(const QuantizeOptions& options,
                                            const std::string& module) {
  if (options.input_scales.empty()) return std::optional<float>{};
  for (const auto& [pattern, value] : options.input_scales)
    if (matches_wildcard(pattern, module)) return std::optional<float>(value);
  return usage("quantize.input_scale", "no input scale is given for a projection")
      .at(module)
      .expects("a pattern that matches it",
               std::to_string(options.input_scales.size()) + " patterns that do not")
      .try_this("Add \"*\" as the last pattern");
}

const std::byte* ExpertQuantizer::rows_of(const PlainMatrix& matrix, std::uint64_t begin,
                                          std::uint64_t end) {
  const std::uint64_t size = tensor::row(matrix.tensor->entry.dtype).block_bytes;
  if (matrix.is_dense())
    return source_->store().bytes(*matrix.tensor).data() + (matrix.first + begin * matrix.k) * size;
  gather_rows(source_->store(), matrix, begin, end, rows_.bytes());
  return rows_.data();
}

Error ExpertQuantizer::not_finite(const PlainMatrix& matrix, std::uint64_t begin,
                                  std::uint64_t end) const {
  const DType dtype = matrix.tensor->entry.dtype;
  const std::uint64_t size = tensor::row(dtype).block_bytes;
  const std::byte* base = source_->store().bytes(*matrix.tensor).data();
  std::string where = "rows " + std::to_string(begin) + " to " + std::to_string(end - 1);
  for (std::uint64_t r = begin; r < end; ++r)
    for (std::uint64_t c = 0; c < matrix.k; ++c) {
      const std::uint64_t at = matrix.first + r * matrix.row_step + c * matrix.column_step;
      const float value = number_at(base + at * size, dtype);
      if (std::isfinite(value)) continue;
      where = std::string(std::isnan(value) ? "NaN" : "infinity") + " at row " + std::to_string(r) +
              ", column " + std::to_string(c);
      r = end;
      break;
    }
  return invalid("quantize.not_finite", "a weight is not a finite number")
      .in(source_->store().path(*matrix.tensor))
      .at(matrix.tensor->entry.name)
      .expects("finite weights", where);
}

Result<float> ExpertQuantizer::max_magnitude(const PlainMatrix& matrix) {
  const DType dtype = matrix.tensor->entry.dtype;
  float amax = 0;
  const std::uint64_t step = rows_per_piece(matrix);
  for (std::uint64_t r = 0; r < matrix.rows; r += step) {
    const std::uint64_t end = std::min(matrix.rows, r + step);
    const float piece = machine_codec().max_magnitude({.input = rows_of(matrix, r, end),
                                                       .element = element_of(dtype),
                                                       .count = (end - r) * matrix.k});
    if (!std::isfinite(piece)) return not_finite(matrix, r, end);
    amax = std::max(amax, piece);
  }
  return amax;
}

Result<Done> ExpertQuantizer::quantize_matrix(const PlainMatrix& matrix, float divisor,
                                              ProjectionView& view, ErrorSums& sums) {
  const bool is_mxfp4 = options_->format == WeightFormat::mxfp4;
  const std::uint64_t block = block_size(options_->format);
  const DType dtype = matrix.tensor->entry.dtype;
  const std::uint64_t row_codes = matrix.k / 2, row_scales = matrix.k / block;
  std::byte* codes = next_;
  std::byte* scales = codes + round_up(matrix.rows * row_codes, 64);
  next_ = scales + round_up(matrix.rows * row_scales, 64);
  const kernels::cpu::BlockCodec& codec = machine_codec();
  const std::uint64_t step = rows_per_piece(matrix);
  for (std::uint64_t r = 0; r < matrix.rows; r += step) {
    const std::uint64_t end = std::min(matrix.rows, r + step);
    const std::byte* values = rows_of(matrix, r, end);
    const std::uint64_t blocks = (end - r) * row_scales;
    if (is_mxfp4 &&
        !std::isfinite(codec.max_magnitude(
            {.input = values, .element = element_of(dtype), .count = (end - r) * matrix.k})))
      return not_finite(matrix, r, end);
    const kernels::cpu::QuantizeBlocks job{
        .input = values,
        .element = element_of(dtype),
        .blocks = blocks,
        .codes = reinterpret_cast<std::uint8_t*>(codes + r * row_codes),
        .scales = reinterpret_cast<std::uint8_t*>(scales + r * row_scales),
        .mxfp4_rule = options_->mxfp4_rule,
        .nvfp4_rule = options_->nvfp4_rule,
        .global_scale = divisor};
    (is_mxfp4 ? codec.quantize_mxfp4 : codec.quantize_nvfp4)(job);
    (is_mxfp4 ? codec.dequantize_mxfp4
              : codec.dequantize_nvfp4)({.codes = job.codes,
                                         .scales = job.scales,
                                         .blocks = blocks,
                                         .output = back_.data(),
                                         .element = Element::f32,
                                         .global_kind = kernels::cpu::GlobalScaleUse::divisor,
                                         .global_scale = divisor});
    add_errors(values, dtype, back_.as<const float>().data(), {blocks, block}, sums);
  }
  view.codes = {codes, matrix.rows, row_codes, row_codes};
  view.scales = {scales, matrix.rows, row_scales, row_scales};
  if (matrix.bias != nullptr) {
    const DType type = matrix.bias->entry.dtype;
    const std::uint64_t size = tensor::row(type).block_bytes;
    view.bias = {source_->store().bytes(*matrix.bias).data() + matrix.bias_first * size,
                 matrix.rows, matrix.bias_step * size, type};
  }
  return Done{};
}

Result<ExpertView> ExpertQuantizer::quantize(const PlainLayer& layer, std::uint64_t expert,
                                             const MoeShape& shape) {
  const std::uint64_t block = block_size(shape.format);
  const std::uint64_t numbers = shape.hidden * shape.intermediate;
  const std::uint64_t each = round_up(numbers / 2, 64) + round_up(numbers / block, 64);
  const std::uint64_t widest = std::max(shape.hidden, shape.intermediate);
  const std::uint64_t piece = std::max(kPiece, widest);
  if (Result<Done> done = grow(output_, 3 * each); !done) return done.why();
  if (Result<Done> done = grow(rows_, piece * 4); !done) return done.why();
  if (Result<Done> done = grow(back_, piece * 4); !done) return done.why();
  next_ = output_.data();
  errors_ = {};
  const bool gated = shape.gated();
  const PlainMatrix gate = layer.matrix(Projection::gate, expert);
  const PlainMatrix up = layer.matrix(Projection::up, expert);
  const PlainMatrix down = layer.matrix(Projection::down, expert);
  if (shape.format == WeightFormat::nvfp4 &&
      options_->nvfp4_rule != formats::Nvfp4Rule::no_global) {
    float max_gate = 0;
    if (gated) {
      const Result<float> amax = max_magnitude(gate);
      if (!amax) return amax.why();
      max_gate = *amax;
    }
    Result<float> max_up = max_magnitude(up);
    if (!max_up) return max_up.why();
    const Result<float> max_down = max_magnitude(down);
    if (!max_down) return max_down.why();
    if (gated && !options_->separate_global_scales)
      max_gate = *max_up = std::max(max_gate, *max_up);
    gate_divisor_ = formats::nvfp4_global_scale(max_gate);
    up_divisor_ = formats::nvfp4_global_scale(*max_up);
    down_divisor_ = formats::nvfp4_global_scale(*max_down);
  }
  ExpertView view{.shape = shape};
  if (gated)
    if (Result<Done> done = quantize_matrix(gate, gate_divisor_, view.gate, errors_.gate); !done)
      return done.why();
  if (Result<Done> done = quantize_matrix(up, up_divisor_, view.up, errors_.up); !done)
    return done.why();
  if (Result<Done> done = quantize_matrix(down, down_divisor_, view.down, errors_.down); !done)
    return done.why();
  const std::string module = layer.prefix + "experts." + std::to_string(expert) + ".";
  struct Input {
    const char* name;
    std::optional<float>* scale;
  };
  for (const Input& input : {Input{"gate_proj", &gate_input_}, Input{"up_proj", &up_input_},
                             Input{"down_proj", &down_input_}}) {
    const Result<std::optional<float>> scale = input_scale_of(*options_, module + input.name);
    if (!scale) return scale.why();
    *input.scale = *scale;
  }
  return view;
}

const StoredScales& ExpertQuantizer::scales(GlobalScale convention) {
  const auto bits = [&](float multiplier, float divisor) {
    return std::bit_cast<std::uint32_t>(convention == GlobalScale::divides ? divisor : multiplier);
  };
  const auto pair = [&](float divisor, std::optional<float> input) {
    StoredScales::Pair result{.global = bits(1.0f / divisor, divisor)};
    if (input) result.input = bits(*input, 1.0f / *input);
    return result;
  };
  stored_ = {.gate = pair(gate_divisor_, gate_input_),
             .up = pair(up_divisor_, up_input_),
             .down = pair(down_divisor_, down_input_)};
  return stored_;
}

}  // namespace fp4moe::checkpoint
