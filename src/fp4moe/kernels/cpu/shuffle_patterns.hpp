// The lane patterns that have kernels, one list for all instruction sets. `pack_matrix_test.cpp`
// fails when a layout's map needs one that is not here.
#pragma once
#include "fp4moe/kernels/cpu/shuffle.hpp"

namespace fp4moe::kernels::cpu {

// clang-format off
inline constexpr LanePattern kShufflePatterns[] = {
    // Bytes.
    {{0, 1, 2, 3, 4}},     // chunks of 16 bytes: AITER weights
    {{0, 1, 2, 5, 6}},     // four columns of four rows: 128 x 4, SM90, gfx1250, n32k4, DeepGEMM
    {{0, 5, 6, 7, 8}},     // 16 rows of one column: Marlin, vLLM's CPU, x86
    {{0, 5, 1, 6, 7}},     // Hopper scales
    {{0, 5, 3, 6, 7}},     // CDNA4 scales
    {{0, 5, 6, 1, 2}},     // Arm tiles
    {{0, 5, 1, 2, 6}},     // native SM90, NVFP4 scales
    // Nibbles.
    {{3, 5, 0, 6, 7}},     // Marlin for 16-bit activations
    {{4, 0, 1, 5, 6}},     // Marlin for 8-bit activations
    {{5, 0, 3, 1, 2}},     // SM90, second generation
    {{5, 0, 6, 7, 8}},     // vLLM's CPU
    {{3, 0, 1, 2, 5}},     // Arm
    {{1, 2, 0, 5, 6}},     // x86 for BF16 GEMMs
    {{2, 0, 1, 5, 6}},     // x86 for INT8 GEMMs
    // Scattered bits.
    {{5, 3, 0, 1, 2}, 1},  // SM90, third generation
    {{5, 3, 0, 4, 6}, 1},  // Hopper values
    {{1, 2, 0, 5, 6}, 1},  // Hopper values for the second tensor-core generation
    {{5, 3, 0, 4, 6}, 2},  // native SM90
};
// clang-format on

}  // namespace fp4moe::kernels::cpu
