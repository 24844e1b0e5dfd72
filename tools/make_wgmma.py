#!/usr/bin/env python3
"""Writes kernels/cuda/sm90/wgmma.cuh: one instruction for each number of token columns.

Inline assembly wants every register by name, which no template can spell.
"""
from pathlib import Path

COLUMNS = [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]

HEAD = """\
// Matrix multiply-accumulate of a warpgroup: 64 rows of weights in registers times `columns` tokens
// in shared memory (16 of their columns, rows of 128 bytes, swizzled), into float32 registers.
// Written by tools/make_wgmma.py.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/weights.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// clang-format off
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
__device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }
// Registers of a fragment stay as they are up to here.
__device__ inline void keep(Fragment& f) { asm volatile("" : "+r"(f.a0), "+r"(f.a1), "+r"(f.a2), "+r"(f.a3)::"memory"); }

// Tokens in shared memory: rows of 128 bytes, eight of them swizzled together.
__device__ inline std::uint64_t describe_tokens(std::uint32_t address) {
  constexpr std::uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (address & 0x3FFFFu) >> 4 | std::uint64_t{1} << 16 | kEightRows << 32 | kSwizzle128 << 62;
}

// Kernels for several numbers of columns share one array: the compiler gives every array registers
// of its own.
template <int columns, int room>
__device__ inline void wgmma(float (&d)[room], const Fragment& f, std::uint64_t tokens) {
  static_assert(room >= columns / 2);
"""


def instruction(columns: int) -> str:
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""  if constexpr (columns == {columns})
  asm volatile("{{ .reg .pred adds; setp.eq.b32 adds, 0, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{sums}}}, "
               "{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, adds, 1, 1, 0; }}"
               : {operands}
               : "r"(f.a0), "r"(f.a1), "r"(f.a2), "r"(f.a3), "l"(tokens));
"""


def main():
    path = Path(__file__).parent.parent / "src/fp4moe/kernels/cuda/sm90/wgmma.cuh"
    text = HEAD + "".join(map(instruction, COLUMNS))
    path.write_text(text + "}\n// clang-format on\n\n}  // namespace fp4moe::kernels::cuda::sm90\n")


if __name__ == "__main__":
    main()
