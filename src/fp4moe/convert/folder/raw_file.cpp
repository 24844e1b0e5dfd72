#include "fp4moe/convert/folder/raw_file.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::convert {

Result<RawFile> RawFile::create(const std::string& path, std::uint64_t size) {
  std::error_code code;
  std::filesystem::create_directories(tensor::parent_folder(path), code);
  if (code)
    return tensor::file_error("file.create", "cannot create a folder", code.value()).in(path);
  RawFile file;
  file.path_ = path;
  file.size_ = size;
  file.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file.fd_ < 0) return tensor::file_error("file.create", "cannot create", errno).in(path);
  if (size > INT64_MAX) return tensor::file_error("file.reserve", "cannot reserve", EFBIG).in(path);
  const auto length = static_cast<off_t>(size);
  while (size != 0 && fallocate(file.fd_, 0, 0, length) != 0) {
    if (errno == EINTR) continue;
    const bool cannot = errno == EOPNOTSUPP || errno == ENOSYS;
    if (cannot && ftruncate(file.fd_, length) == 0) break;
    return tensor::file_error("file.reserve", "cannot reserve", errno).in(path);
  }
  return file;
}

RawFile::RawFile(RawFile&& other) noexcept
    : path_(std::move(other.path_)), size_(other.size_), fd_(std::exchange(other.fd_, -1)) {}

RawFile& RawFile::operator=(RawFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

RawFile::~RawFile() {
  if (fd_ >= 0) close(fd_);
}

Result<Done> RawFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  if (offset > size_ || bytes.size() > size_ - offset)
    return usage("file.range", "bytes lie outside the file")
        .in(path_)
        .expects(fmt::format("at most {} bytes", size_),
                 fmt::format("{} bytes at {}", bytes.size(), offset));
  while (!bytes.empty()) {
    const std::size_t want = std::min(bytes.size(), std::size_t{1} << 30);
    const ssize_t done = pwrite(fd_, bytes.data(), want, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EFAULT) return mapping_changed(bytes.data());
    if (done <= 0)
      return tensor::file_error("file.write", "cannot write", done < 0 ? errno : ENOSPC).in(path_);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return Done{};
}

}  // namespace fp4moe::convert
