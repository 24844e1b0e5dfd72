// The deferred gather: one warp of each block copies tokens into later token tiles while the other
// warps multiply. Tiles are filled in the order in which they are read, so they are still in L2 then.
//
//   8 rows ─► cp.async, several K blocks in flight, into shared memory ─► 1024 bytes of each K block
//
// Row groups are taken by an atomic counter and their indices are read one ahead. A group that is
// written is counted when the next one is in flight. The warp never waits for other warps.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/grouped_gemm/storage.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

// `in_flight`: K blocks of the ring in shared memory.
template <int in_flight>
class DeferredGather {
 public:
  __device__ DeferredGather(const GroupedGemmParams& p, std::uint32_t buffer)
      : p_(p), gemm_(p.gemms[0]), buffer_(buffer) {}

  __device__ void run() {
    const RoutingTables& tables = p_.tables;
    const std::uint32_t count = __ldcg(tables.tile_count);
    if (p_.deferred_gather.first_tile >= count) return;
    const TokenTile last = load_tile(tables.tiles, count - 1);
    first_ = load_tile(tables.tiles, p_.deferred_gather.first_tile).first_row / kRowGroup;
    end_ = (last.first_row + last.rows) / kRowGroup;
    std::uint32_t group = warp_uniform(take());
    RowGroup rows = look_up(group);
    rows.tile = load_tile(tables.tiles, rows.tile_index);
    for (std::uint32_t next = warp_uniform(take()); group < end_;) {
      const std::uint32_t after_next = take();
      RowGroup ahead = look_up(next);
      copy(group, rows, ahead);
      rows = ahead;
      group = next;
      next = warp_uniform(after_next);
    }
    signal();
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct RowGroup {
    std::uint32_t tile_index = 0;
    std::int32_t assignment = 0;  // lane l: of row l % 8; -1: padding
    TokenTile tile{};
  };

  __device__ static std::uint32_t lane() { return threadIdx.x % 32; }
  // The next row group, in lane 0.
  __device__ std::uint32_t take() const {
    return lane() == 0 ? first_ + atomicAdd(p_.tables.work_counters + 2, 1u) : 0;
  }
  // Everything except the tile.
  __device__ RowGroup look_up(std::uint32_t group) const {
    RowGroup result;
    if (group >= end_) return result;
    result.tile_index = static_cast<std::uint32_t>(__ldcg(p_.tables.tile_of_row_group + group));
    result.assignment =
        __ldcg(p_.tables.assignment_of_row + group * kRowGroup + lane() % kRowGroup);
    return result;
  }
  // Lane l copies the 16-byte chunks l % 4 and l % 4 + 4 of row l / 4, through its own part of the
  // ring. Meanwhile the tile of the next row group is loaded.
  __device__ void copy(std::uint32_t group, const RowGroup& rows, RowGroup& ahead) {
    const std::uint32_t k_blocks = gemm_.matrix.k_blocks, row = lane() / 4, chunk = lane() % 4;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(gemm_.rows.data) +
                               token(rows.assignment, row) * gemm_.rows.stride * 2 + chunk * 16;
    const std::uint64_t k_block_bytes = rows.tile.rows * 128;
    std::uint8_t* first = const_cast<std::uint8_t*>(gemm_.tiles) +
                          std::uint64_t{rows.tile.first_row} * k_blocks * 128 +
                          (group * kRowGroup - rows.tile.first_row + row) * 128 +
                          (chunk ^ row) * 16;
    std::uint8_t* second = first + (((chunk ^ row) & 4) == 0 ? 64 : -64);
    constexpr std::uint32_t kBytes = SharedStorage::kDeferredBlockBytes;
    const std::uint32_t ring = buffer_ + lane() * 16, end = ring + in_flight * kBytes;
    const auto fetch = [&](std::uint32_t to, std::uint32_t k_block) {
      if (k_block < k_blocks) {
        cp_async_16(to, from);
        cp_async_16(to + 512, from + 64);
        from += 128;
      }
      cp_async_commit();
    };
#pragma unroll 1
    for (std::uint32_t k_block = 0; k_block < in_flight; ++k_block)
      fetch(ring + k_block * kBytes, k_block);
    signal();
    ahead.tile = load_tile(p_.tables.tiles, ahead.tile_index);
    std::uint32_t at = ring;
#pragma unroll 1
    for (std::uint32_t k_block = 0; k_block < k_blocks; ++k_block) {
      cp_async_wait_group<in_flight - 1>();
      const uint4 low = ld_shared_16(at), high = ld_shared_16(at + 512);
      st_global_no_allocate_16(first, low);
      st_global_no_allocate_16(second, high);
      first += k_block_bytes;
      second += k_block_bytes;
      fetch(at, k_block + in_flight);
      at = at + kBytes == end ? ring : at + kBytes;
    }
    written_ = rows.tile_index;
  }
  // The token of a row of the group. Padding repeats row 0, which is never padding.
  __device__ std::uint64_t token(std::int32_t assignment, std::uint32_t row) const {
    const std::int32_t own = __shfl_sync(kFullWarp, assignment, static_cast<int>(row));
    const std::int32_t first = __shfl_sync(kFullWarp, assignment, 0);
    return static_cast<std::uint32_t>(own < 0 ? first : own) / p_.deferred_gather.top_k;
  }
  // Counts the row group that was written last, if any.
  __device__ void signal() {
    if (written_ == kNone) return;
    __syncwarp();
    if (lane() == 0) red_release_add(p_.tables.tile_progress + written_, 1);
    written_ = kNone;
  }

  const GroupedGemmParams& p_;
  const Gemm& gemm_;
  std::uint32_t buffer_, first_ = 0, end_ = 0;
  std::uint32_t written_ = kNone;  // tile of the row group that was written last
};

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
