// How fast do checkpoints come out of files and go into another dialect, against a plain copy?
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/bench/measure.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::bench {

struct FilesOptions {
  std::string path{};     // a checkpoint; empty: one of each dialect is made and removed
  std::string scratch{};  // folder for files that are written
  std::size_t threads = 1;
  std::size_t megabytes = 256;  // how much of the checkpoint's experts is used, about
  double seconds = 10;          // for each source
  EnumSet<platform::CpuFeature> features{};
};

// Measured for one source, each against the plain copy of as many bytes in the same rounds:
//   mmap_read    every byte of the files is read            against memcpy in memory
//   mmap_copy    ... copied into memory                     against memcpy in memory
//   to_memory    experts converted into memory              against memcpy in memory
//   to_file      the checkpoint converted into new files    against copying its files
struct FileResult {
  std::string operation{};
  std::string format{};      // of the weights
  std::string from{}, to{};  // dialects; `to` is empty for reads
  Timing timing{};           // work in bytes
  double copy_gb_per_s = 0;  // of memory or of files

  double share_of_copy() const { return timing.rate() / copy_gb_per_s; }
};

Result<std::vector<FileResult>> bench_files(const FilesOptions& options);

Json to_json(const FileResult& result, std::size_t threads);

}  // namespace fp4moe::bench
