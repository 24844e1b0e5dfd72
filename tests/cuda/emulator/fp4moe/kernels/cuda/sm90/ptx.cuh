// The functions of src/fp4moe/kernels/cuda/sm90/ptx.cuh on a CPU. This file is found before that one.
#pragma once
#include <cstddef>
#include <cstdint>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/formats/f16.hpp"

#define FP4MOE_HAS_E4M3
#ifdef FP4MOE_SM80
#define FP4MOE_KERNEL(name) fp4moe_sm80_##name
#else
#define FP4MOE_KERNEL(name) fp4moe_sm90_##name
#endif

namespace fp4moe::kernels::cuda::sm90 {

#ifdef FP4MOE_SM80
inline constexpr bool kHasPdl = false;
#else
inline constexpr bool kHasPdl = true;  // kernels run one after the other all the same
#endif
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

inline std::uint32_t warp_uniform(std::uint32_t x) { return __shfl_sync(kFullWarp, x, 0); }
template <class T>
T keep_in_register(T x) {
  return x;
}
inline bool elect_one() { return __shfl_sync(kFullWarp, threadIdx.x % 32, 0) == threadIdx.x % 32; }
template <int>
void setmaxnreg_inc() {}
template <int>
void setmaxnreg_dec() {}
inline void pdl_launch_dependents() {}
inline void pdl_wait() {}
template <class Params>
void prefetch_params(const Params&) {}

inline emulator::Block& block() { return emulator::Block::current(); }

inline void named_barrier_sync(std::uint32_t barrier, std::uint32_t threads) {
  block().sync(barrier, threads);
}
inline void named_barrier_arrive(std::uint32_t barrier, std::uint32_t threads) {
  block().arrive(barrier, threads);
}

inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  block().mbarrier_init(shared_pointer(barrier), arrivals);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(std::uint32_t barrier) {
  block().mbarrier_arrive(shared_pointer(barrier));
}
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  block().mbarrier_expect(shared_pointer(barrier), bytes);
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  block().mbarrier_wait(shared_pointer(barrier), phase);
}

inline std::uint64_t l2_evict_first() { return 0; }
inline std::uint64_t l2_evict_normal() { return 0; }
inline void cp_async_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                          std::uint32_t barrier, std::uint64_t = 0) {
  if ((to | bytes | reinterpret_cast<std::uintptr_t>(from)) % 16 != 0)
    block().report("a bulk copy is not aligned to 16 bytes");
  block().copy_bulk(shared_pointer(to), from, bytes, shared_pointer(barrier));
}
inline void cp_async_4(std::uint32_t to, const void* from) {
  block().copy(shared_pointer(to), from, 4);
}
inline void cp_async_8(std::uint32_t to, const void* from) {
  block().copy(shared_pointer(to), from, 8);
}
inline void cp_async_16(std::uint32_t to, const void* from) {
  block().copy(shared_pointer(to), from, 16);
}
inline void cp_async_commit() { block().commit_copies(); }
template <int pending>
void cp_async_wait_group() {
  block().wait_for_copies(pending);
}

inline void cp_async_mbarrier_arrive(std::uint32_t barrier) {
  block().arrive_after_copies(shared_pointer(barrier), false);
}
inline void cp_async_mbarrier_arrive_noinc(std::uint32_t barrier) {
  block().arrive_after_copies(shared_pointer(barrier), true);
}
inline void cp_async_wait_all() {
  cp_async_commit();
  cp_async_wait_group<0>();
}
inline void fence_proxy_async() {}

// Readers of what other blocks write.
inline void red_release_add(std::uint32_t* to, std::uint32_t amount) { emulator::add(to, amount); }
inline std::uint32_t ld_acquire(const std::uint32_t* from) {
  block().pause();
  return emulator::load(from);
}
inline uint2 ld_acquire_u32x2(const std::uint32_t* from) {
  block().pause();
  const std::uint64_t seen = emulator::load(reinterpret_cast<const std::uint64_t*>(from));
  return {static_cast<std::uint32_t>(seen), static_cast<std::uint32_t>(seen >> 32)};
}
inline void spin_until_count(const std::uint32_t* from, std::uint32_t count) {
  while (ld_acquire(from) < count) {
  }
}
inline void st_relaxed(std::uint64_t* to, std::uint64_t word) { emulator::store(to, word); }
inline std::uint64_t ld_relaxed(const std::uint64_t* from) {
  block().pause();
  return emulator::load(from);
}
inline ulonglong2 ld_relaxed_x2(const std::uint64_t* from) {
  block().pause();
  return {emulator::load(from), emulator::load(from + 1)};
}

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
inline float ld_shared_f32(std::uint32_t at) { return *shared_pointer<float>(at); }
inline void st_shared_f32(std::uint32_t at, float v) { *shared_pointer<float>(at) = v; }
inline void st_shared_8(std::uint32_t to, const uint2& v) { *shared_pointer<uint2>(to) = v; }
inline void st_shared_16(std::uint32_t to, const uint4& v) { *shared_pointer<uint4>(to) = v; }

inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  return __byte_perm(a, b, selector);
}
inline std::uint32_t cvt_e4m3x2(float low, float high) {
  return formats::E4m3fn::encode(low) | std::uint32_t{formats::E4m3fn::encode(high)} << 8;
}
inline std::uint16_t cvt_e4m3_f16(float x) {
  return formats::F16::encode(formats::E4m3fn::decode(formats::E4m3fn::encode(x)));
}
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
// Lane l holds row l / 4, columns 2 (l % 4) and the next, of each matrix; lanes 8 m to 8 m + 7 give the
// addresses of the rows of matrix m transposed.
inline void stmatrix_x4_trans(std::uint32_t to, const std::uint32_t (&matrices)[4]) {
  const uint4 mine{matrices[0], matrices[1], matrices[2], matrices[3]};
  const auto all = block().exchange(mine);
  const std::uint32_t lane = threadIdx.x % 32, matrix = lane / 8, column = lane % 8;
  MatrixRow& row = *shared_pointer<MatrixRow>(to);
  for (std::uint32_t r = 0; r < 8; ++r) {
    const uint4& from = all[r * 4 + column / 2];
    const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
    row.of[r] = static_cast<std::uint16_t>(words[matrix] >> column % 2 * 16);
  }
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
  const auto all = block().exchange_operands(Operands{a, b0, b1});
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
