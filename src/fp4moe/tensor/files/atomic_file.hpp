// Files and folders that appear whole or not at all.
//
// AtomicFile writes to a nameless file in the target's folder (or, where the file system has none,
// to a hidden temporary name), flushes, and only then takes the final name. Killed at any moment,
// the target is absent or as it was before. AtomicFolder does the same for a folder of files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

// What the file is called until it is whole. `hidden` works on every file system, but a killed
// process leaves the hidden file behind.
enum class TemporaryName : std::uint8_t { none_if_possible, hidden };

class AtomicFile {
 public:
  AtomicFile() = default;
  // Reserves `size` bytes on disk at once, so that a full disk is noticed before any work.
  static Result<AtomicFile> create(const std::string& path, std::uint64_t size = 0,
                                   TemporaryName name = TemporaryName::none_if_possible);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // without commit: nothing remains

  const std::string& path() const { return path_; }
  // Any number of threads may write disjoint ranges.
  Result<Done> write(std::uint64_t offset, std::span<const std::byte> bytes);
  Result<Done> commit();  // flush, name, flush the folder

 private:
  std::string path_{};       // the final name
  std::string temporary_{};  // empty: the file has no name yet
  int fd_ = -1;
};

// Writes a small file whole.
Result<Done> write_file(const std::string& path, std::span<const std::byte> bytes);

// What becomes of files that a killed run left in the staging folder.
enum class Leftovers : std::uint8_t { remove, keep };

class AtomicFolder {
 public:
  AtomicFolder() = default;
  // Refuses an existing non-empty target, and a target another process is writing.
  static Result<AtomicFolder> create(const std::string& path,
                                     Leftovers leftovers = Leftovers::remove);

  AtomicFolder(AtomicFolder&& other) noexcept;
  AtomicFolder& operator=(AtomicFolder&& other) noexcept;
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  // Where to create the files: becomes `path` at commit.
  const std::string& staging() const { return staging_; }
  Result<Done> clear();  // removes every file in staging()
  // Without commit: whether the staging folder stays, for a later run that takes its leftovers.
  void keep_staging(bool keep) { keeps_ = keep; }
  Result<Done> commit();

 private:
  std::string path_{};
  std::string staging_{};
  int lock_ = -1;
  bool keeps_ = false;
};

}  // namespace fp4moe::tensor
