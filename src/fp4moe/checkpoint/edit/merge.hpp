// Merges a LoRA adapter into a checkpoint: W' = W + scale * B A for every expert it changes,
// quantized again to the checkpoint's own format. Names, shapes, files of other kinds and every
// tensor, expert and projection the adapter does not change keep their bytes.
//
// FP4 is coarse: a change smaller than half a step is lost. The report compares the rounding error
// with the adapter's change, so that one sees what merging costs against running it unmerged.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/checkpoint.hpp"
#include "fp4moe/checkpoint/lora/adapter.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/formats/mxfp4.hpp"
#include "fp4moe/formats/nvfp4.hpp"

namespace fp4moe::checkpoint {

struct MergeOptions {
  formats::Mxfp4Rule mxfp4_rule = formats::Mxfp4Rule::even_rne;
  formats::Nvfp4Rule nvfp4_rule = formats::Nvfp4Rule::reference;
  bool experts_only = false;  // leave out what the adapter changes outside the experts
  std::size_t threads = 1;
  std::uint64_t max_memory = 0;  // bytes; 0: no limit
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  ProgressFunction progress{};
};

// Root mean squares over the matrices that were changed, as shares of that of the exact W'.
struct MergeError {
  double rounding = 0;  // of stored - exact
  double change = 0;    // of the adapter's B A
};

struct MergedLayer {
  std::uint64_t index = 0;
  std::string prefix{};
  std::uint64_t experts = 0;  // that were changed
  std::uint64_t raised = 0;   // global scales that had to grow (NVFP4)
  MergeError error{};
};

struct MergeReport {
  std::string dialect{}, rule{};
  WeightFormat format = WeightFormat::mxfp4;
  std::uint64_t experts = 0, all_experts = 0;  // changed, and of the whole checkpoint
  std::uint64_t raised = 0;
  std::uint64_t changed_bytes = 0, copied_bytes = 0;  // tensors with changed experts, and others
  std::uint64_t shards = 0;
  std::size_t threads = 0;
  double seconds = 0;
  MergeError error{};
  std::vector<MergedLayer> layers{};  // those with changed experts
  std::vector<std::string> notes{};   // what a person should know
};

// The work to be done, as far as headers tell. Errors: merge.nothing,
// merge.other_modules, merge.rule, merge.memory.
Result<MergeReport> plan_merge(const Checkpoint& source, const Adapter& adapter,
                               const MergeOptions& options);

// `adapter` was opened for adapter_targets(source). Errors: those above, merge.not_finite,
// merge.global_scale, those of readers and writers.
Result<MergeReport> merge(const Checkpoint& source, const Adapter& adapter, const std::string& out,
                          const MergeOptions& options);

}  // namespace fp4moe::checkpoint
