#include "fp4moe/checkpoint/copy_expert.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/f16.hpp"

namespace fp4moe::checkpoint {
namespace {

struct Rows {
  std::byte* data;
  std::uint64_t stride;
};

void copy_rows(const RowsView& from, Rows to) {
  if (from.is_dense() && to.stride == from.row_bytes) {
    std::memcpy(to.data, from.data, from.rows * from.row_bytes);
    return;
  }
  for (std::uint64_t row = 0; row < from.rows; ++row) {
    std::memcpy(to.data + row * to.stride, from.data + row * from.stride, from.row_bytes);
  }
}

float bias_value(const BiasView& bias, std::uint64_t row) {
  const std::byte* at = bias.data + row * bias.stride;
  if (bias.dtype == tensor::DType::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t code = 0;
  std::memcpy(&code, at, sizeof code);
  return bias.dtype == tensor::DType::f16 ? formats::F16::decode(code)
                                          : formats::Bf16::decode(code);
}

// Row `first`, then every `step`th.
void copy_bias(const BiasView& from, std::span<float> to, std::uint64_t first, std::uint64_t step) {
  for (std::uint64_t row = 0; row < from.size; ++row)
    to[first + row * step] = bias_value(from, row);
}

Result<Done> check_order(const MoeShape& shape, RowOrder order) {
  if (shape.gated() == (order != RowOrder::single)) return Done{};
  return usage("moe_weights.order", "the row order does not fit the model")
      .expects(shape.gated() ? "interleaved or halves" : "single", name(order));
}

Result<Done> check_size(std::string_view what, std::size_t size, std::uint64_t needed) {
  if (size == 0 || size == needed) return Done{};
  return usage("moe_weights.size", fmt::format("the memory for {} has the wrong size", what))
      .expects(fmt::format("{}", needed), fmt::format("{}", size));
}

Result<Done> check_sizes(const MoeShape& shape, const CopyTarget& to) {
  const std::uint64_t block = block_size(shape.format), rows = shape.w13_rows();
  for (const Result<Done>& fine :
       {check_size("w13 codes", to.w13_codes.size(), rows * shape.hidden / 2),
        check_size("w13 scales", to.w13_scales.size(), rows * shape.hidden / block),
        check_size("w2 codes", to.w2_codes.size(), shape.hidden * shape.intermediate / 2),
        check_size("w2 scales", to.w2_scales.size(), shape.hidden * shape.intermediate / block),
        check_size("w13 bias", to.w13_bias.size(), rows),
        check_size("w2 bias", to.w2_bias.size(), shape.hidden)}) {
    if (!fine) return fine.why();
  }
  return Done{};
}

}  // namespace

Result<Done> copy_expert(const ExpertView& view, RowOrder order, const CopyTarget& to) {
  const MoeShape& shape = view.shape;
  if (const auto fine = check_order(shape, order); !fine) return fine.why();
  if (const auto fine = check_sizes(shape, to); !fine) return fine.why();
  const bool interleaved = order == RowOrder::interleaved;
  const std::uint64_t step = interleaved ? 2 : 1;
  const std::uint64_t block = block_size(shape.format);
  const auto copy_w13 = [&](const ProjectionView& from, std::uint64_t first) {
    const auto rows = [&](std::span<std::byte> memory, std::uint64_t row_bytes) {
      return Rows{memory.data() + first * row_bytes, step * row_bytes};
    };
    if (!to.w13_codes.empty()) copy_rows(from.codes, rows(to.w13_codes, shape.hidden / 2));
    if (!to.w13_scales.empty()) copy_rows(from.scales, rows(to.w13_scales, shape.hidden / block));
    if (!to.w13_bias.empty()) copy_bias(from.bias, to.w13_bias, first, step);
  };
  std::fill(to.w13_bias.begin(), to.w13_bias.end(), 0.0f);
  std::fill(to.w2_bias.begin(), to.w2_bias.end(), 0.0f);
  if (shape.gated()) copy_w13(view.gate, 0);
  copy_w13(view.up, !shape.gated() ? 0 : interleaved ? 1 : shape.intermediate);
  if (!to.w2_codes.empty()) {
    copy_rows(view.down.codes, {to.w2_codes.data(), shape.intermediate / 2});
  }
  if (!to.w2_scales.empty()) {
    copy_rows(view.down.scales, {to.w2_scales.data(), shape.intermediate / block});
  }
  if (!to.w2_bias.empty()) copy_bias(view.down.bias, to.w2_bias, 0, 1);
  return Done{};
}

}  // namespace fp4moe::checkpoint
