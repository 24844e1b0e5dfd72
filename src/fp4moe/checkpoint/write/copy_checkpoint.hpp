// A new checkpoint that equals an old one but for a few edits. The rest is streamed; the old one is
// never touched.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

struct NewTensor {
  tensor::TensorSpec spec{};
  std::vector<std::byte> bytes{};
};

struct CheckpointEdits {
  std::vector<NewTensor> put{};       // replaces the tensor of its name, or adds one
  std::vector<std::string> remove{};  // names; each must be there
  std::vector<std::pair<std::string, Json>> documents{};  // e.g. config.json, replaced or added
};

struct CopyOptions {
  std::size_t threads = 1;
  std::uint64_t max_shard_bytes = kDefaultShardBytes;
  bool is_checked = false;  // as CheckpointPlan has it
  ProgressFunction progress{};
};

// The plan of such a copy: the source's tensors in its order, then those added. Entries may be
// taken out of it and the tensors written by hand (CheckpointWriter::write_other).
Result<CheckpointPlan> plan_copy(const tensor::Store& source, const CheckpointEdits& edits,
                                 std::uint64_t max_shard_bytes = kDefaultShardBytes);

// Errors: copy.missing, copy.size, and those of the writer.
Result<Done> copy_checkpoint(const tensor::Store& source, const std::string& out,
                             const CheckpointEdits& edits, const CopyOptions& options = {});

// The small files of a checkpoint's folder (tokenizer, templates, license, ...), without its
// tensors, its index and the documents named. A link that leads out of the folder would publish
// another user's file: store.link. Beside a file that the user named, such links are left out.
Result<std::vector<FileCopy>> companion_files(const tensor::Store& source,
                                              const std::vector<std::string>& without);

// The scales recorded in a checkpoint's metadata; see writer.hpp. Malformed records are refused.
Result<ExactScales> read_exact_scales(const tensor::Store& source);

}  // namespace fp4moe::checkpoint
