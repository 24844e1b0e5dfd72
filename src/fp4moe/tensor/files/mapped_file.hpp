// A regular file seen as bytes. Pages come in when they are touched and can be released again, so a
// file larger than memory can be walked.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

class MappedFile {
 public:
  MappedFile() = default;
  // Refuses what is not a regular file (folders, pipes, devices). An empty file maps to no bytes.
  static Result<MappedFile> open(const std::string& path);
  // The caller's memory in place of a file; it outlives this. It is read and never touched
  // otherwise: its pages are not dropped, fetched or unmapped.
  static MappedFile of(std::string path, std::span<const std::byte> bytes);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Lets the pages wholly inside `part` of bytes() leave this process's memory; reading them again
  // is legal and brings them back.
  void drop(std::span<const std::byte> part) const;
  // Announces that `part` will be read soon.
  void prefetch(std::span<const std::byte> part) const;

 private:
  std::string path_{};
  std::span<const std::byte> bytes_{};
  std::byte* mapping_ = nullptr;  // bytes_ as the system's calls want it; null: not ours
  WatchedMapping watched_{};
};

}  // namespace fp4moe::tensor
