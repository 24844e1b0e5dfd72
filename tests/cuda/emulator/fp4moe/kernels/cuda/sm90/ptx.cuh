// The functions of src/fp4moe/kernels/cuda/sm90/ptx.cuh on a CPU, as far as kernels of the family sm80
// use them. This file is found before that one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp4moe/formats/bf16.hpp"

#define FP4MOE_KERNEL(name) fp4moe_sm80_##name

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr bool kHasPdl = false;
inline constexpr std::uint32_t kFullWarp = 0xFFFFFFFFu;

// Addresses of shared memory count from an object of this thread of the system.
inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(at) -
                                    emulator::shared_origin());
}
template <class T = std::byte>
T* shared_pointer(std::uint32_t at) {
  return reinterpret_cast<T*>(emulator::shared_origin() + static_cast<std::int32_t>(at));
}

template <class T>
T* keep_in_register(T* x) {
  return x;
}
inline void pdl_launch_dependents() {}
inline void pdl_wait() {}
template <class Params>
void prefetch_params(const Params&) {}

inline emulator::Block& block() { return emulator::Block::current(); }
inline void cp_async_4(std::uint32_t to, const void* from) {
  block().copy(shared_pointer(to), from, 4);
}
inline void cp_async_8(std::uint32_t to, const void* from) {
  block().copy(shared_pointer(to), from, 8);
}
inline void cp_async_16(std::uint32_t to, const void* from) {
  block().copy(shared_pointer(to), from, 16);
}
inline void cp_async_commit() { block().commit(); }
template <int pending>
void cp_async_wait_group() {
  block().wait_for_copies(pending);
}

inline std::uint32_t ld_acquire(const std::uint32_t* from) {
  return std::atomic_ref(*const_cast<std::uint32_t*>(from)).load();
}
inline uint2 ld_acquire_u32x2(const std::uint32_t* from) { return {from[0], from[1]}; }

inline uint4 ld_global_no_allocate_16(const void* from) { return *static_cast<const uint4*>(from); }
inline uint4 ld_global_nc_16(const void* from) { return *static_cast<const uint4*>(from); }
inline uint2 ld_global_nc_8(const void* from) { return *static_cast<const uint2*>(from); }
inline std::uint32_t ld_global_nc_4(const void* from) {
  return *static_cast<const std::uint32_t*>(from);
}
inline void st_global_no_allocate_16(void* to, const uint4& v) { *static_cast<uint4*>(to) = v; }
inline uint4 ld_shared_16(std::uint32_t at) { return *shared_pointer<uint4>(at); }
inline uint2 ld_shared_8(std::uint32_t at) { return *shared_pointer<uint2>(at); }
inline std::uint32_t ld_shared_4(std::uint32_t at) { return *shared_pointer<std::uint32_t>(at); }

inline std::uint16_t cvt_bf16(float x) { return formats::Bf16::encode(x); }
inline std::uint32_t pack_bf16x2(float low, float high) {
  return cvt_bf16(low) | std::uint32_t{cvt_bf16(high)} << 16;
}
inline float bf16_half(std::uint32_t pair, unsigned half) {
  return __uint_as_float(half == 0 ? pair << 16 : pair & 0xFFFF0000u);
}
inline std::uint32_t mul_bf16x2(std::uint32_t a, std::uint32_t b) {
  return pack_bf16x2(bf16_half(a, 0) * bf16_half(b, 0), bf16_half(a, 1) * bf16_half(b, 1));
}
inline uint4 mul_bf16x2(const uint4& words, std::uint32_t by) {
  return {mul_bf16x2(words.x, by), mul_bf16x2(words.y, by), mul_bf16x2(words.z, by),
          mul_bf16x2(words.w, by)};
}
inline std::uint32_t broadcast_low_bf16(std::uint32_t pair) { return (pair & 0xFFFFu) * 0x10001u; }
inline std::uint32_t broadcast_high_bf16(std::uint32_t pair) { return (pair >> 16) * 0x10001u; }
inline float max_nan(float a, float b) { return a != a ? a : b != b ? b : a < b ? b : a; }
inline float exp2_approx(float x) { return std::exp2f(x); }
inline float rcp_approx(float x) { return 1.0f / x; }

// --- A warp together.

// A row of an 8 x 8 matrix of 16-bit values.
struct MatrixRow {
  std::uint16_t of[8];
};
inline uint4 ldmatrix_x4(std::uint32_t at) {
  const auto rows = block().exchange(*shared_pointer<MatrixRow>(at));
  const std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t words[4];
  for (std::uint32_t m = 0; m < 4; ++m) {
    const MatrixRow& row = rows[m * 8 + lane / 4];
    words[m] = row.of[lane % 4 * 2] | std::uint32_t{row.of[lane % 4 * 2 + 1]} << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}
inline std::uint32_t movmatrix_trans(std::uint32_t row) {
  const auto all = block().exchange(row);
  const std::uint32_t lane = threadIdx.x % 32, column = lane / 4;
  const auto element = [&](std::uint32_t r) {
    const std::uint32_t word = all[r * 4 + column / 2];
    return column % 2 == 0 ? word & 0xFFFFu : word >> 16;
  };
  return element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
}

struct AFragment {
  std::uint32_t a0, a1, a2, a3;
};
// Row g of A is in lanes 4 g to 4 g + 3: a0 and a1 hold columns 2 j and 2 j + 1, a2 and a3 those plus
// 8; a1 and a3 are row g + 8. Column n of B is in lanes 4 n to 4 n + 3 alike: b0, then b1.
inline void mma_m16n8k16(float* sums, const AFragment& a, std::uint32_t b0, std::uint32_t b1) {
  struct Operands {
    AFragment a;
    std::uint32_t b0, b1;
  };
  const auto all = block().exchange(Operands{a, b0, b1});
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t n = lane % 4 * 2 + i % 2;
    double sum = sums[i];
    for (std::uint32_t k = 0; k < 16; ++k) {
      const Operands& of_a = all[g * 4 + k % 8 / 2];
      const Operands& of_b = all[n * 4 + k % 8 / 2];
      const std::uint32_t word =
          k < 8 ? (i < 2 ? of_a.a.a0 : of_a.a.a1) : (i < 2 ? of_a.a.a2 : of_a.a.a3);
      sum += double{bf16_half(word, k % 2)} * bf16_half(k < 8 ? of_b.b0 : of_b.b1, k % 2);
    }
    sums[i] = static_cast<float>(sum);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90
