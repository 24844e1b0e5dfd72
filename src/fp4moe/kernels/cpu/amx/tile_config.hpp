// The sizes of the tile registers, and the steps before they are loaded. Internal linkage:
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

// The compiler does not know what loads of tiles and of this read (g++ 12: 8 bytes of it, or
// nothing): this forces all earlier stores to memory.
[[gnu::always_inline]] inline void written(const void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

}  // namespace
}  // namespace fp4moe::kernels::cpu::amx
