// AMX tiles of a GEMM: sums of up to 16 tokens and 16 rows, of the high and the low bytes of
// integers, for two groups of rows. The compilers' tile intrinsics take literals for registers, so
// each group of rows has its own lines here.
//
//   0, 1 sums of the first group; 2, 3 of the second; 4, 5 tokens; 6 weights of the first, 7 of the
//   second group
#pragma once
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "fp4moe/kernels/cpu/amx/tile_config.hpp"

namespace fp4moe::kernels::cpu::amx {
namespace {

// For tiles of `tokens`.
[[gnu::always_inline]] inline TileConfig tiles_of(std::size_t tokens) {
  TileConfig config;
  for (int tile = 0; tile < 6; ++tile) config.rows[tile] = static_cast<std::uint8_t>(tokens);
  return config;
}

template <std::size_t kLimbs>
[[gnu::always_inline]] inline void load_tokens(const std::int8_t* lines, std::size_t line_bytes) {
  _tile_loadd(4, lines, line_bytes);
  if constexpr (kLimbs == 2) _tile_loadd(5, lines + 64, line_bytes);
}

template <std::size_t kWhich>
[[gnu::always_inline]] inline void load_weights(const std::int8_t* operand) {
  if constexpr (kWhich == 0)
    _tile_loadd(6, operand, 64);
  else
    _tile_loadd(7, operand, 64);
}

// Sums of the loaded tokens and weights, by limb.
template <std::size_t kLimbs, std::size_t kWhich>
[[gnu::always_inline]] inline void mma_tiles() {
  if constexpr (kWhich == 0) {
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    if constexpr (kLimbs == 2) {
      _tile_zero(1);
      _tile_dpbssd(1, 5, 6);
    }
  } else {
    _tile_zero(2);
    _tile_dpbssd(2, 4, 7);
    if constexpr (kLimbs == 2) {
      _tile_zero(3);
      _tile_dpbssd(3, 5, 7);
    }
  }
}

struct TileSums {
  std::int32_t limbs[2][16][16];  // [limb][token][row]
};

template <std::size_t kLimbs, std::size_t kWhich>
[[gnu::always_inline]] inline void store_tiles(TileSums& sums) {
  if constexpr (kWhich == 0) {
    _tile_stored(0, sums.limbs[0], 64);
    if constexpr (kLimbs == 2) _tile_stored(1, sums.limbs[1], 64);
  } else {
    _tile_stored(2, sums.limbs[0], 64);
    if constexpr (kLimbs == 2) _tile_stored(3, sums.limbs[1], 64);
  }
}

}  // namespace
}  // namespace fp4moe::kernels::cpu::amx
