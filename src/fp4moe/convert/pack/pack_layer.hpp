// A layer of a checkpoint, or of memory, into memory that belongs to the caller. The result depends
// on the source alone: whatever the memory held before, however many threads work, and as often as
// it is done. So a reload is the same call with the same targets.
//
//   Result<LayerJob> job = layer_job(checkpoint, number, recipe);
//   Result<LayerPacker> packer = LayerPacker::make(*recipe.layout, job->problem);
//   pack_layer(*job, *packer, targets);          // all of it
//   pack_expert(*job, *packer, 7, targets);      // later: one expert again
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/progress.hpp"
#include "fp4moe/convert/pack/layer_job.hpp"
#include "fp4moe/convert/pack/layer_packer.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::convert {

// An expert in work: its reader, and buffers for the results.
struct Lane {
  std::unique_ptr<checkpoint::LayerReader> reader{};
  tensor::Buffer buffer{};
};

// Calls work(position, view, lane) for every expert of the job, on up to `threads` threads. Pages
// of the source are released behind it; an interrupt is noticed between experts.
using ExpertWork = std::function<Result<Done>(std::size_t, const checkpoint::ExpertView&, Lane&)>;
Result<Done> for_each_expert(const LayerJob& job, std::size_t threads, const ExpertWork& work);

// Notes what the packer must know of all experts before the first one is packed.
Result<Done> prepare(const LayerJob& job, LayerPacker& packer, std::size_t threads);

struct PackOptions {
  std::size_t threads = 1;
  PackPath path = PackPath::fast;
  checkpoint::ProgressFunction progress{};  // packed bytes
};

// targets[t]: the whole memory of packer.tensors()[t], which is of `bytes` bytes. Errors: those of
// the reader and the packer, convert.targets (memory of another size).
Result<Done> pack_layer(const LayerJob& job, LayerPacker& packer,
                        std::span<const std::span<std::byte>> targets,
                        const PackOptions& options = {});

// Expert number `position` of the rank, into its part of the same memory, and the small tensors of
// all experts anew. Other experts' bytes are not touched. The packer has been through pack_layer or
// prepare(); where it needs_all_experts() and the source's scales changed since, pack the layer.
Result<Done> pack_expert(const LayerJob& job, LayerPacker& packer, std::size_t position,
                         std::span<const std::span<std::byte>> targets);

}  // namespace fp4moe::convert
