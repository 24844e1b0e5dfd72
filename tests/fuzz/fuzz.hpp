// What the fuzz targets share. A target parses untrusted bytes; it fails by crashing, so a
// broken promise must crash.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fp4moe::fuzz {

inline void require(bool promise) {
  if (!promise) __builtin_trap();
}

// Every error can be shown and matched on.
inline void require_complete(const Error& why, std::string_view family) {
  require(why.code == ErrorCode::invalid_input);
  require(why.id.starts_with(family));
  require(!why.message.empty());
  require(text(why).size() < 4096);
}

// The same for errors of any kind and origin.
inline void require_words(const Error& why) {
  require(why.id.find('.') != std::string::npos && why.id != "internal");
  require(!why.message.empty());
  require(text(why).size() < 65536);
}

// A name from a file that is joined to a folder.
inline void require_inside(std::string_view name) {
  require(!name.empty() && !name.starts_with('/') && name.find('\0') == std::string_view::npos);
  const std::string framed = "/" + std::string(name) + "/";
  require(framed.find("/../") == std::string::npos && framed.find("//") == std::string::npos);
}

inline std::span<const std::byte> bytes(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}
inline std::string_view characters(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fp4moe::fuzz
