// Lays the first MoE layer of a checkpoint out for a backend, in memory of its own, and does it
// again: a reload gives the same bytes at the same addresses.
//   pack_layer PATH LAYOUT        e.g. pack_layer model.gguf marlin.mxfp4
#include "fp4moe/convert/pack/pack_layer.hpp"

#include <cstdio>
#include <cstring>
#include <vector>

#include "fp4moe/backends/layouts.hpp"

using fp4moe::Done;
using fp4moe::Error;
using fp4moe::Result;
namespace convert = fp4moe::convert;
namespace checkpoint = fp4moe::checkpoint;

namespace {

int fail(const Error& why) {
  std::fprintf(stderr, "%s\n", text(why).c_str());
  return static_cast<int>(why.code);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::open(argv[1]);
  if (!checkpoint) return fail(checkpoint.why());
  const auto layout = fp4moe::backends::require_layout(argv[2], {});  // the newest generation
  if (!layout) return fail(layout.why());
  const convert::Recipe recipe{.layout = *layout};
  const Result<convert::LayerJob> job = convert::layer_job(*checkpoint, 0, recipe);
  if (!job) return fail(job.why());
  Result<convert::LayerPacker> packer = convert::LayerPacker::make(**layout, job->problem);
  if (!packer) return fail(packer.why());

  std::vector<std::vector<std::byte>> memory;
  for (const convert::PackedTensorSpec& tensor : packer->tensors())
    memory.emplace_back(tensor.bytes);
  const std::vector<std::span<std::byte>> targets(memory.begin(), memory.end());
  if (const Result<Done> packed = convert::pack_layer(*job, *packer, targets); !packed)
    return fail(packed.why());
  const std::vector<std::vector<std::byte>> before = memory;
  if (const Result<Done> again = convert::pack_layer(*job, *packer, targets); !again)
    return fail(again.why());
  for (std::size_t t = 0; t < memory.size(); ++t)
    std::printf("%-10s %-28s %s\n", packer->tensors()[t].name.c_str(),
                fp4moe::tensor::text(packer->tensors()[t].shape).c_str(),
                memory[t] == before[t] ? "reloaded: the same" : "reloaded: different");
}
