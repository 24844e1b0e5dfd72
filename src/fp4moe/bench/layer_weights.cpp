#include "fp4moe/bench/layer_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/bench/layer_random.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/nvfp4.hpp"
#include "fp4moe/kernels/cpu/block_codec_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"

namespace fp4moe::bench {
namespace {

using checkpoint::WeightFormat;
using tensor::Buffer;

constexpr std::uint64_t kDistinct = std::uint64_t{1} << 20;  // numbers that are quantized, at most
constexpr std::uint64_t kStarts = 4096;                      // blocks at which a window may begin

// The buffer begins with `given` bytes; the rest repeats them.
void repeat(std::span<std::byte> all, std::uint64_t given) {
  for (std::uint64_t at = given; at < all.size(); at += given)
    std::memcpy(all.data() + at, all.data(), std::min<std::uint64_t>(given, all.size() - at));
}

}  // namespace

Result<RandomExperts> RandomExperts::make(const checkpoint::MoeShape& shape, std::uint64_t seed) {
  const std::uint64_t block = formats::block_size(shape.format);
  if (shape.hidden == 0 || shape.intermediate == 0 || shape.hidden % block != 0 ||
      shape.intermediate % block != 0)
    return usage("bench.shape", "sizes are not whole blocks")
        .expects(fmt::format("multiples of {}", block),
                 fmt::format("{} x {}", shape.hidden, shape.intermediate));
  RandomExperts result;
  result.shape_ = shape;
  const std::uint64_t blocks = shape.hidden * shape.intermediate / block + kStarts;
  for (const auto& [buffer, bytes] :
       {std::pair{&result.codes_, blocks * block / 2}, std::pair{&result.scales_, blocks},
        std::pair{&result.bias_, (std::max(shape.hidden, shape.intermediate) + kStarts) *
                                     sizeof(std::uint16_t)}}) {
    Result<Buffer> memory = Buffer::allocate(bytes);
    if (!memory) return memory.why();
    *buffer = std::move(*memory);
  }

  SplitMix64 random(seed);
  const std::uint64_t distinct = std::min(blocks, kDistinct / block);
  std::vector<float> values(distinct * block);
  const float deviation = 1.0f / std::sqrt(static_cast<float>(shape.hidden));
  float largest = 0;
  for (float& value : values) {
    value = deviation * nearly_normal(random);
    largest = std::max(largest, std::fabs(value));
  }
  const auto& codec = kernels::cpu::pick(kernels::cpu::block_codecs(), {});
  const float global = formats::nvfp4_global_scale(largest);
  const kernels::cpu::QuantizeBlocks call{.input = values.data(),
                                          .element = kernels::cpu::Element::f32,
                                          .blocks = distinct,
                                          .codes = result.codes_.as<std::uint8_t>().data(),
                                          .scales = result.scales_.as<std::uint8_t>().data(),
                                          .mxfp4_rule = formats::Mxfp4Rule::floor4_rne,
                                          .nvfp4_rule = formats::Nvfp4Rule::reference,
                                          .global_scale = global};
  if (shape.format == WeightFormat::mxfp4) {
    codec.quantize_mxfp4(call);
  } else {
    codec.quantize_nvfp4(call);
    result.global_scale_ = 1.0f / global;
  }
  repeat(result.codes_.bytes(), distinct * block / 2);
  repeat(result.scales_.bytes(), distinct);
  for (std::uint16_t& bias : result.bias_.as<std::uint16_t>())
    bias = formats::Bf16::encode(0.25f * nearly_normal(random));
  return result;
}

checkpoint::ProjectionView RandomExperts::window(std::uint64_t number, std::uint64_t rows,
                                                 std::uint64_t columns) const {
  const std::uint64_t block = formats::block_size(shape_.format);
  const std::uint64_t start = SplitMix64(number).next() % kStarts;
  checkpoint::ProjectionView view;
  view.codes = {codes_.data() + start * block / 2, rows, columns / 2, columns / 2};
  view.scales = {scales_.data() + start, rows, columns / block, columns / block};
  view.global_scale = global_scale_;
  if (shape_.format == WeightFormat::nvfp4) view.input_scale = 1.0f;
  if (shape_.has_bias)
    view.bias = {bias_.data() + start * sizeof(std::uint16_t), rows, sizeof(std::uint16_t),
                 tensor::DType::bf16};
  return view;
}

checkpoint::ExpertView RandomExperts::expert(std::uint64_t layer, std::uint64_t position) const {
  const std::uint64_t number = 3 * (layer * shape_.experts + position);
  checkpoint::ExpertView view{.shape = shape_};
  if (shape_.gated()) view.gate = window(number, shape_.intermediate, shape_.hidden);
  view.up = window(number + 1, shape_.intermediate, shape_.hidden);
  view.down = window(number + 2, shape_.hidden, shape_.intermediate);
  return view;
}

moe::ExpertSource RandomExperts::source(std::uint64_t layer) const {
  return {.shape = shape_, .visit = [this, layer](std::size_t position, const moe::UseExpert& use) {
            return use(expert(layer, position));
          }};
}

}  // namespace fp4moe::bench
