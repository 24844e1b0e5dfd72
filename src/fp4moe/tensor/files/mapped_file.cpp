#include "fp4moe/tensor/files/mapped_file.hpp"

#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::tensor {
namespace {

std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

std::string kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// The position of `part` in `whole`, if it lies there. Pointers of different objects have no order,
// numbers do.
struct FileRange {
  std::size_t begin, end;
};
std::optional<FileRange> place_in(std::span<const std::byte> whole,
                                  std::span<const std::byte> part) {
  const auto first = reinterpret_cast<std::uintptr_t>(whole.data());
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  if (part.empty() || begin < first || begin - first > whole.size() ||
      part.size() > whole.size() - (begin - first))
    return std::nullopt;
  return FileRange{begin - first, begin - first + part.size()};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must be refused, not waited for.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return system_error("file.open", "cannot open", errno).in(path);
  struct stat status {};
  if (fstat(file.get(), &status) != 0)
    return system_error("file.open", "cannot stat", errno).in(path);
  if (!S_ISREG(status.st_mode))
    return invalid("file.not_regular", "cannot be mapped")
        .in(path)
        .expects("a regular file", kind_of(status.st_mode));
  MappedFile mapped;
  mapped.path_ = path;
  if (status.st_size == 0) return mapped;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return system_error("file.map", "cannot map", errno).in(path);
  mapped.mapping_ = static_cast<std::byte*>(data);
  mapped.bytes_ = {mapped.mapping_, size};
  mapped.watched_ = WatchedMapping(data, size, path);
  return mapped;
}

MappedFile MappedFile::of(std::string path, std::span<const std::byte> bytes) {
  MappedFile borrowed;
  borrowed.path_ = std::move(path);
  borrowed.bytes_ = bytes;
  return borrowed;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      mapping_(std::exchange(other.mapping_, nullptr)),
      watched_(std::move(other.watched_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(watched_, other.watched_);
  return *this;
}

MappedFile::~MappedFile() {
  if (mapping_ == nullptr) return;
  watched_ = WatchedMapping();  // before the memory can get another owner
  munmap(mapping_, bytes_.size());
}

// The mapping begins at a page, so offsets are rounded as addresses would be. Advice only: where
// the kernel does not take it, reading still works.
void MappedFile::drop(std::span<const std::byte> part) const {
  const std::optional<FileRange> place = place_in(bytes_, part);
  if (!place || mapping_ == nullptr) return;
  const std::size_t page = page_size();
  const std::size_t begin = (place->begin + page - 1) / page * page;
  // The last page is only partly file; it is wholly inside when the part reaches the file's end.
  const std::size_t end = place->end == bytes_.size() ? place->end : place->end / page * page;
  if (begin < end) madvise(mapping_ + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::prefetch(std::span<const std::byte> part) const {
  const std::optional<FileRange> place = place_in(bytes_, part);
  if (!place || mapping_ == nullptr) return;
  const std::size_t begin = place->begin / page_size() * page_size();
  madvise(mapping_ + begin, place->end - begin, MADV_WILLNEED);
}

}  // namespace fp4moe::tensor
