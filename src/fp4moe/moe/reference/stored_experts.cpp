#include "fp4moe/moe/reference/stored_experts.hpp"

#include <mutex>

#include "fp4moe/checkpoint/copy_expert.hpp"

namespace fp4moe::moe::reference {
namespace {

using checkpoint::ExpertView;
using checkpoint::MoeShape;
using checkpoint::RowOrder;

Result<StoredExpert> store(const ExpertView& view) {
  const MoeShape& shape = view.shape;
  const std::uint64_t block = checkpoint::block_size(shape.format);
  StoredExpert result;
  const auto allocate = [](tensor::Buffer& buffer, std::uint64_t bytes) -> Result<Done> {
    Result<tensor::Buffer> memory = tensor::Buffer::allocate(bytes);
    if (!memory) return memory.why();
    buffer = std::move(*memory);
    return Done{};
  };
  for (const Result<Done>& fine :
       {allocate(result.w13_codes, shape.w13_rows() * shape.hidden / 2),
        allocate(result.w13_scales, shape.w13_rows() * shape.hidden / block),
        allocate(result.w2_codes, shape.hidden * shape.intermediate / 2),
        allocate(result.w2_scales, shape.hidden * shape.intermediate / block)})
    if (!fine) return fine.why();
  if (view.up.bias.size != 0) result.w13_bias.resize(shape.w13_rows());
  if (view.down.bias.size != 0) result.w2_bias.resize(shape.hidden);
  const checkpoint::CopyTarget target{.w13_codes = result.w13_codes.bytes(),
                                      .w13_scales = result.w13_scales.bytes(),
                                      .w2_codes = result.w2_codes.bytes(),
                                      .w2_scales = result.w2_scales.bytes(),
                                      .w13_bias = result.w13_bias,
                                      .w2_bias = result.w2_bias};
  const RowOrder order = shape.gated() ? RowOrder::halves : RowOrder::single;
  if (const auto copied = copy_expert(view, order, target); !copied) return copied.why();
  result.gate_global = view.gate.global_scale;
  result.up_global = view.up.global_scale;
  result.down_global = view.down.global_scale;
  return result;
}

}  // namespace

Result<StoredExperts> StoredExperts::load(const ExpertSource& source, ThreadPool& pool) {
  StoredExperts result;
  result.shape_ = source.shape;
  result.shape_.order = source.shape.gated() ? RowOrder::halves : RowOrder::single;
  result.experts_.resize(source.shape.experts);
  std::vector<std::optional<Error>> failures(source.shape.experts);
  pool.run(source.shape.experts, [&](std::size_t position) {
    const auto done = source.visit(position, [&](const ExpertView& view) -> Result<Done> {
      Result<StoredExpert> stored = store(view);
      if (!stored) return stored.why();
      result.experts_[position] = std::move(*stored);
      return Done{};
    });
    if (!done) failures[position] = done.why();
  });
  for (const std::optional<Error>& failure : failures)
    if (failure) return *failure;
  return result;
}

Fp4Matrix StoredExperts::w13(std::size_t position) const {
  const StoredExpert& expert = experts_[position];
  return {.format = shape_.format,
          .codes = expert.w13_codes.data(),
          .scales = expert.w13_scales.data(),
          .rows = shape_.w13_rows(),
          .k = shape_.hidden};
}

Fp4Matrix StoredExperts::w2(std::size_t position) const {
  const StoredExpert& expert = experts_[position];
  return {.format = shape_.format,
          .codes = expert.w2_codes.data(),
          .scales = expert.w2_scales.data(),
          .rows = shape_.hidden,
          .k = shape_.intermediate};
}

float StoredExperts::w13_global(std::size_t position, std::uint64_t row) const {
  const StoredExpert& expert = experts_[position];
  return shape_.gated() && row < shape_.intermediate ? expert.gate_global : expert.up_global;
}

}  // namespace fp4moe::moe::reference
