#!/usr/bin/env python3
"""Writes kernels/cuda/sm90/wgmma.cuh: one instruction for each number of token columns. With --check
only says whether it stands there.

Inline assembly wants every register by name, which no template can spell.
"""
import sys
from pathlib import Path

COLUMNS = range(24, 200, 8)  # fewer go by another instruction

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
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Registers of a fragment stay as they are up to here.
__device__ inline void keep(Fragment& f) { asm volatile("" : "+r"(f.a0), "+r"(f.a1), "+r"(f.a2), "+r"(f.a3)::"memory"); }

// Where tokens lie in shared memory, in steps of 16 bytes: rows of 128 bytes, eight of them swizzled
// together. The other half of the descriptor never changes.
inline constexpr std::uint32_t kDescribed = 16;
__device__ inline std::uint32_t describe_tokens(std::uint32_t address) { return address / kDescribed | 1u << 16; }
__device__ inline std::uint64_t whole_descriptor(std::uint32_t described) { return 0x4000004000000000u | described; }

// Kernels for several numbers of columns share one array: the compiler gives every array registers
// of its own.
template <int columns, int room>
__device__ inline void wgmma(float (&d)[room], const Fragment& f, std::uint64_t tokens) {
  static_assert(room >= columns / 2);
"""

TAIL = """
// 64 rows of a record, 16 of them a warp's, times `columns` tokens of a unit: begun, then waited for.
template <int columns, int room>
__device__ inline void multiply_unit(float (&sums)[room], const Fragment (&weights)[4], std::uint32_t described) {
  const std::uint64_t tokens = whole_descriptor(described);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) wgmma<columns>(sums, weights[step], tokens + 2 * step);
  wgmma_commit_group();
}
__device__ inline void finish_unit(Fragment (&weights)[4]) {
  wgmma_wait();
#pragma unroll
  for (Fragment& f : weights) keep(f);
}
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
    whole = text + "}\n" + TAIL + "// clang-format on\n\n}  // namespace fp4moe::kernels::cuda::sm90\n"
    if "--check" in sys.argv[1:]:
        if path.read_text() != whole:
            sys.exit(f"{path.name} is not what {Path(__file__).name} writes: run it")
        return
    path.write_text(whole)


if __name__ == "__main__":
    main()
