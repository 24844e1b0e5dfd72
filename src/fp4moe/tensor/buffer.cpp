#include "fp4moe/tensor/buffer.hpp"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::tensor {
namespace {

Error no_memory(std::size_t bytes) {
  return error(ErrorCode::exhausted, "memory.exhausted",
               "cannot get " + human_bytes(bytes) + " of memory");
}

}  // namespace

Result<Buffer> Buffer::allocate(std::size_t bytes) {
  if (bytes == 0) return Buffer();
  if (bytes > SIZE_MAX / 2) return no_memory(bytes);
  if (bytes < kHugePage) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) return no_memory(bytes);
    std::memset(memory, 0, rounded);
    return Buffer(static_cast<std::byte*>(memory), bytes, 0);
  }
  // One huge page more than asked for, then give back the ends: the start is 2 MiB aligned.
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  // Not MAP_NORESERVE: the kernel then refuses here what it could only kill us for later.
  void* raw = mmap(nullptr, rounded + kHugePage, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return no_memory(bytes);
  auto* begin = static_cast<std::byte*>(raw);
  const std::size_t skip =
      (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (skip != 0) munmap(begin, skip);
  munmap(begin + skip + rounded, kHugePage - skip);
  madvise(begin + skip, rounded, MADV_HUGEPAGE);  // may fail: without huge pages it still works
  return Buffer(begin + skip, bytes, rounded);
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

Buffer::~Buffer() {
  if (mapped_ != 0) {
    munmap(data_, mapped_);
  } else {
    std::free(data_);
  }
}

}  // namespace fp4moe::tensor
