// How large the tile registers are, and what must be done before they are loaded. Internal linkage:
// nothing here may leave a symbol.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cpu::amx {
namespace {

// The layout the CPU prescribes. All eight tiles are whole unless told otherwise.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Loads of tiles and of this do not tell the compiler what they read (g++ 12: 8 bytes of it,
// or nothing): whatever is to be there must be, before.
[[gnu::always_inline]] inline void written(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

}  // namespace
}  // namespace fp4moe::kernels::cpu::amx
