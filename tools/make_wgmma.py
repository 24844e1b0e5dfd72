#!/usr/bin/env python3
"""Writes kernels/cuda/sm90/wgmma.cuh and wgmma_e4m3.cuh: one instruction for each number of tokens.
With --check it only checks that the files are up to date.

Inline assembly names every register; no template can do that.
"""
import sys
from pathlib import Path

TOKENS = range(24, 200, 8)  # mma.sync multiplies fewer tokens
E4M3_TOKENS = range(8, 168, 8)

HEAD = """\
// wgmma.mma_async: A is 64 rows of weights in registers, B is `tokens` tokens in shared memory (16 of
// their columns, rows of 128 bytes, 128-byte swizzle), D is float32 in registers.
// Written by tools/make_wgmma.py.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/dequantize.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// clang-format off
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `pending` committed groups are incomplete.
template <int pending = 0>
__device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(pending) : "memory"); }
// The registers of a fragment must not change before this.
__device__ inline void keep_until_here(AFragment& f) { asm volatile("" : "+r"(f.a0), "+r"(f.a1), "+r"(f.a2), "+r"(f.a3)::"memory"); }

// The matrix descriptor of B. The low half holds the address in units of 16 bytes; the high half is
// constant: 128-byte swizzle, 1024 bytes from eight rows to the next eight.
inline constexpr std::uint32_t kDescriptorUnit = 16;
__device__ inline std::uint32_t descriptor_low(std::uint32_t address) { return address / kDescriptorUnit | 1u << 16; }
__device__ inline std::uint64_t make_descriptor(std::uint32_t low) { return 0x4000004000000000u | low; }

// All numbers of tokens share one array of accumulators: the compiler would give each array its own
// registers.
template <int tokens, int accumulators>
__device__ inline void wgmma(float (&d)[accumulators], const AFragment& f, std::uint64_t descriptor) {
  static_assert(accumulators >= tokens / 2);
"""

TAIL = """
// One K block: a weight tile (each warp has 16 of its 64 rows) times `tokens` tokens. The first
// function issues the instructions, the second waits for them.
template <int tokens, int accumulators>
__device__ inline void wgmma_k_block(float (&sums)[accumulators], const AFragment (&weights)[4], std::uint32_t low) {
  const std::uint64_t descriptor = make_descriptor(low);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) wgmma<tokens>(sums, weights[step], descriptor + 2 * step);
  wgmma_commit_group();
}
__device__ inline void wgmma_wait_k_block(AFragment (&weights)[4]) {
  wgmma_wait();
#pragma unroll
  for (AFragment& f : weights) keep_until_here(f);
}
"""


def instruction(tokens: int) -> str:
    count = tokens // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""  if constexpr (tokens == {tokens})
  asm volatile("{{ .reg .pred adds; setp.eq.b32 adds, 0, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{tokens}k16.f32.bf16.bf16 {{{sums}}}, "
               "{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, adds, 1, 1, 0; }}"
               : {operands}
               : "r"(f.a0), "r"(f.a1), "r"(f.a2), "r"(f.a3), "l"(descriptor));
"""


E4M3_HEAD = """\
// wgmma.mma_async for E4M3: A is 64 rows x 32 columns of weights in registers, B is `tokens` tokens in
// shared memory (32 of their columns, rows of 128 bytes, 128-byte swizzle), D is float32 in registers.
// Written by tools/make_wgmma.py.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"

namespace fp4moe::kernels::cuda::sm90 {

// clang-format off
// accumulates: adds to d; else d is overwritten.
template <int tokens, bool accumulates, int accumulators>
__device__ inline void wgmma_e4m3(float (&d)[accumulators], const AFragment& f, std::uint64_t descriptor) {
  static_assert(accumulators >= tokens / 2);
"""


def e4m3_instruction(tokens: int, accumulates: bool) -> str:
    count = tokens // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    kind = "+f" if accumulates else "=f"
    operands = ", ".join(f'"{kind}"(d[{i}])' for i in range(count))
    return f"""  if constexpr (tokens == {tokens} && {"" if accumulates else "!"}accumulates)
  asm volatile("{{ .reg .pred adds; setp.{"eq" if accumulates else "ne"}.b32 adds, 0, 0;\\n"
               "wgmma.mma_async.sync.aligned.m64n{tokens}k32.f32.e4m3.e4m3 {{{sums}}}, "
               "{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}, %{count + 4}, adds, 1, 1; }}"
               : {operands}
               : "r"(f.a0), "r"(f.a1), "r"(f.a2), "r"(f.a3), "l"(descriptor));
"""


def main():
    folder = Path(__file__).parent.parent / "src/fp4moe/kernels/cuda/sm90"
    end = "// clang-format on\n\n}  // namespace fp4moe::kernels::cuda::sm90\n"
    files = {
        "wgmma.cuh": HEAD + "".join(map(instruction, TOKENS)) + "}\n" + TAIL + end,
        "wgmma_e4m3.cuh": E4M3_HEAD
        + "".join(e4m3_instruction(n, adds) for n in E4M3_TOKENS for adds in (False, True))
        + "}\n" + end,
    }
    for name, whole in files.items():
        path = folder / name
        if "--check" not in sys.argv[1:]:
            path.write_text(whole)
        elif path.read_text() != whole:
            sys.exit(f"{name} is not what {Path(__file__).name} writes: run it")


if __name__ == "__main__":
    main()
