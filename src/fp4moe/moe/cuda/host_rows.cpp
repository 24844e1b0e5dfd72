#include "fp4moe/moe/cuda/host_rows.hpp"

#include <cstring>

namespace fp4moe::moe::cuda {

void append_rows(const ConstRows& from, std::uint64_t begin, std::uint64_t count,
                 std::vector<std::byte>& to) {
  const std::uint64_t row = from.columns * element_bytes(device_type(from.dtype));
  const std::size_t first = to.size();
  to.resize(first + count * row);
  std::vector<float> values(from.dtype == DType::f64 ? from.columns : 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* at = to.data() + first + i * row;
    if (from.dtype != DType::f64) {
      std::memcpy(at, from.row(begin + i), row);
      continue;
    }
    read_row(from, begin + i, std::span(values));
    std::memcpy(at, values.data(), row);
  }
}

void spread_rows(std::span<const std::byte> from, const MutableRows& to, std::uint64_t begin,
                 std::uint64_t count) {
  const std::uint64_t row = to.columns * element_bytes(device_type(to.dtype));
  std::vector<float> values(to.dtype == DType::f64 ? to.columns : 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::byte* at = from.data() + i * row;
    if (to.dtype != DType::f64) {
      std::memcpy(to.row(begin + i), at, row);
      continue;
    }
    std::memcpy(values.data(), at, row);
    write_row(std::span<const float>(values), to, begin + i);
  }
}

}  // namespace fp4moe::moe::cuda
