// The references of all GEMM kernels: one row and one token at a time, codes found by the layouts'
// formulas.
#include "fp4moe/kernels/cpu/portable/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/e8m0.hpp"

namespace fp4moe::kernels::cpu::portable {
namespace {

constexpr std::size_t kBlock = 32;
constexpr std::int32_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct ArmTile {
  static constexpr std::size_t kRows = 4;
  static constexpr std::size_t offset(std::size_t n, std::size_t k) {
    return k / 8 % 2 + 2 * (k % 8) + 16 * (n % 2) + 32 * (k / 16) + 64 * (n / 2);
  }
};
struct X86Tile {
  static constexpr std::size_t kRows = 16;
  static constexpr std::size_t offset(std::size_t n, std::size_t k) {
    return k / 4 % 2 + 2 * (k % 4) + 8 * n + 128 * (k / 8);
  }
};

struct Mxfp4 {
  static constexpr std::size_t kColumns = 32;
  static float scale(std::uint8_t byte) { return byte == 0 ? 0.0f : formats::E8m0::decode(byte); }
};
struct Nvfp4 {
  static constexpr std::size_t kColumns = 16;
  static float scale(std::uint8_t byte) { return formats::E4m3fn::decode(byte); }
};

template <class Tile>
void unpack_row(const std::uint8_t* group, std::size_t row, std::size_t blocks,
                std::int32_t* doubled) {
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::uint8_t* tile = group + b * Tile::kRows * 16;
    for (std::size_t k = 0; k < kBlock; ++k) {
      const std::size_t offset = Tile::offset(row, k);
      doubled[b * kBlock + k] = kDoubled[(tile[offset / 2] >> (offset % 2 * 4)) & 15];
    }
  }
}

// Columns one token has in a panel: int16 after int16.
template <class Tile, class Format>
void gemm(const GemmCall& call) noexcept {
  const GemmWeights& weights = call.weights;
  const std::size_t blocks = weights.blocks, chunks = (blocks + 1) / 2;
  const std::size_t steps = padded_tokens(call.tokens.tokens);
  const auto* panel = reinterpret_cast<const std::int16_t*>(call.tokens.panel);
  constexpr std::size_t kMax = 256;  // columns unpacked at once
  std::int32_t doubled[kMax];
  for (std::size_t r = 0; r < call.rows; ++r) {
    const std::size_t row = (call.first_row + r) % Tile::kRows;
    const std::size_t group = (call.first_row + r) / Tile::kRows;
    const std::uint8_t* codes = weights.codes + group * blocks * Tile::kRows * 16;
    const std::uint8_t* scales = weights.scales + group * weights.scale_columns * Tile::kRows;
    for (std::size_t t = 0; t < call.tokens.tokens; ++t) call.sums[t * call.stride + r] = 0;
    for (std::size_t begin = 0; begin < chunks; begin += kMax / kChunk) {
      const std::size_t end = std::min(chunks, begin + kMax / kChunk);
      const std::size_t held = std::min(blocks, 2 * end) - 2 * begin;
      unpack_row<Tile>(codes + 2 * begin * Tile::kRows * 16, row, held, doubled);
      for (std::size_t t = 0; t < call.tokens.tokens; ++t) {
        const std::int16_t* token = panel + t * chunks * kChunk + begin * kChunk;
        float sum = call.sums[t * call.stride + r];
        for (std::size_t c = begin; c < end; ++c) {
          const std::size_t first = (c - begin) * kChunk;
          const std::size_t last = std::min(first + kChunk, held * kBlock);
          float inner = 0;
          for (std::size_t k = first; k < last; k += Format::kColumns) {
            const std::size_t column = (begin * kChunk + k) / Format::kColumns;
            if (column >= weights.scale_columns) break;
            std::int32_t exact = 0;
            for (std::size_t i = k; i < k + Format::kColumns; ++i) exact += doubled[i] * token[i];
            const float scale = Format::scale(scales[column * Tile::kRows + row]);
            inner = std::fma(static_cast<float>(exact), scale, inner);
          }
          sum = std::fma(inner, call.tokens.half_steps[c * steps + t], sum);
        }
        call.sums[t * call.stride + r] = sum;
      }
    }
  }
}

std::size_t panel_bytes(std::size_t tokens, std::size_t chunks) noexcept {
  return tokens * chunks * kChunk * sizeof(std::int16_t);
}

void pack_tokens(const PackTokensCall& call) noexcept {
  std::byte* row = call.panel + panel_bytes(call.token, call.chunks);
  std::memcpy(row + call.first_column * sizeof(std::int16_t), call.values,
              call.columns * sizeof(std::int16_t));
}

// One limb or two: the references hold whole integers, so it makes no difference.
template <class Tile>
constexpr GemmFunctions kFunctions{{gemm<Tile, Mxfp4>, gemm<Tile, Mxfp4>},
                                   {gemm<Tile, Nvfp4>, gemm<Tile, Nvfp4>},
                                   {pack_tokens, pack_tokens},
                                   {panel_bytes, panel_bytes}};

}  // namespace

const GemmFunctions kArmGemm = kFunctions<ArmTile>;
const GemmFunctions kX86Gemm = kFunctions<X86Tile>;

}  // namespace fp4moe::kernels::cpu::portable
