// Upper bounds of the machine's speed: loops that only multiply and add, on registers, and one that
// only reads memory. Benchmarks divide by these. Plain declarations, includable from ISA files.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fp4moe::kernels::cpu {

// A round runs the instruction on this many independent sums: enough to hide its latency.
inline constexpr std::size_t kCeilingSums = 12;

// Runs `rounds` rounds; the result depends on all of them, so that none can be left out.
using MultiplyAdds = std::uint32_t (*)(std::size_t rounds) noexcept;

// Reads `bytes` bytes (a multiple of 256) as two streams, its halves side by side, which more than
// one stream keeps memory busy; returns a checksum.
using ReadMemory = std::uint64_t (*)(const void* from, std::size_t bytes) noexcept;

}  // namespace fp4moe::kernels::cpu
