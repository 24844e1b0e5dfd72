// Rows of a checkpoint become weight tiles of native_sm90 (layout/maps.cpp), the same bytes that
// convert/pack/layer_packer.cpp writes. A block packs a weight tile of 64 rows x 64 columns.
//
//   thread 32 b + 4 g + j writes 16 bytes of codes of rows 16 b + g and 16 b + g + 8: one word for
//   each 16 columns, with columns 2 j and 2 j + 1 of their first and of their second eight. Threads
//   with j = 0 also write the scales of both rows.
//
//   role                                                                                       time ─►
//
//   thread       codes of rows g, g + 8 ─► [scale 0, padding: 0] ─► bits of 4 words ─► 16 bytes ─┐ next
//     j = 0      scales of both rows ─► offset or E4M3 ─► bytes behind the codes ────────────────┘ tile
//
// Threads do not wait for each other.
#include "fp4moe/kernels/cuda/sm90/pack/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/layout/word_code.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace {

inline constexpr std::uint32_t kRowCodeBytes = kBlockK / 2;  // of a row of a weight tile
inline constexpr std::uint8_t kZeroScale =
    0xF0;  // NVFP4: stands for 0; the codes of its block are 0

// The source of a row of a weight tile; null: padding.
struct PackRow {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
};

// Gated: eight gate rows alternate with their eight up rows.
__device__ PackRow source_row(const PackParams& p, std::uint32_t row) {
  const bool is_gated = p.second_codes != nullptr;
  const bool is_second = is_gated && row % 16 >= 8;
  const std::uint64_t from = is_gated ? row / 16 * 8 + row % 8 : row;
  if (from >= p.rows) return {};
  return {(is_second ? p.second_codes : p.codes) + from * p.code_stride,
          (is_second ? p.second_scales : p.scales) + from * p.scale_stride};
}

// Byte `byte_index` of each of the 8 words of a row, two codes each. Codes beyond the last column, and
// of NVFP4 blocks whose scale is 0, are 0.
struct PackCodes {
  std::uint32_t bytes[8];
};
__device__ PackCodes load_codes(const PackParams& p, const PackRow& row, std::uint32_t k_block,
                                std::uint32_t byte_index) {
  PackCodes result;
  const std::uint32_t first = k_block * kRowCodeBytes + byte_index, end = p.columns / 2;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t at = first + 4 * i;
    result.bytes[i] = row.codes != nullptr && at < end ? row.codes[at] : 0;
  }
  if (p.is_nvfp4 == 0 || row.scales == nullptr) return result;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; i += 2) {
    const std::uint32_t block = k_block * 4 + i / 2;
    if (block * 16 >= p.columns || row.scales[block] != 0) continue;
    result.bytes[i] = result.bytes[i + 1] = 0;
  }
  return result;
}

// The two codes of a byte, moved to the bits of a word that fragment register `reg` reads.
template <unsigned reg>
__device__ std::uint32_t spread(std::uint32_t byte) {
  constexpr auto kBits = layout::kNativeCode.bits[reg];
  const std::uint32_t pair = (byte & 0xFu) | (byte & 0xF0u) << 12;
  std::uint32_t result = 0;
#pragma unroll
  for (std::uint32_t b = 0; b < 4; ++b) {
    const std::uint32_t own = pair & 0x00010001u << b, by = (kBits[b] - b) % 32;
    result |= __funnelshift_l(own, own, by);
  }
  return result;
}

__device__ std::uint8_t packed_scale(const PackParams& p, std::uint32_t code) {
  if (p.is_nvfp4 == 0) return static_cast<std::uint8_t>(static_cast<int>(code) + 126 - p.offset);
  if (code == 0 || code >= 0x80) return kZeroScale;
  int exponent = static_cast<int>(code >> 3) - 7;
  std::uint32_t fraction = code & 7;
  if (code < 8) {  // subnormal, fraction * 2^-9: normalize
    const int top = 31 - __clz(static_cast<int>(fraction));
    exponent = top - 9;
    fraction = fraction << (3 - top) & 7;
  }
  return static_cast<std::uint8_t>(static_cast<std::uint32_t>(exponent + 9) << 3 | fraction);
}

// The scales of two rows, alternating, for each scale group of columns; 0 in the padding.
__device__ void write_scales(const PackParams& p, const PackRow& low, const PackRow& high,
                             std::uint32_t k_block, std::uint8_t* to) {
  const std::uint32_t block = p.is_nvfp4 != 0 ? 16 : 32, scale_groups = kBlockK / block;
  for (std::uint32_t c = 0; c < scale_groups; ++c) {
    const std::uint32_t at = k_block * scale_groups + c;
    const bool is_real = at * block < p.columns;
    to[2 * c] = is_real && low.scales != nullptr ? packed_scale(p, low.scales[at]) : 0;
    to[2 * c + 1] = is_real && high.scales != nullptr ? packed_scale(p, high.scales[at]) : 0;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kPackThreads)
    FP4MOE_KERNEL(pack)(const __grid_constant__ PackParams p) {
  constexpr layout::WordMix kMix = layout::kNativeCode.mix;
  pdl_launch_dependents();
  pdl_wait();
  const std::uint32_t rows = p.second_codes != nullptr ? 2 * p.rows : p.rows;
  const std::uint32_t m_blocks = max(p.m_blocks, (rows + kBlockM - 1) / kBlockM);
  const std::uint32_t k_blocks = (p.columns + kBlockK - 1) / kBlockK;
  const std::uint32_t bytes = weight_tile_bytes(p.is_nvfp4 != 0);
  const std::uint32_t block = threadIdx.x / 32, g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
  for (std::uint32_t tile_index = blockIdx.x; tile_index < m_blocks * k_blocks;
       tile_index += gridDim.x) {
    const std::uint32_t m_block = tile_index / k_blocks, k_block = tile_index - m_block * k_blocks;
    const PackRow low = source_row(p, m_block * kBlockM + block * 16 + g);
    const PackRow high = source_row(p, m_block * kBlockM + block * 16 + g + 8);
    const PackCodes a = load_codes(p, low, k_block, j), b = load_codes(p, high, k_block, j);
    std::uint32_t words[4];
#pragma unroll
    for (std::uint32_t step = 0; step < 4; ++step)
      words[step] = kMix.mixed(spread<0>(a.bytes[2 * step]) | spread<1>(b.bytes[2 * step]) |
                               spread<2>(a.bytes[2 * step + 1]) | spread<3>(b.bytes[2 * step + 1]));
    std::uint8_t* weight_tile = p.tiles + std::uint64_t{tile_index} * bytes;
    reinterpret_cast<uint4*>(weight_tile)[threadIdx.x] = {words[0], words[1], words[2], words[3]};
    if (j == 0) {
      const std::uint32_t row_bytes = (bytes - kTileCodeBytes) / 32;
      write_scales(p, low, high, k_block,
                   weight_tile + kTileCodeBytes + (block * 8 + g) * row_bytes);
    }
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
