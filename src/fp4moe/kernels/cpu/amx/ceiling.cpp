// Four sums of 16 x 16 in tiles 0-3, from two left operands in 4 and 5 and two right ones in 6, 7.
#include "fp4moe/kernels/cpu/ceiling.hpp"

#include <immintrin.h>

#include "fp4moe/kernels/cpu/amx/tile_config.hpp"

namespace fp4moe::kernels::cpu::amx {
namespace {

struct alignas(64) TileData {
  std::uint32_t words[16][16];
};

void start(std::uint32_t word) {
  const TileConfig config;
  TileData data;
  for (auto& row : data.words)
    for (std::uint32_t& element : row) element = word;
  written(&config);
  written(&data);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, &data, 64);
  _tile_loadd(5, &data, 64);
  _tile_loadd(6, &data, 64);
  _tile_loadd(7, &data, 64);
}

std::uint32_t finish() {
  TileData sums[4];
  _tile_stored(0, &sums[0], 64);
  _tile_stored(1, &sums[1], 64);
  _tile_stored(2, &sums[2], 64);
  _tile_stored(3, &sums[3], 64);
  _tile_release();
  std::uint32_t total = 0;
  for (const TileData& sum : sums) total += sum.words[0][0];
  return total;
}

}  // namespace

std::uint32_t tdpbssd_multiply_adds(std::size_t rounds) noexcept;
std::uint32_t tdpbf16_multiply_adds(std::size_t rounds) noexcept;

std::uint32_t tdpbssd_multiply_adds(std::size_t rounds) noexcept {
  start(0x03030303);
  for (std::size_t i = 0; i < rounds; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  return finish();
}

std::uint32_t tdpbf16_multiply_adds(std::size_t rounds) noexcept {
  start(0x3F803F80);
  for (std::size_t i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return finish();
}

}  // namespace fp4moe::kernels::cpu::amx
