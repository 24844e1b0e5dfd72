// A MoE layer from weights in memory: no file, no names, no config.json. Every weight is 1, so that
// the output can be computed by hand (weights_in_memory.c does).
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "fp4moe/checkpoint/layer_weights_view.hpp"
#include "fp4moe/runtime/layer.hpp"

namespace moe = fp4moe::moe;
namespace runtime = fp4moe::runtime;
namespace checkpoint = fp4moe::checkpoint;
using fp4moe::tensor::DType;

namespace {

void require(const auto& result) {
  if (result) return;
  std::fprintf(stderr, "%s\n", text(result.why()).c_str());
  std::exit(static_cast<int>(result.why().code));
}

}  // namespace

int main() {
  constexpr std::uint64_t kExperts = 4, kHidden = 64, kIntermediate = 32;
  const std::vector<std::byte> w13(kExperts * 2 * kIntermediate * kHidden / 2, std::byte{0x22});
  const std::vector<std::byte> w2(kExperts * kHidden * kIntermediate / 2, std::byte{0x22});
  const std::vector<std::byte> w13_scales(w13.size() / 16, std::byte{127});  // 32 codes to a scale
  const std::vector<std::byte> w2_scales(w2.size() / 16, std::byte{127});

  checkpoint::LayerWeights given{.shape = {.format = checkpoint::WeightFormat::mxfp4,
                                           .experts = kExperts,
                                           .hidden = kHidden,
                                           .intermediate = kIntermediate,
                                           .order = checkpoint::RowOrder::halves}};
  given.w13 = {.codes = {w13}, .scales = {w13_scales}};
  given.w2 = {.codes = {w2}, .scales = {w2_scales}};
  const auto view = checkpoint::LayerWeightsView::make(given);  // checked, nothing copied
  require(view);

  runtime::LayerDescription description{.activation = fp4moe::oracle::Activation::silu, .top_k = 2};
  description.router = moe::routing::RouterOptions{.method = moe::routing::Method::renormalize};
  auto layer = runtime::MoeLayer::create(description, *view);
  require(layer);
  require(layer->load());  // packed for this machine; the memory may go now
  require(layer->process());

  const std::vector<float> x(kHidden, 0.25f), logits{0, 3, 1, 2};
  std::vector<float> y(kHidden);
  require(layer->run({.x = moe::dense_rows(std::span(x), DType::f32, 1, kHidden),
                      .logits = moe::dense_rows(std::span(logits), DType::f32, 1, kExperts)},
                     moe::dense_rows(std::span(y), DType::f32, 1, kHidden)));
  std::printf("%g %g ... %g\n", double{y[0]}, double{y[1]}, double{y.back()});
}
