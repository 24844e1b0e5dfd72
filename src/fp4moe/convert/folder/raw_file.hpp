// A file of a staging folder that is read while it is still being filled: it has its name and its
// full size from the start. The folder around it is what appears whole or not at all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "fp4moe/base/result.hpp"

namespace fp4moe::convert {

class RawFile {
 public:
  // Makes the folders above it; reserves the disk at once where the file system can.
  static Result<RawFile> create(const std::string& path, std::uint64_t size);

  RawFile(RawFile&& other) noexcept;
  RawFile& operator=(RawFile&& other) noexcept;
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;
  ~RawFile();

  std::uint64_t size() const { return size_; }
  // Any number of threads may write disjoint ranges inside the size.
  Result<Done> write(std::uint64_t offset, std::span<const std::byte> bytes) const;

 private:
  RawFile() = default;

  std::string path_{};
  std::uint64_t size_ = 0;
  int fd_ = -1;
};

}  // namespace fp4moe::convert
