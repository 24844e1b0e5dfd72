#include "fp4moe/tensor/files/mapped_file.hpp"

#include <cerrno>
#include <cstdint>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fp4moe::tensor {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

std::uintptr_t page_size() { return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)); }

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

void advise(std::uintptr_t begin, std::uintptr_t end, int advice) {
  // Advice only: where the kernel does not take it, reading still works.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must be refused, not waited for.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return system_error("file.open", "cannot open", errno).in(path);
  struct stat status {};
  if (fstat(file.fd, &status) != 0)
    return system_error("file.open", "cannot look at", errno).in(path);
  if (!S_ISREG(status.st_mode))
    return invalid("file.not_regular", "cannot be mapped")
        .in(path)
        .expects("a regular file", kind_of(status.st_mode));
  MappedFile mapped;
  mapped.path_ = path;
  if (status.st_size == 0) return mapped;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return system_error("file.map", "cannot map", errno).in(path);
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr)
    munmap(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data_)), size_);
}

void MappedFile::drop(std::span<const std::byte> part) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const auto first = reinterpret_cast<std::uintptr_t>(data_);
  const std::uintptr_t page = page_size();
  if (begin < first || begin + part.size() > first + size_) return;  // not of this file
  // A last page that is only partly file is wholly inside when the part reaches the file's end.
  const bool reaches_end = begin + part.size() == first + size_;
  const std::uintptr_t end = begin + part.size() + (reaches_end ? page - 1 : 0);
  advise((begin + page - 1) / page * page, end / page * page, MADV_DONTNEED);
}

void MappedFile::prefetch(std::span<const std::byte> part) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const auto first = reinterpret_cast<std::uintptr_t>(data_);
  if (part.empty() || begin < first || begin + part.size() > first + size_) return;
  advise(begin / page_size() * page_size(), begin + part.size(), MADV_WILLNEED);
}

}  // namespace fp4moe::tensor
