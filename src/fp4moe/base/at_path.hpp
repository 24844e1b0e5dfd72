// The kind of thing at a path, with links followed.
#pragma once
#include <cstdint>
#include <string>

namespace fp4moe {

enum class AtPath : std::uint8_t {
  nothing,
  folder,
  file,     // or a device, a pipe, ...
  unknown,  // it may not be looked at
};
AtPath at_path(const std::string& path);

}  // namespace fp4moe
