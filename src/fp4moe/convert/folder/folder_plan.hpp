// The content of a converted folder, known before the first weight is read:
//
//   experts-00003.safetensors   a MoE layer: packer tensors under the layer's prefix
//   others-00001.safetensors    the checkpoint's other tensors
//   source.safetensors          what it takes to make the checkpoint's files again
//   config.json, ...            its other files, copied; some are made: model_files.hpp
//   fp4moe.json                 the manifest
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/convert/folder/manifest.hpp"
#include "fp4moe/convert/folder/source_parts.hpp"
#include "fp4moe/convert/pack/layer_job.hpp"

namespace fp4moe::convert {

struct PlannedLayer {
  LayerJob job{};
  LayerRecord record{};  // without what packing finds out
  std::vector<PackedTensorSpec> tensors{};
  std::uint64_t bytes = 0;
  std::uint64_t expert_bytes = 0, source_expert_bytes = 0;  // of one expert
};

struct PlannedOthers {
  std::string file{};
  std::vector<const tensor::StoredTensor*> tensors{};
};

struct FolderPlan {
  Recipe recipe{};
  Manifest manifest{};  // without what writing finds out
  std::vector<PlannedLayer> layers{};
  std::vector<PlannedOthers> others{};
  SourceParts parts{};
  std::string index{};  // the index through which the source was opened; empty: none
  std::vector<checkpoint::FileCopy> companions{};
  std::vector<checkpoint::FileCopy> kept{};         // files that this folder replaces
  std::string config{};                             // config.json of the folder; empty: none
  std::uint64_t expert_bytes = 0, other_bytes = 0;  // packed; copied
  std::uint64_t kept_bytes = 0;                     // of the source's frames, scalars and index
  std::uint64_t companion_bytes = 0;
  std::uint64_t source_tensors = 0;  // what is known of each stays in memory
  std::uint64_t header_bytes = 0;    // memory for headers and documents of unusual size
  bool unpacks_source = false;       // GGUF: an expert lies in memory twice
};

struct FolderOptions {
  bool experts_only = false;
  std::uint64_t max_shard_bytes = checkpoint::kDefaultShardBytes;
};

// Errors: convert.nothing (no MoE layer), layout.format, scale.input, those of layer_job and
// LayerPacker::make. `path` is what the checkpoint was opened by.
Result<FolderPlan> plan_folder(const checkpoint::Checkpoint& checkpoint, const std::string& path,
                               const Recipe& recipe, const FolderOptions& options = {});

// Memory of a conversion with so many threads: the program and its tables, and for each thread an
// expert as stored, the same unpacked (GGUF), and as packed.
std::uint64_t memory_of(const FolderPlan& plan, std::size_t threads);
// The most threads that fit. Errors: convert.memory, naming what one thread needs. 0: no limit.
Result<std::size_t> threads_within(const FolderPlan& plan, std::size_t threads,
                                   std::uint64_t max_memory);

}  // namespace fp4moe::convert
