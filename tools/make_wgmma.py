#!/usr/bin/env python3
"""Writes kernels/cuda/sm90/wgmma.cuh: one instruction for each number of token columns. With --check
only says whether it stands there.

Inline assembly wants every register by name, which no template can spell.
"""
import sys
from pathlib import Path

COLUMNS = range(24, 136, 8)  # fewer go by another instruction

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
__device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Registers of a fragment stay as they are up to here.
__device__ inline void keep(Fragment& f) { asm volatile("" : "+r"(f.a0), "+r"(f.a1), "+r"(f.a2), "+r"(f.a3)::"memory"); }

// Where tokens lie in shared memory, in 16 bytes: rows of 128 bytes, eight of them swizzled
// together. The other half of the descriptor never changes.
__device__ inline std::uint32_t describe_tokens(std::uint32_t address) { return address >> 4 | 1u << 16; }

// Kernels for several numbers of columns share one array: the compiler gives every array registers
// of its own.
template <int columns, int room>
__device__ inline void wgmma(float (&d)[room], const Fragment& f, std::uint32_t tokens) {
  static_assert(room >= columns / 2);
"""

TAIL = """
// 64 rows of a record, 16 of them a warp's, times `columns` tokens of a unit: begun, then waited for.
template <int columns, int room>
__device__ inline void multiply_unit(float (&sums)[room], const Fragment& f0, const Fragment& f1, const Fragment& f2, const Fragment& f3, std::uint32_t tokens) {
  wgmma_fence();
  wgmma<columns>(sums, f0, tokens);
  wgmma<columns>(sums, f1, tokens + 2);
  wgmma<columns>(sums, f2, tokens + 4);
  wgmma<columns>(sums, f3, tokens + 6);
  wgmma_commit();
}
__device__ inline void finish_unit(Fragment& f0, Fragment& f1, Fragment& f2, Fragment& f3) {
  wgmma_wait();
  keep(f0);
  keep(f1);
  keep(f2);
  keep(f3);
}
"""


def instruction(columns: int) -> str:
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""  if constexpr (columns == {columns})
  asm volatile("{{ .reg .pred adds; .reg .b64 at; setp.eq.b32 adds, 0, 0; mov.b64 at, {{%{count + 4}, 0x40000040}};\\n"
               "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{sums}}}, "
               "{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, at, adds, 1, 1, 0; }}"
               : {operands}
               : "r"(f.a0), "r"(f.a1), "r"(f.a2), "r"(f.a3), "r"(tokens));
"""


def main():
    path = Path(__file__).parent.parent / "src/fp4moe/kernels/cuda/sm90/wgmma.cuh"
    text = HEAD + "".join(map(instruction, COLUMNS))
    whole = text + "}\n" + TAIL + "// clang-format on\n\n}  // namespace fp4moe::kernels::cuda::sm90\n"
    if "--check" in sys.argv[1:]:
        if path.read_text() != whole:
            sys.exit(f"{path.name} is not what {Path(__file__).name} writes: run it")
        return
    path.write_text(whole)


if __name__ == "__main__":
    main()
