#include "fp4moe/checkpoint/moe_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>

#include <fmt/format.h>

#include "fp4moe/base/parallel.hpp"
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

Result<Done> check_sizes(const MoeShape& shape, const ExpertTarget& to) {
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

// Readers wait here between experts, so that their scratch memory is made once for each thread.
class ReaderPool {
 public:
  ReaderPool(const Checkpoint& checkpoint, const Slice& slice)
      : checkpoint_(checkpoint), slice_(slice) {}

  std::unique_ptr<ExpertReader> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<ExpertReader>(checkpoint_, slice_);
    auto reader = std::move(idle_.back());
    idle_.pop_back();
    return reader;
  }
  void give_back(std::unique_ptr<ExpertReader> reader) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(reader));
  }

 private:
  const Checkpoint& checkpoint_;
  Slice slice_;
  std::mutex mutex_{};
  std::vector<std::unique_ptr<ExpertReader>> idle_{};
};

Result<Done> allocate(MoeWeights& weights) {
  const MoeShape& shape = weights.shape;
  const std::uint64_t count = weights.experts.size(), block = block_size(shape.format);
  const std::uint64_t w13 = count * shape.w13_rows() * shape.hidden;
  const std::uint64_t w2 = count * shape.hidden * shape.intermediate;
  for (const auto& [buffer, bytes] :
       {std::pair{&weights.w13_codes, w13 / 2}, std::pair{&weights.w13_scales, w13 / block},
        std::pair{&weights.w2_codes, w2 / 2}, std::pair{&weights.w2_scales, w2 / block}}) {
    auto memory = tensor::Buffer::allocate(bytes);
    if (!memory) return memory.why();
    *buffer = std::move(*memory);
  }
  const std::uint64_t parts = shape.gated() ? 2 : 1;
  if (shape.format == WeightFormat::nvfp4) {
    weights.w13_global_scales.resize(count * parts);
    weights.w2_global_scales.resize(count);
  }
  if (shape.has_input_scale) {
    weights.w13_input_scales.resize(count * parts);
    weights.w2_input_scales.resize(count);
  }
  if (shape.has_bias) {
    weights.w13_bias.resize(count * shape.w13_rows());
    weights.w2_bias.resize(count * shape.hidden);
  }
  return Done{};
}

void put_scalars(const ExpertView& view, std::size_t position, MoeWeights& into) {
  const std::size_t parts = into.shape.gated() ? 2 : 1;
  const auto put = [&](const ProjectionView& from, std::vector<float>& globals,
                       std::vector<float>& inputs, std::size_t at) {
    if (!globals.empty()) globals[at] = from.global_scale;
    if (!inputs.empty()) {
      inputs[at] = from.input_scale.value_or(std::numeric_limits<float>::quiet_NaN());
    }
  };
  if (parts == 2) put(view.gate, into.w13_global_scales, into.w13_input_scales, position * 2);
  put(view.up, into.w13_global_scales, into.w13_input_scales, position * parts + parts - 1);
  put(view.down, into.w2_global_scales, into.w2_input_scales, position);
}

std::uint64_t count_bad(const std::vector<float>& scales) {
  return static_cast<std::uint64_t>(std::count_if(
      scales.begin(), scales.end(), [](float x) { return !(std::isfinite(x) && x > 0); }));
}

}  // namespace

Result<Done> copy_expert(const ExpertView& view, RowOrder order, const ExpertTarget& to) {
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

ExpertTarget MoeWeights::expert(std::size_t position) {
  const auto part = [&](auto&& whole) {
    const std::size_t each = experts.empty() ? 0 : whole.size() / experts.size();
    return whole.subspan(position * each, each);
  };
  return {.w13_codes = part(w13_codes.bytes()),
          .w13_scales = part(w13_scales.bytes()),
          .w2_codes = part(w2_codes.bytes()),
          .w2_scales = part(w2_scales.bytes()),
          .w13_bias = part(std::span<float>(w13_bias)),
          .w2_bias = part(std::span<float>(w2_bias))};
}

Result<MoeWeights> load_layer(const Checkpoint& checkpoint, std::size_t layer, const Slice& slice,
                              RowOrder order, std::size_t threads) {
  if (layer >= checkpoint.layers().size()) {
    return usage("slice.layer", "there is no such layer")
        .expects(fmt::format("fewer than {}", checkpoint.layers().size()),
                 fmt::format("{}", layer));
  }
  const MoeLayer& source = checkpoint.layers()[layer];
  if (const auto fine = check_order(source.shape, order); !fine) return fine.why();
  const auto range = split_intermediate(source.shape.intermediate, block_size(source.shape.format),
                                        slice.tensor_parallel, split_rule(checkpoint, source));
  if (!range) return range.why();
  auto experts = local_experts(source.shape.experts, slice.expert_parallel, slice.placement);
  if (!experts) return experts.why();

  MoeWeights weights{.shape = source.shape, .experts = std::move(*experts)};
  weights.shape.experts = weights.experts.size();
  weights.shape.intermediate = range->size();
  weights.shape.order = order;
  if (const auto fine = allocate(weights); !fine) return fine.why();
  ReaderPool pool(checkpoint, slice);
  const auto done = parallel_for(threads, weights.experts.size(), [&](std::size_t i) {
    auto reader = pool.take();
    const auto view = reader->read(layer, weights.experts[i]);
    if (!view) return Result<Done>(view.why());
    const auto copied = copy_expert(*view, order, weights.expert(i));
    if (!copied) return Result<Done>(copied.why());
    put_scalars(*view, i, weights);
    reader->release();
    pool.give_back(std::move(reader));
    return Result<Done>(Done{});
  });
  if (!done) return done.why();
  weights.bad_input_scales =
      count_bad(weights.w13_input_scales) + count_bad(weights.w2_input_scales);
  return weights;
}

}  // namespace fp4moe::checkpoint
