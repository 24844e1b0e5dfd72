// The maps that backends' layouts are made of. Those that changed over time, or that depend on how
// their kernel is launched, take what changed as a parameter.
#pragma once
#include <cstdint>

#include "fp4moe/layout/index_map.hpp"

namespace fp4moe::layout {

// Rows one after another; columns padded to a multiple.
Map plain(std::uint32_t pad_cols = 1);

// Marlin: 4-bit tiles for 16-bit activations (16 k x 64 n) and for 8-bit ones (32 k x 32 n). Words
// of 32 bits, [k / 16, 2 n].
Map marlin_w4a16();
Map marlin_w4a8();
// Scales, transposed: an 8 x 8 transposition of every 64 columns, its middle bits exchanged so that
// the kernel's unpacking puts them back; without that exchange; and the single permutation of 32,
// plain or exchanged likewise, which is used where all of k is one group.
Map marlin_scales();
Map marlin_scales_grouped();
Map marlin_scales_single();
Map marlin_scales_single_exchanged();

// Block scales as SM100's tensor cores read them: tiles of 128 rows by 4 columns, 512 bytes, in
// which the four groups of 32 rows interleave. Columns are padded to a multiple.
Map scales_128x4(std::uint32_t pad_cols = 4);

// FlashInfer's weights for SM90's mixed-input kernels: fragments of 16 x 16 in nibbles (generation
// 2) or with scattered bits (generation 3).
Map sm90_weights(bool scattered);
Map sm90_scales();         // [columns / 4, 4 rows]
Map sm90_scales_folded();  // generation 3: [rows / 64, columns / 4, 16, 16]

// Triton. Pads are in rows and bytes.
struct Pads {
  std::uint32_t rows = 1, bytes = 1;
};
Map triton_strided(Element element = Element::byte);
Map triton_hopper_value(unsigned mma_version, Pads pads);
Map triton_hopper_scale(std::uint32_t warps, std::uint32_t pad_cols = 2);
Map triton_blackwell_value(bool padding_is_unset = false);
Map triton_blackwell_value_shuffled(std::uint32_t block_k = 128, std::uint32_t block_n = 256);
Map triton_blackwell_scale();
Map triton_cdna4_scale(bool pads);
Map triton_gfx1250_scale(std::uint64_t columns);

// AITER and CK: 16 x 16-byte tiles; scales as CDNA4 reads them. `pads`: columns are filled up to a
// multiple of 8 with scale 1.
Map aiter_weights(std::uint32_t need_bytes = 64);
Map aiter_scales(bool pads);
Map aiter_scales_all_experts();  // rows of all experts together, padded to 256 x 8
Map aiter_scales_n32k4();

// vLLM's CPU kernels: blocks of 32 rows, nibbles of two rows in a byte.
Map vllm_cpu_weights();
Map vllm_cpu_scales();

// DeepGEMM: four scales in a word, words of a column together.
Map deepgemm_scales();

// The project's own, see docs/layouts/native_sm90.mxfp4.md and cpu_native.mxfp4.md. Both
// parts of native_sm90 lie in one tensor of records.
Map native_sm90_codes(std::uint32_t block);
Map native_sm90_scales(std::uint32_t block);
Map cpu_arm_codes();
Map cpu_arm_scales(std::uint32_t block);
enum class X86Form : std::uint8_t { bf16, int8 };
Map cpu_x86_codes(X86Form form);
Map cpu_x86_scales(std::uint32_t block);

}  // namespace fp4moe::layout
