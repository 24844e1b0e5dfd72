// Parameters of the kernel pack: rows of a checkpoint become weight tiles of native_sm90. One
// launch packs one matrix of one expert.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/types.hpp"

namespace fp4moe::kernels::cuda::sm90 {

struct PackParams {
  const std::uint8_t* codes = nullptr;              // [rows, columns / 2], low nibble first
  const std::uint8_t* scales = nullptr;             // [rows, columns / block]
  std::uint64_t code_stride = 0, scale_stride = 0;  // bytes from row to row
  // Gated: `codes` are the gate rows, these the up rows, `rows` of each. Not gated: null.
  const std::uint8_t* second_codes = nullptr;
  const std::uint8_t* second_scales = nullptr;
  std::uint32_t rows = 0, columns = 0;
  std::uint32_t is_nvfp4 = 0;
  std::int32_t offset = 0;        // MXFP4: subtracted from the scale exponents
  std::uint8_t* tiles = nullptr;  // out
  std::uint32_t m_blocks = 0;     // written, zeros behind the last row; at least those of the rows
};

inline constexpr std::uint32_t kPackThreads = 128;  // a block per weight tile
constexpr std::uint32_t pack_blocks(std::uint64_t weight_tiles, std::uint32_t sms) {
  return clamp_blocks(weight_tiles, sms * 16ull);
}

}  // namespace fp4moe::kernels::cuda::sm90
