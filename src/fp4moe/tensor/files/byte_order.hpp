// Numbers in files: little-endian, at any address. Tensors are handed out as they lie in the file,
// so the machine must be little-endian too.
#pragma once
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

namespace fp4moe::tensor {

static_assert(std::endian::native == std::endian::little,
              "tensors are used as they lie in files, which are little-endian");

// The number at the front of `bytes`, which holds at least sizeof(T) bytes.
template <class T>
T load(std::span<const std::byte> bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

template <class T>
void append(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::size_t end = out.size();
  out.resize(end + sizeof value);
  std::memcpy(out.data() + end, &value, sizeof value);
}

}  // namespace fp4moe::tensor
