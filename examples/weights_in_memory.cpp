// A gpt-oss layer from weights in memory: no file, no config.json. Every weight is 1, so that the
// output can be computed by hand (weights_in_memory.c does).
#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

#include "fp4moe/base/or_throw.hpp"
#include "fp4moe/runtime/gpt_oss_layer.hpp"

using namespace fp4moe;

int main() {
  constexpr std::uint64_t kExperts = 4, kHidden = 64, kIntermediate = 32;
  const std::vector<std::byte> w13(kExperts * 2 * kIntermediate * kHidden / 2, std::byte{0x22});
  const std::vector<std::byte> w2(kExperts * kHidden * kIntermediate / 2, std::byte{0x22});
  const std::vector<std::byte> w13_scales(w13.size() / 16, std::byte{127});  // 32 codes to a scale
  const std::vector<std::byte> w2_scales(w2.size() / 16, std::byte{127});
  runtime::MoeLayer layer = or_throw(runtime::gpt_oss_layer({.experts = kExperts,
                                                             .hidden = kHidden,
                                                             .intermediate = kIntermediate,
                                                             .top_k = 2,
                                                             .gate_up_proj_blocks = w13,
                                                             .gate_up_proj_scales = w13_scales,
                                                             .down_proj_blocks = w2,
                                                             .down_proj_scales = w2_scales}));

  const std::vector<float> x(kHidden, 0.25f), logits{0, 3, 1, 2};
  std::vector<float> y(kHidden);
  or_throw(layer.run(
      {.x = moe::dense_rows(std::span(x), 1), .logits = moe::dense_rows(std::span(logits), 1)},
      moe::dense_rows(std::span(y), 1)));
  std::printf("%g %g ... %g\n", double{y[0]}, double{y[1]}, double{y.back()});
}
