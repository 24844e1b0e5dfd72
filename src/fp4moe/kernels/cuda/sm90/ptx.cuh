// Instructions of Hopper that C++ has no words for.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90 {

__device__ inline std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

// What is the same in all lanes of a warp, so that the compiler knows: it then keeps it, and all
// that follows from it, in the warp's own registers. The whole warp calls.
__device__ inline std::uint32_t uniform(std::uint32_t x) { return __shfl_sync(0xFFFFFFFFu, x, 0); }

// Computed once and kept.
__device__ inline std::uint32_t held(std::uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// In one lane of a whole warp, always the same one; the compiler knows that it is alone.
__device__ inline bool is_elected() {
  std::uint32_t made;
  asm volatile("{ .reg .pred one; elect.sync _|one, 0xFFFFFFFF; selp.b32 %0, 1, 0, one; }"
               : "=r"(made));
  return made != 0;
}

// Programmatic dependent launch: let the next kernel begin, wait for the one before.
__device__ inline void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Parameters of a kernel come from far at their first use, a line at a time: all lines at once, a
// warp each, cost as much as one. All threads of a block.
template <class Params>
__device__ inline void fetch_params(const Params& p) {
  constexpr std::uint32_t kLine = 64 / 4, kWords = sizeof(Params) / 4;
  for (std::uint32_t at = threadIdx.x / 32 * kLine; at < kWords; at += blockDim.x / 32 * kLine)
    asm volatile("" ::"r"(reinterpret_cast<const std::uint32_t*>(&p)[at]));
}

// Barriers in shared memory that count arrivals and bytes. A wait names the parity of the phase it
// waits for: 0 for the first.
__device__ inline void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Where in a ring of `size` places, and whether it went round an odd number of times.
struct Place {
  std::uint32_t at = 0, parity = 0;
  __device__ void advance(std::uint32_t size) {
    if (++at < size) return;
    at = 0;
    parity ^= 1;
  }
};

// A stretch of global memory into shared memory; the barrier counts its bytes. Both ends are
// multiples of 16.
__device__ inline void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                 std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same for bytes that are read once: they shall not drive others out of the cache.
__device__ inline std::uint64_t read_once() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline std::uint64_t read_again() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void bulk_copy(std::uint32_t to, const void* from, std::uint32_t bytes,
                                 std::uint32_t barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// Numbers that blocks leave for each other, counted: what came before the addition, in all threads
// that this one has waited for, is there for bulk copies once the count is seen.
__device__ inline void add_released(std::uint32_t* to, std::uint32_t amount) {
  asm volatile("fence.acq_rel.gpu;\n red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(to),
               "r"(amount)
               : "memory");
}
__device__ inline std::uint32_t load_acquired(const std::uint32_t* from) {
  std::uint32_t seen;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(from) : "memory");
  return seen;
}
__device__ inline uint2 load_acquired8(const std::uint32_t* from) {
  std::uint64_t seen;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(seen) : "l"(from) : "memory");
  return {static_cast<std::uint32_t>(seen), static_cast<std::uint32_t>(seen >> 32)};
}
__device__ inline void wait_for_count(const std::uint32_t* from, std::uint32_t count) {
  while (load_acquired(from) < count) {
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Some bytes, by the thread itself: it goes on, and waits for all it began.
__device__ inline void copy_later4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_later16(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// One arrival of the thread, when all it began has come; in addition to those that the barrier
// counts upon, or one of them.
__device__ inline void add_arrival_behind_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_behind_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// What it began since the last call is a group; waits for all groups but the last `left`.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
__device__ inline void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

// What ordinary stores wrote to shared memory becomes visible to tensor cores.
__device__ inline void fence_for_tensor_cores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// `threads` threads of the block that name the same barrier, 1 to 15.
__device__ inline void sync_some(std::uint32_t barrier, std::uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The same for those of them that need not wait.
__device__ inline void arrive_some(std::uint32_t barrier, std::uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

template <int registers>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// Bytes that this multiprocessor reads or writes once, past its cache.
__device__ inline uint4 load_once16(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline void store_once16(void* to, const uint4& v) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ inline uint4 load_shared16(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ inline uint2 load_shared8(std::uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ inline float load_float(std::uint32_t at) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
  return v;
}
__device__ inline void store_float(std::uint32_t at, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(v) : "memory");
}
__device__ inline std::uint32_t load_shared4(std::uint32_t at) {
  std::uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

// Four 8 x 8 matrices of 16-bit values, the row addresses of the m-th from lanes 8m to 8m + 7.
__device__ inline uint4 load_matrices(std::uint32_t at) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}

// Four such matrices, row l / 4 and columns 2 (l % 4) and the next in lane l, written transposed: a
// row for each of their columns, its address as above.
__device__ inline void store_transposed(std::uint32_t to, const std::uint32_t (&made)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(made[0]), "r"(made[1]), "r"(made[2]), "r"(made[3])
               : "memory");
}

// Two floats as bf16, `low` in the lower half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t made;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
  return made;
}
// Products of pairs.
__device__ inline std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t made;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
  return made;
}
__device__ inline uint4 multiply_bf16(const uint4& words, std::uint32_t by) {
  return {multiply_bf16(words.x, by), multiply_bf16(words.y, by), multiply_bf16(words.z, by),
          multiply_bf16(words.w, by)};
}

// To about 2 units in the last place.
__device__ inline float power_of_two(float x) {
  float made;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(x));
  return made;
}
__device__ inline float reciprocal(float x) {
  float made;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(x));
  return made;
}

}  // namespace fp4moe::kernels::cuda::sm90
