// What the tests of this room share: folders that vanish, bytes by hand, files by hand.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/random.hpp"
#include "fp4moe/tensor/files/byte_order.hpp"

namespace fp4moe::tensor::testing {

// A fresh folder, removed with all it holds.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const char* base = std::getenv("TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/fp4moe_test.XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

  std::vector<std::string> names() const {  // all of them, hidden ones too
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      found.push_back(entry.path().filename().string());
    return found;
  }

 private:
  std::string path_;
};

inline std::string read_text(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

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
