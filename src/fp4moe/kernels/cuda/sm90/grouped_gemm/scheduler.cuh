// Splits the token tiles of GEMM1 and GEMM2 into work tiles, which blocks take in order.
//
//   wave 0   GEMM1 of all token tiles
//   wave 1   the early M blocks of GEMM2, of all token tiles
//   wave 2   the late M blocks of GEMM2: about one work tile per block
//
// Token tiles of an expert follow each other: its weights are in L2 for all of them. Work tiles of a
// token tile have about the same size. They are as small as possible without one more round over all
// blocks; GEMM2 is split first, so that blocks finish together. Combine adds up the early columns
// while blocks compute the late ones.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/divisor.cuh"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm/shape.hpp"

namespace fp4moe::kernels::cuda::sm90::grouped_gemm {

// Neighboring M blocks of one token tile. No M blocks: there is no more work.
struct WorkTileIndex {
  std::uint32_t tile = 0, first_m_block = 0, m_blocks = 0;
  std::uint32_t gemm = 0, is_late = 0;
};

// In shared memory. make() computes it once, with divisions; tile() takes few instructions, because
// the weight loader warp that calls it has no time.
class TileScheduler {
 public:
  // All lanes of one warp call. `warpgroups`: math warpgroups of the kernel.
  __device__ void make(const GroupedGemmParams& p, std::uint32_t tiles, std::uint32_t warpgroups) {
    const std::uint32_t m_blocks1 = p.gemms[0].matrix.m_blocks;
    const std::uint32_t m_blocks2 = p.gemms[1].matrix.m_blocks;
    const std::uint32_t lane = threadIdx.x % 32;
    std::uint32_t gemm1 = (m_blocks1 + warpgroups - 1) / warpgroups;  // work tiles of a token tile
    std::uint32_t gemm2 = (m_blocks2 + warpgroups - 1) / warpgroups, early = 0;
    if (tiles != 0) {
      const std::uint32_t rounds = (tiles * (gemm1 + gemm2) + gridDim.x - 1) / gridDim.x;
      const std::uint32_t work_tiles = rounds * gridDim.x / tiles;
      gemm2 = min(m_blocks2, work_tiles - gemm1);
      gemm1 = min(m_blocks1, work_tiles - gemm2);
      early = gemm2 - min(gemm2, (gridDim.x + tiles - 1) / tiles);
    }
    if (lane < kWaves) {
      Wave wave;
      wave.before = lane < kLateWave ? 0 : early;
      const std::uint32_t each = lane == 0 ? gemm1 : lane < kLateWave ? early : gemm2 - early;
      wave.begin = lane == 0 ? 0 : tiles * (gemm1 + wave.before);
      wave.end = wave.begin + tiles * each;
      wave.per_tile = Divisor(max(each, 1u));
      const std::uint32_t own = lane == 0 ? m_blocks1 : m_blocks2;
      const std::uint32_t work_tiles = max(lane == 0 ? gemm1 : gemm2, 1u);
      wave.size = own / work_tiles;
      wave.larger = own - wave.size * work_tiles;
      waves_[lane] = wave;
      if (lane == kLateWave) {
        tiles_ = tiles;
        early_m_blocks_ = wave.first_m_block(early);
      }
    }
    __syncwarp();
  }

  __device__ std::uint32_t tiles() const { return tiles_; }
  // M blocks of GEMM2 in wave 1, of one token tile.
  __device__ std::uint32_t early_m_blocks() const { return early_m_blocks_; }
  __device__ WorkTileIndex tile(std::uint32_t number) const {
    const std::uint32_t which = number < waves_[0].end ? 0 : number < waves_[1].end ? 1 : kLateWave;
    const Wave wave = waves_[which];
    if (number >= wave.end) return {};
    const std::uint32_t tile = wave.per_tile.of(number - wave.begin);
    const std::uint32_t work = number - wave.begin - tile * wave.per_tile.by() + wave.before;
    return {tile, wave.first_m_block(work), wave.size + (work < wave.larger ? 1 : 0),
            min(which, 1u), which / kLateWave};
  }

 private:
  static constexpr std::uint32_t kWaves = 3, kLateWave = 2;
  struct Wave {
    std::uint32_t begin, end;    // numbers of its work tiles
    Divisor per_tile;            // work tiles of a token tile
    std::uint32_t before;        // work tiles of the same token tile and GEMM in earlier waves
    std::uint32_t size, larger;  // M blocks of a work tile; the first `larger` have one more

    __device__ std::uint32_t first_m_block(std::uint32_t work) const {
      return work * size + min(work, larger);
    }
  };

  Wave waves_[kWaves];
  std::uint32_t tiles_, early_m_blocks_;
};

}  // namespace fp4moe::kernels::cuda::sm90::grouped_gemm
