// One expert of a checkpoint in memory of its own, for tests that compare checkpoints.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/copy_expert.hpp"

namespace fp4moe::checkpoint::testing {

struct CanonicalExpert {
  ExpertView view{};  // scalars and shape; its rows are the reader's
  RowOrder order = RowOrder::halves;
  std::vector<std::byte> w13_codes{}, w13_scales{}, w2_codes{}, w2_scales{};
  std::vector<float> w13_bias{}, w2_bias{};
};

inline Result<CanonicalExpert> read_canonical(ExpertReader& reader, std::size_t layer,
                                              std::uint64_t number, RowOrder order) {
  Result<ExpertView> view = reader.read(layer, number);
  if (!view) return view.why();
  CanonicalExpert expert{.view = *std::move(view), .order = order};
  const MoeShape& shape = expert.view.shape;
  const std::uint64_t block = block_size(shape.format), w13 = shape.w13_rows() * shape.hidden,
                      w2 = shape.hidden * shape.intermediate;
  expert.w13_codes.resize(w13 / 2);
  expert.w13_scales.resize(w13 / block);
  expert.w2_codes.resize(w2 / 2);
  expert.w2_scales.resize(w2 / block);
  expert.w13_bias.resize(shape.w13_rows());
  expert.w2_bias.resize(shape.hidden);
  const Result<Done> done = copy_expert(expert.view, order,
                                        {.w13_codes = expert.w13_codes,
                                         .w13_scales = expert.w13_scales,
                                         .w2_codes = expert.w2_codes,
                                         .w2_scales = expert.w2_scales,
                                         .w13_bias = expert.w13_bias,
                                         .w2_bias = expert.w2_bias});
  if (!done) return done.why();
  return expert;
}

}  // namespace fp4moe::checkpoint::testing
