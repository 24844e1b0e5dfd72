// FP4 codes as GGUF blocks hold them. Canonical bytes pair neighbors (2i, 2i + 1); GGUF pairs
// element i with the one half a group later, and keeps the scales inside:
//
//   MXFP4, 32 values  | scale    | 16 bytes: element j in the low nibble, j + 16 in the high one |
//   NVFP4, 64 values  | 4 scales | 4 x 8 bytes: element j in the low nibble, j + 8 in the high one
//   |
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/kernels/cpu/block_codec.hpp"

namespace fp4moe::checkpoint {

constexpr std::uint64_t gguf_block_elements(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 32 : 64;
}
constexpr std::uint64_t gguf_block_bytes(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 17 : 36;
}

// Whole rows: codes and their scales into blocks and back. Sizes must agree; NVFP4 scales come in
// groups of four and are positive (GGUF's have no sign).
//
// Made once for many rows: asking for the machine's codec between two rows makes the CPU wait
// for all memory the first one reads.
class GgufBlocks {
 public:
  explicit GgufBlocks(WeightFormat format);

  void pack(std::span<const std::byte> codes, std::span<const std::byte> scales,
            std::span<std::byte> blocks) const;
  void unpack(std::span<const std::byte> blocks, std::span<std::byte> codes,
              std::span<std::byte> scales) const;

 private:
  WeightFormat format_;
  void (*pack_)(const kernels::cpu::PackGguf&) noexcept;
  void (*unpack_)(const kernels::cpu::UnpackGguf&) noexcept;
};

}  // namespace fp4moe::checkpoint
