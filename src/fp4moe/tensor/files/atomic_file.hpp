// Files and folders that appear whole or not at all.
//
// AtomicFile writes to a nameless file in the target's folder (or, where the file system has none,
// to a hidden temporary name), flushes, and only then takes the final name. Killed at any moment,
// the target is absent or as it was before. AtomicFolder does the same for a folder of files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

// The name of the file until it is whole. `hidden` works on every file system, but a killed
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

// The treatment of files that a killed run left in the staging folder.
enum class Leftovers : std::uint8_t { remove, keep };

// A folder that is staged as `.NAME.partial` beside its target and takes its name when it is whole.
// The staging folder belongs to this user and is closed to all others; it is used through its
// descriptor, so that a process that renames it or puts a link in its place cannot lead the work
// elsewhere.
class AtomicFolder {
 public:
  AtomicFolder() = default;
  // Errors: folder.name, folder.create, folder.exists (a target with files), folder.busy (another
  // process is writing it), folder.foreign (a staging folder that others own or may write to).
  static Result<AtomicFolder> create(const std::string& path,
                                     Leftovers leftovers = Leftovers::remove);

  AtomicFolder(AtomicFolder&& other) noexcept;
  AtomicFolder& operator=(AtomicFolder&& other) noexcept;
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;
  ~AtomicFolder();

  // The folder to create the files in: the descriptor as a path. Becomes `path` at commit.
  const std::string& staging() const { return staging_; }
  const std::string& staging_name() const { return name_; }  // the same, human-readable
  // An error of work in staging(), with the names that users know.
  Error explain(Error why) const;
  Result<Done> clear(
      const std::set<std::string>& but = {});  // removes all other files in staging()
  // Without commit: whether the staging folder stays, for a later run that takes its leftovers.
  void keep_staging(bool keep) { is_kept_ = keep; }
  Result<Done> commit();

 private:
  Result<bool> open_staging(Leftovers leftovers);
  Result<Done> check_target() const;
  bool is_at(const std::string& name) const;

  std::string path_{};           // the target
  std::string name_{};           // PARENT/.NAME.partial
  std::string staging_{};        // what leads there
  int parent_ = -1, lock_ = -1;  // descriptors: the folder around; staging, locked
  unsigned mode_ = 0;            // of the finished folder
  bool is_kept_ = false, is_whole_ = false;
};

// A folder that several folders are written into, one after the other. One that create() made is
// removed again if it is still empty at the end.
class ParentFolder {
 public:
  ParentFolder() = default;
  // Makes the folder, or takes one that is there and that only this user may change. Errors:
  // folder.create, folder.exists (no folder), folder.foreign.
  static Result<ParentFolder> create(const std::string& path);

  ParentFolder(ParentFolder&& other) noexcept;
  ParentFolder& operator=(ParentFolder&& other) noexcept;
  ParentFolder(const ParentFolder&) = delete;
  ParentFolder& operator=(const ParentFolder&) = delete;
  ~ParentFolder();

 private:
  std::string path_{};
  bool is_new_ = false;
};

}  // namespace fp4moe::tensor
