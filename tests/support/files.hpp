// Bytes by hand, files by hand, in folders that vanish.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/random.hpp"
#include "fp4moe/tensor/files/byte_order.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe::tensor::testing {

using fp4moe::testing::read_text;
using fp4moe::testing::TemporaryFolder;
using fp4moe::testing::write_text;

// A copy of its own exact size, so that the address sanitizer sees every step outside.
inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

inline std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next() >> 56);
  return bytes;
}

// A safetensors file with any header text.
inline std::string safetensors_file(std::string_view header, std::string_view data = {}) {
  std::string file;
  append<std::uint64_t>(file, header.size());
  file += header;
  file += data;
  return file;
}

}  // namespace fp4moe::tensor::testing
