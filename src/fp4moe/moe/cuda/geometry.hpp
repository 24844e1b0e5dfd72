// How many blocks of how many threads each kernel of the path `rows` is launched with.
#pragma once
#include <algorithm>
#include <cstdint>

#include "fp4moe/moe/cuda/plan.hpp"

namespace fp4moe::moe::cuda {

struct Geometry {
  std::uint32_t blocks = 1, threads = 1, shared_bytes = 0;
};

constexpr std::uint32_t blocks_of(std::uint64_t items, std::uint64_t each) {
  return static_cast<std::uint32_t>((items + each - 1) / each);
}

inline constexpr std::uint32_t kPackThreads = 256;

constexpr Geometry route_geometry(std::uint32_t tokens) { return {blocks_of(tokens, 8), 256, 0}; }
constexpr Geometry sort_geometry(const sm90::Layer& /*layer*/) { return {1, 1024, 0}; }
constexpr Geometry gather_geometry(std::uint32_t rows) { return {blocks_of(rows, 8), 256, 0}; }
constexpr Geometry activate_geometry(std::uint32_t rows) { return {blocks_of(rows, 8), 256, 0}; }
constexpr Geometry combine_geometry(std::uint32_t rows) { return {rows, 256, 0}; }

}  // namespace fp4moe::moe::cuda
