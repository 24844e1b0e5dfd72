// A layer's whole life by the names of vLLM's oracle, from weights in memory: no file, no
// config.json. The backend is the one vLLM takes on an H100; its numbers are computed here.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "fp4moe/base/or_throw.hpp"
#include "fp4moe/vllm/mxfp4_moe_method.hpp"

using namespace fp4moe;

int main() {
  vllm::MoeConfig config{.num_experts = 8,
                         .num_local_experts = 8,
                         .experts_per_token = 2,
                         .hidden_dim = 128,
                         .intermediate_size_per_partition = 96,
                         .has_bias = true};
  config.context.device = *platform::describe_device("h100");  // or vllm::current_context()
  auto method = or_throw(vllm::Mxfp4MoeMethod::make(config));  // select_mxfp4_moe_backend
  or_throw(method.create_weights());  // w13_weight, w13_weight_scale, w13_bias, w2_weight, ...
  for (vllm::Parameter& parameter : method.parameters())  // a loader's work: any bytes here
    std::ranges::fill(parameter.tensor.bytes(),
                      parameter.name.ends_with("scale") ? std::byte{120} : std::byte{0x32});
  or_throw(method.process_weights_after_loading());  // again after the weights changed

  const std::vector<float> x(4 * 128, 0.5f), logits(4 * 8, 1.0f), weights(4 * 2, 0.5f);
  const std::vector<std::int32_t> ids{0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<float> y(4 * 128);
  const auto in = moe::dense_rows(std::span(x), 4), scores = moe::dense_rows(std::span(logits), 4);
  const auto out = moe::dense_rows(std::span(y), 4);
  or_throw(method.is_monolithic() ? method.apply_monolithic(in, scores, out)
                                  : method.apply(in, weights, ids, out));
  std::printf("%s %s: %g %g %g ...\n", to_string(method.mxfp4_backend()).data(),
              method.experts_cls()->name.data(), double{y[0]}, double{y[1]}, double{y[2]});
}
