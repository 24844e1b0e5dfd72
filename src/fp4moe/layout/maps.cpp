#include "fp4moe/layout/maps.hpp"

#include <algorithm>
#include <numeric>

namespace fp4moe::layout {
namespace {

struct Stride {
  std::uint32_t fixed = 0, by_cols = 0, by_rows = 0;
};
constexpr Stride cols(std::uint32_t count) { return {.by_cols = count}; }
constexpr Stride rows(std::uint32_t count) { return {.by_rows = count}; }
constexpr Stride at(std::uint32_t count) { return {.fixed = count}; }

// Digits of rows (n) and columns (k): ((x / divide) % modulo) * stride.
constexpr Digit n(std::uint32_t divide, std::uint32_t modulo, Stride stride) {
  return {Axis::row, divide, modulo, stride.fixed, stride.by_cols, stride.by_rows};
}
constexpr Digit k(std::uint32_t divide, std::uint32_t modulo, Stride stride) {
  return {Axis::col, divide, modulo, stride.fixed, stride.by_cols, stride.by_rows};
}

constexpr Dim kExperts{.experts = true};
constexpr Dim rows_dim(std::uint32_t times = 1, std::uint32_t divide = 1) {
  return {.rows = true, .times = times, .divide = divide};
}
constexpr Dim cols_dim(std::uint32_t times = 1, std::uint32_t divide = 1) {
  return {.cols = true, .times = times, .divide = divide};
}
constexpr Dim of(std::uint32_t extent) { return {.times = extent}; }

}  // namespace

Map plain(std::uint32_t pad_cols) {
  return {.name = "plain", .pad_cols = pad_cols, .digits = {n(1, 0, cols(1)), k(1, 0, at(1))}};
}

Map marlin_w4a16() {
  return {.name = "marlin_w4a16",
          .element = Element::nibble,
          .need_rows = 64,
          .need_cols = 16,
          .digits = {k(8, 2, at(1)), n(8, 2, at(2)), k(1, 2, at(4)), n(16, 4, at(8)),
                     k(2, 4, at(32)), n(1, 8, at(128)), n(64, 0, at(1024)), k(16, 0, rows(16))},
          .dims = {kExperts, cols_dim(1, 16), rows_dim(2)}};
}

Map marlin_w4a8() {
  return {.name = "marlin_w4a8",
          .element = Element::nibble,
          .need_rows = 64,
          .need_cols = 32,
          .digits = {k(16, 2, at(1)), k(1, 4, at(2)), n(8, 4, at(8)), k(4, 4, at(32)),
                     n(1, 8, at(128)), n(32, 0, at(1024)), k(32, 0, rows(32))},
          .dims = {kExperts, cols_dim(1, 16), rows_dim(2)}};
}

Map marlin_scales() {
  return {.name = "marlin_scales",
          .need_rows = 64,
          .digits = {n(16, 2, at(1)), n(8, 2, at(2)), n(32, 2, at(4)), n(1, 8, at(8)),
                     n(64, 0, at(64)), k(1, 0, rows(1))},
          .dims = {kExperts, cols_dim(), rows_dim()}};
}

Map marlin_scales_grouped() {
  return {.name = "marlin_scales_grouped",
          .need_rows = 64,
          .digits = {n(8, 8, at(1)), n(1, 8, at(8)), n(64, 0, at(64)), k(1, 0, rows(1))},
          .dims = {kExperts, cols_dim(), rows_dim()}};
}

Map marlin_scales_single() {
  return {.name = "marlin_scales_single",
          .need_rows = 32,
          .digits = {n(1, 2, at(1)), n(8, 4, at(2)), n(2, 4, at(8)), n(32, 0, at(32)),
                     k(1, 0, rows(1))},
          .dims = {kExperts, cols_dim(), rows_dim()}};
}

Map marlin_scales_single_exchanged() {
  return {.name = "marlin_scales_single_exchanged",
          .need_rows = 32,
          .digits = {n(8, 2, at(1)), n(1, 2, at(2)), n(16, 2, at(4)), n(2, 4, at(8)),
                     n(32, 0, at(32)), k(1, 0, rows(1))},
          .dims = {kExperts, cols_dim(), rows_dim()}};
}

Map scales_128x4(std::uint32_t pad_cols) {
  return {.name = "scales_128x4",
          .pad_rows = 128,
          .pad_cols = pad_cols,
          .digits = {k(1, 4, at(1)), n(32, 4, at(4)), n(1, 32, at(16)), k(4, 0, at(512)),
                     n(128, 0, cols(128))}};
}

Map sm90_weights(bool scattered) {
  // A word holds registers (row / 8, k / 8) of both halves of a pair of k. Nibbles from the lowest:
  // registers 0 and 1 even, 0 and 1 odd, then 2 and 3; scattered words count registers first.
  const std::uint32_t odd = scattered ? 4 : 2, upper = scattered ? 2 : 4;
  return {.name = scattered ? "sm90_weights_g3" : "sm90_weights_g2",
          .element = Element::nibble,
          .need_rows = 16,
          .need_cols = 64,
          .digits = {n(8, 2, at(1)), k(1, 2, at(odd)), k(8, 2, at(upper)), k(2, 4, at(8)),
                     k(32, 2, at(32)), k(64, 0, at(64)), n(1, 8, cols(1)), k(16, 2, cols(8)),
                     n(16, 0, cols(16))},
          .dims = {kExperts, rows_dim(), cols_dim(1, 2)},
          .code = scattered ? &kHopperCode : nullptr};
}

Map sm90_scales() {
  return {.name = "sm90_scales",
          .need_cols = 4,
          .digits = {k(1, 4, at(1)), n(1, 0, at(4)), k(4, 0, rows(4))},
          .dims = {kExperts, cols_dim(1, 4), rows_dim(4)}};
}

Map sm90_scales_folded() {
  return {.name = "sm90_scales_folded",
          .need_rows = 64,
          .need_cols = 4,
          .digits = {k(1, 4, at(1)), n(16, 4, at(4)), n(1, 16, at(16)), k(4, 0, at(256)),
                     n(64, 0, cols(64))},
          .dims = {kExperts, rows_dim(1, 64), cols_dim(1, 4), of(16), of(16)}};
}

Map triton_strided(Element element) {
  return {.name = "triton_strided",
          .element = element,
          .digits = {n(1, 0, cols(1)), k(1, 0, at(1))},
          .is_column_major = true};
}

Map triton_hopper_value(unsigned mma_version, Pads pads) {
  Map result{.name = mma_version == 3 ? "hopper_value" : "hopper_value_mma2",
             .element = Element::nibble,
             .pad_rows = pads.rows,
             .pad_cols = 2 * pads.bytes,
             .dims = {kExperts, rows_dim(1, 4), cols_dim(2)},
             .is_column_major = true,
             .code = &kHopperCode};
  if (mma_version == 3)
    result.digits = {n(8, 2, at(1)),    k(8, 2, at(2)),   k(1, 2, at(4)),
                     k(16, 4, at(8)),   k(2, 4, at(32)),  n(1, 2, at(128)),
                     k(64, 0, at(256)), n(2, 4, cols(4)), n(16, 0, cols(16))};
  else
    result.digits = {k(2, 4, at(1)),    k(1, 2, at(4)),   n(8, 2, at(8)),
                     k(32, 2, at(16)),  k(8, 4, at(32)),  n(1, 2, at(128)),
                     k(64, 0, at(256)), n(2, 4, cols(4)), n(16, 0, cols(16))};
  return result;
}

Map triton_hopper_scale(std::uint32_t warps, std::uint32_t pad_cols) {
  return {.name = "hopper_scale",
          .pad_rows = 32 * warps,
          .pad_cols = pad_cols,
          .digits = {n(8, 2, at(1)), k(1, 2, at(2)), n(1, 8, at(4)), n(16 * warps, 2, at(32)),
                     k(2, 0, at(64)), n(16, warps, cols(32)), n(32 * warps, 0, cols(32 * warps))},
          .dims = {kExperts, rows_dim(1, 32), cols_dim(32)},
          .is_column_major = true};
}

Map triton_blackwell_value(bool padding_is_unset) {
  Map result = plain(128);
  result.name = "blackwell_value";
  result.is_column_major = true;
  result.padding_is_unset = padding_is_unset;
  return result;
}

Map triton_blackwell_value_shuffled(std::uint32_t block_k, std::uint32_t block_n) {
  const std::uint32_t bytes = block_k / 2;
  return {.name = "blackwell_value_shuffled",
          .pad_rows = block_n,
          .pad_cols = std::lcm(128u, bytes),
          .need_rows = 2,
          .digits = {k(1, bytes, at(1)), n(1, block_n, at(bytes)),
                     n(block_n, 0, at(block_n * bytes)), k(bytes, 0, rows(bytes))},
          .dims = {kExperts, cols_dim(1, bytes), rows_dim(1, block_n), of(block_n), of(bytes)}};
}

Map triton_blackwell_scale() {
  Map result = scales_128x4(8);
  result.name = "blackwell_scale";
  result.dims = {
      of(1), {.experts = true, .rows = true, .divide = 128}, cols_dim(1, 4), of(2), of(256)};
  return result;
}

Map triton_cdna4_scale(bool pads) {
  Map result{.name = "cdna4_scale",
             .digits = {n(16, 2, at(1)), k(4, 2, at(2)), n(1, 16, at(4)), k(1, 4, at(64)),
                        k(8, 0, at(256)), n(32, 0, cols(32))},
             .dims = {kExperts, rows_dim(1, 32), cols_dim(32)},
             .is_column_major = true};
  (pads ? result.pad_rows : result.need_rows) = 32;
  (pads ? result.pad_cols : result.need_cols) = 8;
  return result;
}

Map triton_gfx1250_scale(std::uint64_t columns) {
  const auto width = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(columns, 1, 4));
  return {.name = "gfx1250_scale",
          .pad_rows = 128,
          .pad_cols = width,
          .digits = {k(1, width, at(1)), n(32, 4, at(width)), n(1, 32, at(4 * width)),
                     k(width, 0, at(128 * width)), n(128, 0, cols(128))},
          .dims = {kExperts, rows_dim(1, 128), cols_dim(128)},
          .is_column_major = true};
}

Map aiter_weights(std::uint32_t need_bytes) {
  return {.name = "aiter_weights",
          .need_rows = 16,
          .need_cols = need_bytes,
          .digits = {k(1, 16, at(1)), n(1, 16, at(16)), k(16, 0, at(256)), n(16, 0, cols(16))}};
}

Map aiter_scales(bool pads) {
  Map result = triton_cdna4_scale(false);
  result.name = "aiter_scales";
  result.is_column_major = false;
  result.dims = {{.experts = true, .rows = true}, cols_dim()};
  if (pads) {
    result.need_cols = 1;
    result.pad_cols = 8;
    result.padding = 0x7F;
  }
  return result;
}

Map aiter_scales_all_experts() {
  Map result = triton_cdna4_scale(true);
  result.name = "aiter_scales_all_experts";
  result.is_column_major = false;
  result.pad_rows = 256;
  result.dims = {rows_dim(), cols_dim()};
  result.padding_is_unset = true;
  return result;
}

Map aiter_scales_n32k4() {
  return {.name = "aiter_scales_n32k4",
          .need_rows = 32,
          .need_cols = 4,
          .digits = {k(1, 4, at(1)), n(1, 32, at(4)), k(4, 0, at(128)), n(32, 0, cols(32))},
          .dims = {kExperts, rows_dim(1, 32), cols_dim(32)}};
}

Map vllm_cpu_weights() {
  return {.name = "vllm_cpu_weights",
          .element = Element::nibble,
          .need_rows = 32,
          .need_cols = 32,
          .digits = {n(16, 2, at(1)), k(1, 2, at(2)), n(1, 16, at(4)), k(2, 0, at(64)),
                     n(32, 0, cols(32))},
          .dims = {kExperts, rows_dim(), cols_dim(1, 2)}};
}

Map vllm_cpu_scales() {
  return {.name = "vllm_cpu_scales",
          .need_rows = 32,
          .digits = {n(1, 32, at(1)), k(1, 0, at(32)), n(32, 0, cols(32))},
          .dims = {kExperts, rows_dim(), cols_dim()}};
}

Map deepgemm_scales() {
  return {.name = "deepgemm_scales",
          .pad_rows = 4,
          .pad_cols = 4,
          .digits = {k(1, 4, at(1)), n(1, 0, at(4)), k(4, 0, rows(4))},
          .dims = {kExperts, cols_dim(1, 4), rows_dim()},
          .is_column_major = true,
          .reports_logical_rows = true,
          .padding_is_unset = true};
}

// A record: 64 rows x 64 k, 2048 bytes of codes, then 64 * (64 / block) bytes of scales.
Map native_sm90_codes(std::uint32_t block) {
  const std::uint32_t bytes = 2048 + 64 * (64 / block);
  return {.name = block == 32 ? "native_sm90_codes" : "native_sm90_codes_16",
          .element = Element::nibble,
          .pad_rows = 64,
          .pad_cols = 64,
          .digits = {n(8, 2, at(1)), k(8, 2, at(2)), k(1, 2, at(4)), k(16, 4, at(8)),
                     k(2, 4, at(32)), n(1, 8, at(128)), n(16, 4, at(1024)), k(64, 0, at(2 * bytes)),
                     n(64, 0, cols(bytes / 32))},
          .dims = {kExperts, rows_dim(1, 64), cols_dim(1, 64), of(bytes)},
          .code = &kNativeCode,
          .record = 2 * bytes,
          .of = 4096};
}

// Per 16-row block and pair of rows (g, g + 8): the scales of a k-group for both rows, group after
// group.
Map native_sm90_scales(std::uint32_t block) {
  const std::uint32_t groups = 64 / block, bytes = 2048 + 64 * groups;
  return {.name = block == 32 ? "native_sm90_scales" : "native_sm90_scales_16",
          .pad_rows = 64,
          .pad_cols = groups,
          .digits = {n(8, 2, at(1)), k(1, groups, at(2)), n(1, 8, at(2 * groups)),
                     n(16, 4, at(16 * groups)), k(groups, 0, at(bytes)),
                     n(64, 0, cols(bytes / groups))},
          .dims = {kExperts, rows_dim(1, 64), cols_dim(1, groups), of(bytes)},
          .begin = 2048,
          .record = bytes,
          .of = 64 * groups};
}

// Tiles of 4 rows x 32 k along the rows: a pair of rows and 16 k make 16 bytes, eight k of each row
// in the low nibbles, the next eight in the high ones.
Map cpu_arm_codes() {
  return {.name = "cpu_arm_codes",
          .element = Element::nibble,
          .pad_rows = 8,
          .pad_cols = 32,
          .digits = {k(8, 2, at(1)), k(1, 8, at(2)), n(1, 2, at(16)), k(16, 2, at(32)),
                     n(2, 2, at(64)), k(32, 0, at(128)), n(4, 0, cols(4))},
          .dims = {kExperts, rows_dim(1, 4), cols_dim(1, 32), of(64)}};
}

// The four rows' scales of one k-group together.
Map cpu_arm_scales(std::uint32_t block) {
  const std::uint32_t groups = 32 / block;
  return {.name = "cpu_arm_scales",
          .pad_rows = 8,
          .pad_cols = groups,
          .digits = {n(1, 4, at(1)), k(1, 0, at(4)), n(4, 0, cols(4))},
          .dims = {kExperts, rows_dim(1, 4), cols_dim(1, groups), of(4 * groups)}};
}

// Tiles of 16 rows x 32 k: a row's eight k fill 32 bits of a 64-byte register. For BF16 products
// the even k are in one 16-bit lane and the odd ones in the next; for INT8 products four bytes hold
// k to k + 3 in their low and k + 4 to k + 7 in their high nibbles.
Map cpu_x86_codes(X86Form form) {
  Map result{.name = form == X86Form::bf16 ? "cpu_x86_codes_bf16" : "cpu_x86_codes_int8",
             .element = Element::nibble,
             .pad_rows = 16,
             .pad_cols = 32,
             .dims = {kExperts, rows_dim(1, 16), cols_dim(1, 32), of(256)}};
  if (form == X86Form::bf16)
    result.digits = {k(2, 4, at(1)), k(1, 2, at(4)), n(1, 16, at(8)), k(8, 0, at(128)),
                     n(16, 0, cols(16))};
  else
    result.digits = {k(4, 2, at(1)), k(1, 4, at(2)), n(1, 16, at(8)), k(8, 0, at(128)),
                     n(16, 0, cols(16))};
  return result;
}

Map cpu_x86_scales(std::uint32_t block) {
  const std::uint32_t groups = 32 / block;
  return {.name = "cpu_x86_scales",
          .pad_rows = 16,
          .pad_cols = groups,
          .digits = {n(1, 16, at(1)), k(1, 0, at(16)), n(16, 0, cols(16))},
          .dims = {kExperts, rows_dim(1, 16), cols_dim(1, groups), of(16 * groups)}};
}

}  // namespace fp4moe::layout
