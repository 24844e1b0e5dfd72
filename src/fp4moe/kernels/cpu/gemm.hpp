// GEMMs of FP4 weights and activations, the inner loop of the CPU engine: plain declarations,
// includable from ISA files.
//
// Activations are integers: a row is cut into chunks of 64 columns, x = a * step with one float32
// step per chunk and |a| <= 32639 in two bytes ("limbs") or <= 127 in one. Then, with w = twice the
// value of an E2M1 code,
//
//   S     = sum of w * a over a block of 32 (MXFP4) or 16 (NVFP4) columns     exact
//   t     = fma(float(S), block scale, t)       blocks of a chunk ascending, t = 0 at first
//   sum   = fma(t, step / 2, sum)               chunks ascending, sum = 0 at first
//
// in float32, E8M0's 2^-127 (byte 0) taken as 0. S is below 2^24, so float(S) is exact. Every
// kernel computes just this, so all give the same bits: whatever the instruction set, the number of
// threads, or the other tokens.
//
// MXFP4 has two blocks per chunk and powers of two as scales, so t is the float nearest to
// S0 * 2^e0 + S1 * 2^e1. Kernels may therefore shift weights by e0 - e1, while that is at most 3
// (12 << 3 fits a byte), sum the whole chunk in integers and convert once: the same t, as long as
// nothing is subnormal or too large (both scale bytes from kFoldFrom to kFoldTo).
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp4moe::kernels::cpu {

inline constexpr std::size_t kChunk = 64;        // columns that share a step
inline constexpr std::size_t kGemmTokens = 128;  // at most, of one panel
inline constexpr std::size_t kStepTokens = 16;   // steps are padded to a multiple of this
// Above kFoldTo one block can overflow though their sum does not.
inline constexpr int kFoldFrom = 32, kFoldTo = 223, kFoldSteps = 3;

inline constexpr int kLimit[] = {0, 127, 32639};  // of a, by limbs: 127 * 256 + 127 = 32639

// An expert's matrix in tiles (cpu_native layouts): groups of `group` rows, each with its tiles
// along the columns and its scales along the blocks. Nothing past either array may be read.
struct GemmWeights {
  const std::uint8_t* codes = nullptr;   // [groups][blocks][group * 16]
  const std::uint8_t* scales = nullptr;  // [groups][scale_columns][group]
  std::size_t blocks = 0;                // of 32 columns
  std::size_t scale_columns = 0;         // NVFP4: blocks of 16; the last of 32 may have only one
};

// Tokens of one expert. `panel` is the kernel's own form, filled by its `pack_tokens`; steps of
// columns past the row's end and of tokens past `tokens` are 0.
struct GemmTokens {
  const std::byte* panel = nullptr;
  const float* half_steps = nullptr;  // [chunks][padded_tokens(tokens)]
  std::size_t tokens = 0;             // 1 ... kGemmTokens
};
constexpr std::size_t padded_tokens(std::size_t tokens) {
  return (tokens + kStepTokens - 1) / kStepTokens * kStepTokens;
}

struct GemmCall {
  GemmWeights weights{};
  std::size_t first_row = 0, rows = 0;  // multiples of the kernel's group
  GemmTokens tokens{};
  float* sums = nullptr;   // sums[token * stride + row - first_row]
  std::size_t stride = 0;  // at least `rows`
};
using GemmFunction = void (*)(const GemmCall& call) noexcept;

// Writes the integers of one token into the panel: `columns`, a multiple of kChunk, from
// `first_column`, of rows with `chunks` chunks. Different columns and tokens may be written at once
// by different threads; the last token of a panel also fills what pads it.
struct PackTokensCall {
  const std::int16_t* values = nullptr;
  std::size_t first_column = 0, columns = 0;
  std::size_t token = 0, tokens = 0, chunks = 0;
  std::byte* panel = nullptr;
};
using PackTokens = void (*)(const PackTokensCall& call) noexcept;
using PanelBytes = std::size_t (*)(std::size_t tokens, std::size_t chunks) noexcept;

// The GEMM functions of an ISA folder, by limbs - 1.
struct GemmFunctions {
  GemmFunction mxfp4[2], nvfp4[2];
  PackTokens pack_tokens[2];
  PanelBytes panel_bytes[2];
};

}  // namespace fp4moe::kernels::cpu
