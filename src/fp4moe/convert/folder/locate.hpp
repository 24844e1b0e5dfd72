// The first element in which two packed experts differ, in words: for failures that a person can
// follow without a debugger.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/convert/pack/layer_packer.hpp"

namespace fp4moe::convert {

struct Difference {
  std::string where{};  // "row 3, column 17 of w13, offset 4711" or "byte 99"
  std::string expected{}, found{};
};

// `tensor` is one of the packer's, the bytes are those of one expert.
Difference locate(const LayerPacker& packer, std::string_view tensor,
                  std::span<const std::byte> expected, std::span<const std::byte> found);
// Bytes that begin at byte `begin` of something larger.
Difference locate_byte(std::span<const std::byte> expected, std::span<const std::byte> found,
                       std::uint64_t begin = 0);

}  // namespace fp4moe::convert
