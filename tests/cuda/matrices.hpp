// Hand-made weights of every expert for tests of single kernels: packed for the device, and as numbers.
#pragma once
#include <cmath>

#include "fp4moe/formats/e2m1.hpp"
#include "fp4moe/formats/sm90_scale.hpp"
#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {

// One matrix of every expert: codes and scales as a checkpoint has them, and their values.
struct HostMatrix {
  std::uint32_t m_blocks, k_blocks;
  std::vector<std::uint8_t> codes{}, scales{};  // [experts][rows][...]
  std::vector<double> values{};                 // [experts][rows][columns]
  std::vector<float> factors{}, bias{};         // [experts][2], [experts][rows]
  double unit = 1;  // the kernel's sums are in units of it: block scales of NVFP4 are packed so

  std::uint32_t rows() const { return m_blocks * kBlockM; }
  std::uint32_t columns() const { return k_blocks * kBlockK; }
  const double* row(std::size_t expert, std::size_t r) const {
    return values.data() + (expert * rows() + r) * columns();
  }
};

inline HostMatrix make_matrix(std::size_t experts, std::uint32_t m_blocks, std::uint32_t k_blocks,
                              bool is_nvfp4, std::uint64_t seed) {
  HostMatrix result{.m_blocks = m_blocks, .k_blocks = k_blocks};
  SplitMix64 random(seed);
  const std::size_t rows = experts * result.rows(), columns = result.columns();
  const std::size_t block = is_nvfp4 ? 16 : 32;
  result.values.resize(rows * columns);
  for (std::size_t i = 0; i < rows * columns / 2; ++i)
    result.codes.push_back(static_cast<std::uint8_t>(random.next()));
  for (std::size_t i = 0; i < rows * columns / block; ++i)  // powers of two: E8M0, E4M3
    result.scales.push_back(
        static_cast<std::uint8_t>(is_nvfp4 ? 40 + random.next() % 4 * 8 : 125 + random.next() % 4));
  for (std::size_t i = 0; i < rows * columns; ++i) {
    const std::uint8_t byte = result.codes[i / 2], scale = result.scales[i / block];
    const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
    const int exponent = is_nvfp4 ? scale / 8 - 7 : scale - 127;
    result.values[i] = std::ldexp(double{formats::E2m1::decode(code)}, exponent);
  }
  if (is_nvfp4) result.unit = 1 / double{formats::kSm90Nvfp4Factor};
  result.factors = random_values(experts * 2, seed + 1);
  result.bias = random_values(rows, seed + 2);
  return result;
}

class WithMatrices : public OnDevice {
 protected:
  Memory pack(const HostMatrix& w, std::size_t experts, bool is_nvfp4) {
    const Memory codes = upload(w.codes), scales = upload(w.scales);
    const std::size_t bytes = std::size_t{w.m_blocks} * w.k_blocks * weight_tile_bytes(is_nvfp4);
    Memory tiles = buffer<std::uint8_t>(experts * bytes);
    const std::size_t scale_columns = w.columns() / (is_nvfp4 ? 16 : 32);
    for (std::size_t e = 0; e < experts; ++e) {
      const PackParams params{.codes = codes.as<std::uint8_t>() + e * w.rows() * w.columns() / 2,
                              .scales = scales.as<std::uint8_t>() + e * w.rows() * scale_columns,
                              .code_stride = w.columns() / 2,
                              .scale_stride = scale_columns,
                              .rows = w.rows(),
                              .columns = w.columns(),
                              .is_nvfp4 = is_nvfp4 ? 1u : 0u,
                              .tiles = tiles.as<std::uint8_t>() + e * bytes,
                              .m_blocks = w.m_blocks};
      run("fp4moe_sm90_pack", params, {w.m_blocks * w.k_blocks, kPackThreads});
    }
    return tiles;
  }
};

}  // namespace fp4moe::kernels::cuda::sm90
