// A checkpoint into a backend's layout, file by file in a staging folder that takes its name when
// all is there. Killed at any moment, the target is absent; with `resume` the next run goes on
// after the last finished file and gives the same bytes as one that was never disturbed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/folder/folder_plan.hpp"

namespace fp4moe::convert {

struct ConvertOptions {
  std::size_t threads = 1;
  std::uint64_t max_memory = 0;  // bytes; 0: no limit
  bool resume = false;
  // A finished folder of another rank of the model: files of other tensors that would be the same
  // are links to its own, where the file system has them.
  std::string sibling{};
  checkpoint::ProgressFunction progress{};
};

struct ConvertReport {
  std::uint64_t layers = 0, experts = 0;
  std::uint64_t expert_bytes = 0, other_bytes = 0;  // of the folder
  std::size_t files = 0, resumed_files = 0;         // safetensors; found finished and sound
  std::size_t damaged_files = 0;                    // found finished and not sound: made again
  std::size_t linked_files = 0;                     // the sibling's
  std::size_t threads = 0;                          // that memory allowed
  double seconds = 0;
  std::vector<std::string> losses{};    // what cannot be undone, each sentence once
  std::vector<std::string> warnings{};  // what the kernel will compute otherwise
};

// Errors: convert.memory, convert.resume, convert.source_changed, those of plan_folder, of readers
// and packers, folder.exists, folder.busy, file.disk_full, interrupted.
Result<ConvertReport> convert_folder(const checkpoint::Checkpoint& checkpoint, FolderPlan plan,
                                     const std::string& out, const ConvertOptions& options = {});

}  // namespace fp4moe::convert
