// Owned memory for tensors: 64-byte aligned; from 2 MiB on page-aligned, huge pages asked for, and
// untouched pages are zero without being resident.
#pragma once
#include <cstddef>
#include <span>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

class Buffer {
 public:
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  Buffer() = default;
  // Zeroed memory; ErrorCode::exhausted when there is none.
  static Result<Buffer> allocate(std::size_t bytes);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  template <class T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), size_ / sizeof(T)};
  }

 private:
  Buffer(std::byte* data, std::size_t size, std::size_t mapped)
      : data_(data), size_(size), mapped_(mapped) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // bytes of the mapping; 0: from the heap
};

}  // namespace fp4moe::tensor
