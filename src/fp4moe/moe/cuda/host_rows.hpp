// Rows of the host, packed for the copy to a device and back: without gaps, in a type that kernels
// read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fp4moe/moe/rows.hpp"

namespace fp4moe::moe::cuda {

// float64 becomes float32; other types stay.
constexpr DType device_type(DType dtype) { return dtype == DType::f64 ? DType::f32 : dtype; }

// Appends rows [begin, begin + count) to `to`.
void append_rows(const ConstRows& from, std::uint64_t begin, std::uint64_t count,
                 std::vector<std::byte>& to);
// Dense rows of device_type(to.dtype) into `to` from row `begin` on.
void spread_rows(std::span<const std::byte> from, const MutableRows& to, std::uint64_t begin,
                 std::uint64_t count);

}  // namespace fp4moe::moe::cuda
