// PTX instructions that have no C++ form. Functions carry the name of their instruction.
//
// Sources are compiled for one of two families of architectures. FP4MOE_SM80: everything since 8.0,
// with the instructions that all of them have. Otherwise Hopper alone.
#pragma once
#include <cstdint>

// The name of a kernel that both families have.
#ifdef FP4MOE_SM80
#define FP4MOE_KERNEL(name) fp4moe_sm80_##name
#else
#define FP4MOE_KERNEL(name) fp4moe_sm90_##name
#endif

namespace fp4moe::kernels::cuda::sm90 {

#ifdef FP4MOE_SM80
inline constexpr bool kHasPdl = false;  // programmatic dependent launch
#else
inline constexpr bool kHasPdl = true;
#endif

inline constexpr std::uint32_t kFullWarp = 0xFFFFFFFFu;  // mask of all lanes

// --- Registers and warps.

// The address of shared memory as PTX takes it.
__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// Tells the compiler that x is the same in all lanes: it keeps x, and everything derived from it,
// in uniform registers. The whole warp calls.
__device__ inline std::uint32_t warp_uniform(std::uint32_t x) {
  return __shfl_sync(kFullWarp, x, 0);
}

// Forces x into a register: the compiler does not compute it again.
__device__ inline std::uint32_t keep_in_register(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}
template <class T>
__device__ inline T* keep_in_register(T* x) {
  asm volatile("" : "+l"(x));
  return x;
}

// True in exactly one lane of a whole warp, always the same lane. The compiler knows this.
__device__ inline bool elect_one() {
  std::uint32_t result;
  asm volatile("{ .reg .pred one; elect.sync _|one, 0xFFFFFFFF; selp.b32 %0, 1, 0, one; }"
               : "=r"(result));
  return result != 0;
}

// Moves registers between the warpgroups of a block.
template <int registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// --- Programmatic dependent launch (PDL). Without it a kernel starts when the one before is complete.

// Lets the next kernel of the stream start.
__device__ inline void pdl_launch_dependents() {
  if constexpr (kHasPdl) asm volatile("griddepcontrol.launch_dependents;");
}
// Waits until the previous kernel of the stream is complete and its writes are visible.
__device__ inline void pdl_wait() {
  if constexpr (kHasPdl) asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Loads all cache lines of the kernel parameters at once, one per warp. Each first access of a line
// is slow. All threads of the block call.
template <class Params>
__device__ inline void prefetch_params(const Params& p) {
  constexpr std::uint32_t kLine = 64 / 4, kWords = sizeof(Params) / 4;
  for (std::uint32_t at = threadIdx.x / 32 * kLine; at < kWords; at += blockDim.x / 32 * kLine)
    asm volatile("" ::"r"(reinterpret_cast<const std::uint32_t*>(&p)[at]));
}

// --- Named barriers, 1 to 15.

// Waits for `threads` threads of the block at one barrier.
__device__ inline void named_barrier_sync(std::uint32_t barrier, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Arrives without waiting.
__device__ inline void named_barrier_arrive(std::uint32_t barrier, std::uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// --- Mbarriers, in shared memory.

// An mbarrier counts arrivals and bytes. A wait names the parity of the phase that it waits for;
// the first phase has parity 0.
__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// --- Asynchronous copies from global to shared memory.

// One bulk copy. The mbarrier counts its bytes. Addresses and sizes are multiples of 16.
__device__ inline void cp_async_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                                     std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// L2 cache policies for bulk copies: for bytes that are read once, and for all others.
__device__ inline std::uint64_t l2_evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline std::uint64_t l2_evict_normal() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void cp_async_bulk(std::uint32_t to, const void* from, std::uint32_t bytes,
                                     std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Copies of one thread.
__device__ inline void cp_async_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_8(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void cp_async_16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The thread arrives at an mbarrier when its copies so far are complete. The plain form first
// raises the pending count of the barrier by one; the noinc form is one of the expected arrivals.
__device__ inline void cp_async_mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void cp_async_mbarrier_arrive_noinc(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` committed groups are incomplete.
template <int pending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Makes ordinary stores to shared memory visible to tensor cores and bulk copies.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// --- Counters in global memory, for communication between blocks.

// Adds with release semantics. A reader that acquires the new count also sees all writes before the
// addition, by this thread and by the threads that it has synchronized with.
__device__ inline void red_release_add(std::uint32_t* to, std::uint32_t amount) {
  asm volatile("fence.acq_rel.gpu;\n red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to),
               "r"(amount)
               : "memory");
}
__device__ inline std::uint32_t ld_acquire(const std::uint32_t* from) {
  std::uint32_t seen;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(from) : "memory");
  return seen;
}
// Two counters of the same moment.
__device__ inline uint2 ld_acquire_u32x2(const std::uint32_t* from) {
  std::uint64_t seen;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(from) : "memory");
  return {static_cast<std::uint32_t>(seen), static_cast<std::uint32_t>(seen >> 32)};
}
// A word holds a value and a tag, and needs no fence. A load of two words reads each of them whole,
// but perhaps at different times.
__device__ inline void st_relaxed(std::uint64_t* to, std::uint64_t word) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ inline std::uint64_t ld_relaxed(const std::uint64_t* from) {
  std::uint64_t word;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}
__device__ inline ulonglong2 ld_relaxed_x2(const std::uint64_t* from) {
  ulonglong2 words;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
               : "=l"(words.x), "=l"(words.y)
               : "l"(from)
               : "memory");
  return words;
}
// Waits for a count. Bulk copies after it see what was written before the count.
__device__ inline void spin_until_count(const std::uint32_t* from, std::uint32_t count) {
  while (ld_acquire(from) < count) {
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// --- Loads and stores.

// Global memory without an entry in L1: for bytes that this SM accesses once.
__device__ inline uint4 ld_global_no_allocate_16(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
// The same for bytes that no kernel writes while this one runs.
__device__ inline uint4 ld_global_nc_16(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
__device__ inline uint2 ld_global_nc_8(const void* from) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from));
  return v;
}
__device__ inline std::uint32_t ld_global_nc_4(const void* from) {
  std::uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.b32 %0, [%1];" : "=r"(v) : "l"(from));
  return v;
}
__device__ inline void st_global_no_allocate_16(void* to, const uint4& v) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ inline uint4 ld_shared_16(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ inline uint2 ld_shared_8(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ inline std::uint32_t ld_shared_4(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ inline float ld_shared_f32(std::uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}
__device__ inline void st_shared_f32(std::uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ inline void st_shared_8(std::uint32_t to, const uint2& v) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
}
__device__ inline void st_shared_16(std::uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Four 8 x 8 matrices of 16-bit values. Lanes 8 m to 8 m + 7 give the row addresses of matrix m.
__device__ inline uint4 ldmatrix_x4(std::uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
// Writes four such matrices transposed. Lane l holds row l / 4, columns 2 (l % 4) and the next, of
// each. Lanes give the addresses of the written rows as above.
__device__ inline void stmatrix_x4_trans(std::uint32_t to, const std::uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit values. Lane l holds row l / 4, columns 2 (l % 4) and the next.
__device__ inline std::uint32_t movmatrix_trans(std::uint32_t row) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(row));
  return result;
}

// --- Arithmetic.

// The A fragment of a 16 x 16 block: a0 and a2 are row g, a1 and a3 row g + 8; a0 and a1 are the
// first half of the columns, a2 and a3 the second.
struct AFragment {
  std::uint32_t a0, a1, a2, a3;
};
// A warp's 16 rows times 8 tokens.
__device__ inline void mma_m16n8k16(float* sums, const AFragment& a, std::uint32_t b0,
                                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1));
}

// One half of a pair in both halves. Multiplications take such an operand at no cost.
__device__ inline std::uint32_t broadcast_low_bf16(std::uint32_t pair) {
  std::uint32_t result;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {low, low}; }"
      : "=r"(result)
      : "r"(pair));
  return result;
}
__device__ inline std::uint32_t broadcast_high_bf16(std::uint32_t pair) {
  std::uint32_t result;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; mov.b32 %0, {high, high}; }"
      : "=r"(result)
      : "r"(pair));
  return result;
}

// Four of the eight bytes of a and b; nibbles of the selector are below 8. __byte_perm would mask it.
__device__ inline std::uint32_t prmt(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
  return result;
}

__device__ inline std::uint16_t cvt_bf16(float x) {
  std::uint16_t code;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(x));
  return code;
}
// The larger of two numbers; NaN if one of them is NaN.
__device__ inline float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
// Architectures before 8.9 have no conversion to E4M3.
#if !defined(FP4MOE_SM80) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890)
#define FP4MOE_HAS_E4M3
// Two floats as E4M3, `low` in the lower byte: to nearest, ties to even, saturating. NaN stays.
__device__ inline std::uint32_t cvt_e4m3x2(float low, float high) {
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
// To E4M3 and on to a half: to nearest, ties to even, saturating. NaN stays.
__device__ inline std::uint16_t cvt_e4m3_f16(float x) {
  std::uint16_t codes;
  std::uint32_t halves;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return static_cast<std::uint16_t>(halves);
}
#endif

// Two floats as BF16, `low` in the lower half.
__device__ inline std::uint32_t pack_bf16x2(float low, float high) {
  std::uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}
// Before 9.0 a product is a fused multiply-add of -0.
__device__ inline std::uint32_t mul_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
#ifdef FP4MOE_SM80
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(0x80008000u));
#else
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
#endif
  return result;
}
__device__ inline uint4 mul_bf16x2(const uint4& words, std::uint32_t by) {
  return {mul_bf16x2(words.x, by), mul_bf16x2(words.y, by), mul_bf16x2(words.z, by),
          mul_bf16x2(words.w, by)};
}

// Both have an error of about 2 units in the last place.
__device__ inline float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ inline float rcp_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace fp4moe::kernels::cuda::sm90
