// A converted folder back into the checkpoint it was made from: the same files with the same bytes.
// Their frames (headers, padding) were kept, so they are set up first and opened as the checkpoint
// they will be; then every tensor is filled in. Of a split model all ranks are needed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::convert {

struct UnconvertOptions {
  std::size_t threads = 1;
  bool accept_losses = false;
  checkpoint::ProgressFunction progress{};
};

struct UnconvertReport {
  std::string dialect{};
  std::uint64_t layers = 0, experts = 0;  // experts of all layers
  std::uint64_t bytes = 0;                // of the checkpoint's files
  std::size_t files = 0;
  double seconds = 0;
  bool is_exact = true;
  std::vector<std::string> losses{};  // where it is not
};

// Errors: unconvert.ranks (ranks are missing, twice there, or of different conversions),
// unconvert.experts_only, unconvert.losses (what came back is not what was converted, and
// accept_losses is not set), unconvert.blocks, converted.* (checksums are checked on the way),
// folder.exists, file.disk_full.
Result<UnconvertReport> unconvert(std::span<const std::string> folders, const std::string& out,
                                  const UnconvertOptions& options = {});

// Bytes of the folders' tensors, for progress.
Result<std::uint64_t> unconvert_bytes(std::span<const std::string> folders);

}  // namespace fp4moe::convert
