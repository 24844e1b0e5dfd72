#include "fp4moe/tensor/files/atomic_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::tensor {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kMode = 0666;  // less the umask
constexpr std::string_view kHiddenEnd = ".partial";
constexpr int kNames = 1000;  // hidden names tried before giving up

// The prefix of hidden names beside `path`; cut, so that they are no longer than names may be.
std::string hidden_front(const std::string& path) {
  return "." + last_component(path).substr(0, 200) + ".";
}

// The hidden name number `attempt` beside `path`.
std::string hidden_name(const std::string& path, int attempt) {
  return parent_folder(path) + "/" + hidden_front(path) + std::to_string(getpid()) + "-" +
         std::to_string(attempt) + std::string(kHiddenEnd);
}

// A hidden file of this target without a lock belongs to a process that was killed.
void remove_stale(const std::string& path) {
  const std::string front = hidden_front(path);
  std::vector<std::string> names;
  add_names_in(parent_folder(path), names);
  for (const std::string& name : names) {
    if (!name.starts_with(front) || !name.ends_with(kHiddenEnd)) continue;
    const std::string hidden = parent_folder(path) + "/" + name;
    const int fd = open(hidden.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    struct stat status {};
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
      unlink(hidden.c_str());
    close(fd);
  }
}

// Calls make(name) with hidden names until one is free; the name, or empty with errno set.
template <class Make>
std::string take_hidden_name(const std::string& path, const Make& make) {
  for (int attempt = 0; attempt < kNames; ++attempt) {
    std::string name = hidden_name(path, attempt);
    if (make(name)) return name;
    if (errno != EEXIST) break;
  }
  return {};
}

int open_nameless(const std::string& path) {
  const int fd = open(parent_folder(path).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode);
  if (fd < 0) return -1;
  // Without /proc the file could never be given a name.
  if (access(descriptor_link(fd).c_str(), F_OK) == 0) return fd;
  close(fd);
  return -1;
}

// Space now rather than a surprise later. False with errno set.
bool reserve(int fd, std::uint64_t size) {
  if (size == 0) return true;
  if (size > INT64_MAX) {
    errno = EFBIG;
    return false;
  }
  const auto length = static_cast<off_t>(size);
  while (fallocate(fd, 0, 0, length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP && errno != ENOSYS) return false;
    return ftruncate(fd, length) == 0;  // this file system cannot reserve
  }
  return true;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::string& path, std::uint64_t size,
                                      TemporaryName name) {
  struct stat status {};
  const bool exists = lstat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT)
    return file_error("file.create", "cannot create a file here", errno).in(path);
  if (last_component(path).empty() ||
      (exists && !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)))
    return usage("file.not_regular", "cannot be replaced by a file")
        .in(path)
        .expects("a regular file or a free name", "something else of this name");
  remove_stale(path);
  AtomicFile file;
  file.path_ = path;
  if (name == TemporaryName::none_if_possible) file.fd_ = open_nameless(path);
  if (file.fd_ < 0)
    file.temporary_ = take_hidden_name(path, [&file](const std::string& hidden) {
      file.fd_ = open(hidden.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
      return file.fd_ >= 0;
    });
  if (file.fd_ < 0) return file_error("file.create", "cannot create a file here", errno).in(path);
  flock(file.fd_, LOCK_EX | LOCK_NB);  // a sign of life; not needed for correctness
  if (!reserve(file.fd_, size)) return file_error("file.reserve", "cannot reserve", errno).in(path);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  return *this;
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Result<Done> AtomicFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  constexpr std::size_t kChunk = std::size_t{1} << 30;  // one call writes at most 2 GiB
  if (fd_ < 0) return usage("file.closed", "the file is already whole").in(path_);
  while (!bytes.empty()) {
    const std::size_t want = std::min(bytes.size(), kChunk);
    const ssize_t done = pwrite(fd_, bytes.data(), want, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EFAULT) return mapping_changed(bytes.data());
    if (done <= 0)
      return file_error("file.write", "cannot write", done < 0 ? errno : ENOSPC).in(path_);
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return Done{};
}

Result<Done> AtomicFile::commit() {
  if (fd_ < 0) return usage("file.closed", "the file is already whole").in(path_);
  if (Result<Done> same = check_mappings(); !same) return same;
  if (!flush(fd_)) return file_error("file.flush", "cannot flush", errno).in(path_);
  const bool nameless = temporary_.empty();
  const std::string source = nameless ? descriptor_link(fd_) : temporary_;
  const auto link_to = [&source](const std::string& name) {
    return linkat(AT_FDCWD, source.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  // A free name is taken in one step; a taken one is replaced through a hidden name.
  const bool named = nameless && link_to(path_);
  if (!named) {
    if (nameless) {
      if (errno == EEXIST) temporary_ = take_hidden_name(path_, link_to);
      if (temporary_.empty())
        return file_error("file.commit", "cannot name the file", errno).in(path_);
    }
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
      return file_error("file.commit", "cannot name the file", errno).in(path_);
    temporary_.clear();
  }
  const int closed = close(std::exchange(fd_, -1));
  if (closed != 0) return named_but("file.flush", "it cannot be closed", errno).in(path_);
  if (!flush_folder(parent_folder(path_)))
    return named_but("file.flush", "its folder cannot be flushed", errno).in(path_);
  return Done{};
}

Result<Done> write_file(const std::string& path, std::span<const std::byte> bytes) {
  Result<AtomicFile> file = AtomicFile::create(path, bytes.size());
  if (!file) return file.why();
  if (Result<Done> written = file->write(0, bytes); !written) return written;
  return file->commit();
}

}  // namespace fp4moe::tensor
