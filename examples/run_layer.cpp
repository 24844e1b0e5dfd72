// Runs the first MoE layer of a checkpoint on sixteen tokens, in a backend's layout and with its
// roundings, wherever that backend's device is.
//   run_layer PATH BACKEND        e.g. run_layer model.gguf MARLIN
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "fp4moe/runtime/layer.hpp"
#include "fp4moe/runtime/run_input.hpp"

namespace runtime = fp4moe::runtime;
using fp4moe::Result;
using fp4moe::checkpoint::Checkpoint;
using fp4moe::moe::dense_rows;
using fp4moe::tensor::DType;

namespace {

void require(const auto& result) {
  if (result) return;
  std::fprintf(stderr, "%s\n", text(result.why()).c_str());
  std::exit(static_cast<int>(result.why().code));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Result<Checkpoint> checkpoint = Checkpoint::open(argv[1]);
  require(checkpoint);
  runtime::LayerOptions options;
  options.backend_request.backend = argv[2];
  auto layer = runtime::MoeLayer::create(*checkpoint, 0, options);
  require(layer);
  require(layer->load());     // any dialect, straight into the backend's layout
  require(layer->process());  // handed to an engine; load and process again whenever weights change

  const auto& shape = checkpoint->layers()[0].shape;
  const auto x = runtime::seeded_input(16, shape.hidden, 1);
  require(x);
  const auto routed = runtime::route_for(*x, layer->facts(), runtime::finder(*checkpoint), 1);
  require(routed);
  const auto logits = dense_rows(std::span(routed->logits), DType::f32, 16, shape.experts);
  std::vector<float> out(16 * shape.hidden);
  require(layer->run({.x = x->rows(), .logits = logits},
                     dense_rows(std::span(out), DType::f32, 16, shape.hidden)));
  std::printf("%s: %g %g %g ...\n", routed->how.c_str(), double{out[0]}, double{out[1]},
              double{out[2]});
}
