// Tokens of later tiles, laid into them by one warp of each block while others multiply: in the
// order in which they are wanted, so that they are still in the cache then.
//
//   8 rows ─► some units at once on their way, into shared memory ─► 1024 bytes of each unit
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/kernels/cuda/sm90/tiles.cuh"

namespace fp4moe::kernels::cuda::sm90::product {

// Past the nearer cache: it may hold what lay there before gather.
__device__ inline Tile tile_at(const Tile* tiles, std::uint32_t number) {
  static_assert(sizeof(Tile) == sizeof(uint4));
  const uint4 words = __ldcg(reinterpret_cast<const uint4*>(tiles + number));
  Tile made;
  made.expert = static_cast<std::int32_t>(words.x);
  made.first_row = words.y;
  made.rows = words.z;
  made.tiles = words.w;
  return made;
}

// Eights of rows are taken by number and looked up one ahead; one that was moved is told of when
// the next is on its way. Nobody is waited for. There is room for so many units at once.
template <int room>
class Mover {
 public:
  __device__ Mover(const ProductParams& p, std::uint32_t buffer)
      : p_(p), product_(p.of[0]), buffer_(buffer) {}

  __device__ void run() {
    const Sorted& sorted = p_.sorted;
    const std::uint32_t count = __ldcg(sorted.tile_count);
    if (p_.late.first >= count) return;
    const Tile last = tile_at(sorted.tiles, count - 1);
    first_ = tile_at(sorted.tiles, p_.late.first).first_row / kGroup;
    end_ = (last.first_row + last.rows) / kGroup;
    std::uint32_t group = warp_uniform(take());
    Eight eight = look_up(group);
    eight.tile = tile_at(sorted.tiles, eight.number);
    for (std::uint32_t next = warp_uniform(take()); group < end_;) {
      const std::uint32_t asked = take();
      Eight ahead = look_up(next);
      move(group, eight, ahead);
      eight = ahead;
      group = next;
      next = warp_uniform(asked);
    }
    tell();
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Eight {
    std::uint32_t number = 0;  // of the tile
    std::int32_t slot = 0;     // of row l % 8 in lane l; -1: padding
    Tile tile{};
  };

  __device__ static std::uint32_t lane() { return threadIdx.x % 32; }
  // In the first lane, when it comes.
  __device__ std::uint32_t take() const {
    return lane() == 0 ? first_ + atomicAdd(p_.sorted.work + 2, 1u) : 0;
  }
  // But for the tile.
  __device__ Eight look_up(std::uint32_t group) const {
    Eight made;
    if (group >= end_) return made;
    made.number = static_cast<std::uint32_t>(__ldcg(p_.sorted.tile_of_row + group));
    made.slot = __ldcg(p_.sorted.slot_of_row + group * kGroup + lane() % kGroup);
    return made;
  }
  // Lane l has the chunks l % 4 and l % 4 + 4, of 16 bytes, of row l / 4. It fetches them into a
  // ring of its own and stores them from there. Meanwhile the tile of the next eight is looked up.
  __device__ void move(std::uint32_t group, const Eight& eight, Eight& ahead) {
    const std::uint32_t units = product_.matrix.units, row = lane() / 4, chunk = lane() % 4;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(product_.rows.data) +
                               token(eight.slot, row) * product_.rows.stride * 2 + chunk * 16;
    const std::uint64_t unit_bytes = eight.tile.rows * 128;
    std::uint8_t* first = const_cast<std::uint8_t*>(product_.tiles) +
                          std::uint64_t{eight.tile.first_row} * units * 128 +
                          (group * kGroup - eight.tile.first_row + row) * 128 + (chunk ^ row) * 16;
    std::uint8_t* second = first + (((chunk ^ row) & 4) == 0 ? 64 : -64);
    const std::uint32_t ring = buffer_ + lane() * 16, end = ring + room * 1024;
    const auto fetch = [&](std::uint32_t place, std::uint32_t unit) {
      if (unit < units) {
        cp_async_16(place, from);
        cp_async_16(place + 512, from + 64);
        from += 128;
      }
      cp_async_commit();
    };
#pragma unroll 1
    for (std::uint32_t unit = 0; unit < room; ++unit) fetch(ring + unit * 1024, unit);
    tell();
    ahead.tile = tile_at(p_.sorted.tiles, ahead.number);
    std::uint32_t place = ring;
#pragma unroll 1
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      cp_async_wait_group<room - 1>();
      const uint4 low = ld_shared_16(place), high = ld_shared_16(place + 512);
      st_global_no_allocate_16(first, low);
      st_global_no_allocate_16(second, high);
      first += unit_bytes;
      second += unit_bytes;
      fetch(place, unit + room);
      place = place + 1024 == end ? ring : place + 1024;
    }
    moved_ = eight.number;
  }
  // Of a row of the eight, the first of which is no padding.
  __device__ std::uint64_t token(std::int32_t slot, std::uint32_t row) const {
    const std::int32_t own = __shfl_sync(kFullWarp, slot, static_cast<int>(row));
    const std::int32_t some = __shfl_sync(kFullWarp, slot, 0);
    return static_cast<std::uint32_t>(own < 0 ? some : own) / p_.late.choices;
  }
  // Of the eight that was moved last, if any.
  __device__ void tell() {
    if (moved_ == kNone) return;
    __syncwarp();
    if (lane() == 0) red_release_add(p_.sorted.done + moved_, 1);
    moved_ = kNone;
  }

  const ProductParams& p_;
  const Product& product_;
  std::uint32_t buffer_, first_ = 0, end_ = 0;
  std::uint32_t moved_ = kNone;  // tile of the eight that was moved last
};

}  // namespace fp4moe::kernels::cuda::sm90::product
