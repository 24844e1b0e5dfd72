#include "fp4moe/kernels/cpu/gemm_list.hpp"

#include <cstring>

#include "fp4moe/kernels/cpu/portable/gemm.hpp"

namespace fp4moe::kernels::cpu {

// clang-format off
#if defined(__aarch64__)
namespace neon         { extern const GemmFunctions kGemm; }
namespace neon_dotprod { extern const GemmFunctions kGemm; }
namespace neon_i8mm    { extern const GemmFunctions kGemm; }
#elif defined(__x86_64__)
namespace avx2         { extern const GemmFunctions kGemm; }
namespace avx512       { extern const GemmFunctions kGemm; }
namespace avx512_vnni  { extern const GemmFunctions kGemm; }
namespace amx          { extern const GemmFunctions kGemm; }
#endif
// clang-format on

namespace {

constexpr std::size_t kTileColumns = 32;

// A run of bytes holds `run_bytes` even columns in its low nibbles and the odd ones in its high
// nibbles; to a tile they are `run_bytes` columns in low nibbles and the next in high ones.
constexpr std::array<std::uint8_t, kTileColumns> zipped(std::size_t run_bytes) {
  std::array<std::uint8_t, kTileColumns> columns{};
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::size_t first = i / (2 * run_bytes) * (2 * run_bytes), within = i % (2 * run_bytes);
    columns[i] = static_cast<std::uint8_t>(first + 2 * (within % run_bytes) + within / run_bytes);
  }
  return columns;
}

}  // namespace

constexpr TileForm kArmTiles{"arm.4x32", 4, 8, 2, zipped(8)};
constexpr TileForm kX86Tiles{"x86.16x32.int8", 16, 4, 16, zipped(4)};

namespace {

using enum platform::CpuFeature;

constexpr GemmKernel kArmReference{"portable/gemm", {}, &kArmTiles, &portable::kArmGemm};
constexpr GemmKernel kX86Reference{"portable/gemm", {}, &kX86Tiles, &portable::kX86Gemm};

// clang-format off
constexpr GemmKernel kGemms[] = {
#if defined(__aarch64__)
    {"neon_i8mm/gemm",    {neon, neon_dotprod, neon_i8mm}, &kArmTiles, &neon_i8mm::kGemm},
    {"neon_dotprod/gemm", {neon, neon_dotprod},            &kArmTiles, &neon_dotprod::kGemm},
    {"neon/gemm",         {neon},                          &kArmTiles, &neon::kGemm},
    kArmReference,
#elif defined(__x86_64__)
    {"amx/gemm",          {avx2, avx512, avx512_vbmi, avx512_vnni, amx_int8}, &kX86Tiles, &amx::kGemm},
    {"avx512_vnni/gemm",  {avx2, avx512, avx512_vbmi, avx512_vnni},           &kX86Tiles, &avx512_vnni::kGemm},
    {"avx512/gemm",       {avx2, avx512},                                     &kX86Tiles, &avx512::kGemm},
    {"avx2/gemm",         {avx2},                                             &kX86Tiles, &avx2::kGemm},
    kX86Reference,
#else
    kArmReference,
#endif
};
// clang-format on

// Even and odd rows of a matrix; alternately those of gate and up if they are apart.
struct SourceRow {
  const std::uint8_t* codes = nullptr;  // null: padding
  const std::uint8_t* scales = nullptr;
};
SourceRow source_row(const GemmRows& rows, std::size_t row) {
  if (row >= rows.rows) return {};
  if (rows.odd_codes == nullptr)
    return {rows.codes + row * rows.code_stride, rows.scales + row * rows.scale_stride};
  const std::size_t at = row / 2;
  const bool odd = row % 2 != 0;
  return {(odd ? rows.odd_codes : rows.codes) + at * rows.code_stride,
          (odd ? rows.odd_scales : rows.scales) + at * rows.scale_stride};
}

}  // namespace

std::span<const GemmKernel> gemm_kernels() { return kGemms; }

const GemmKernel& gemm_reference(const TileForm& tiles) {
  return tiles.group == kArmTiles.group ? kArmReference : kX86Reference;
}

namespace {

// Copies runs of kRunBytes bytes: of a length that the compiler knows, one instruction each.
template <std::size_t kRunBytes>
void cut_row(const TileForm& tiles, const SourceRow& from, std::size_t row_bytes,
             std::size_t blocks, std::uint8_t* to) {
  const std::size_t tile = tiles.group * 16, apart = tiles.rows_together * kRunBytes;
  for (std::size_t b = 0; b < blocks; ++b)
    for (std::size_t p = 0; p < 16 / kRunBytes; ++p) {
      std::uint8_t* at = to + b * tile + p * apart;
      const std::size_t offset = b * 16 + p * kRunBytes;
      if (from.codes == nullptr || offset >= row_bytes)
        std::memset(at, 0, kRunBytes);
      else
        std::memcpy(at, from.codes + offset, kRunBytes);
    }
}

}  // namespace

void cut_tiles(const TileForm& tiles, const GemmRows& rows, std::size_t first, std::size_t count,
               std::uint8_t* codes, std::uint8_t* scales) noexcept {
  const std::size_t blocks = (rows.columns + kTileColumns - 1) / kTileColumns;
  const std::size_t scale_columns = rows.columns / rows.block;
  const std::size_t group = tiles.group;
  for (std::size_t r = 0; r < count; ++r) {
    const SourceRow from = source_row(rows, first + r);
    const std::size_t in = r % group;
    std::uint8_t* to = codes + r / group * blocks * group * 16 +
                       in / tiles.rows_together * tiles.rows_together * 16 +
                       in % tiles.rows_together * tiles.run_bytes;
    (tiles.run_bytes == 8 ? cut_row<8> : cut_row<4>)(tiles, from, rows.columns / 2, blocks, to);
    std::uint8_t* scale = scales + r / group * scale_columns * group + in;
    for (std::size_t s = 0; s < scale_columns; ++s)
      scale[s * group] = from.codes == nullptr ? std::uint8_t{0} : from.scales[s];
  }
}

}  // namespace fp4moe::kernels::cpu
