// The GEMM kernels of this build, one row per instruction set and tile, and what goes with
// them.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "fp4moe/formats/weight_format.hpp"
#include "fp4moe/kernels/cpu/gemm.hpp"
#include "fp4moe/platform/cpu.hpp"

namespace fp4moe::kernels::cpu {

using platform::CpuFeature;

// How codes lie in a tile of `group` rows and 32 columns; a generation of the cpu_native layouts.
struct TileForm {
  std::string_view generation;
  std::size_t group;  // rows
  // Checkpoint weights (two neighboring columns in a byte) are copied into tiles `run_bytes` at a
  // time, from `rows_together` rows in turn; position i of a tile holds column zipped[i].
  std::size_t run_bytes, rows_together;
  std::array<std::uint8_t, 32> zipped;
};
extern const TileForm kArmTiles, kX86Tiles;

struct GemmKernel {
  std::string_view name;  // <isa>/gemm
  EnumSet<CpuFeature> needs;
  const TileForm* tiles;
  const GemmFunctions* functions;

  GemmFunction gemm(formats::WeightFormat format, std::size_t limbs) const {
    return format == formats::WeightFormat::mxfp4 ? functions->mxfp4[limbs - 1]
                                                  : functions->nvfp4[limbs - 1];
  }
  PackTokens pack_tokens(std::size_t limbs) const { return functions->pack_tokens[limbs - 1]; }
  std::size_t panel_bytes(std::size_t limbs, std::size_t tokens, std::size_t chunks) const {
    return functions->panel_bytes[limbs - 1](tokens, chunks);
  }
};

// Best first; the last row is portable C++ and needs nothing. `pick` of isa.hpp chooses.
std::span<const GemmKernel> gemm_kernels();

// The portable reference of a kernel: same tiles, same sums.
const GemmKernel& gemm_reference(const TileForm& tiles);

// Rows as checkpoints hold them. If gate and up are apart, `odd_codes` and `odd_scales` are the up
// matrix's, and rows of both alternate; otherwise they are null.
struct GemmRows {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  const std::uint8_t* odd_codes = nullptr;
  const std::uint8_t* odd_scales = nullptr;
  std::size_t code_stride = 0, scale_stride = 0;  // bytes from row to row
  std::size_t rows = 0;                           // in all
  std::size_t columns = 0;                        // a multiple of the format's block
  std::size_t block = 32;                         // columns of a scale
};
// Rows [first, first + count) as tiles in the caller's memory; rows past the end are zeros.
void cut_tiles(const TileForm& tiles, const GemmRows& rows, std::size_t first, std::size_t count,
               std::uint8_t* codes, std::uint8_t* scales) noexcept;

}  // namespace fp4moe::kernels::cpu
