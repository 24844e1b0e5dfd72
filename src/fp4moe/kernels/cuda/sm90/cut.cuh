// How the tiles of both products are cut into pieces of work.
//
// Tiles of an expert follow each other, so that its weights are in the cache for all of them.
// Pieces of a tile are of about the same size, and as small as can be without one more round of all
// blocks; first those of the second product, so that blocks finish together. The last columns of
// that come when all others have, as many pieces as there are blocks: while they are computed,
// combine adds up the others.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/divisor.cuh"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"

namespace fp4moe::kernels::cuda::sm90::product {

// Neighbouring groups of rows of one tile; none beyond the last piece.
struct Part {
  std::uint32_t tile = 0, first = 0, groups = 0;
  std::uint32_t product = 0, is_late = 0;
};

// In shared memory: computed once, as it takes divisions, and looked up with few instructions by
// the warp that streams weights, which has no time.
class Cut {
 public:
  // For the kernel of tiles of at most `most` tokens. All lanes of one warp.
  __device__ void make(const ProductParams& p, std::uint32_t tiles, std::uint32_t most) {
    const std::uint32_t groups = p.of[0].matrix.groups, more = p.of[1].matrix.groups;
    const std::uint32_t at_once = consumers(most), lane = threadIdx.x % 32;
    std::uint32_t first = (groups + at_once - 1) / at_once;
    std::uint32_t second = (more + at_once - 1) / at_once, early = 0;
    if (tiles != 0) {
      const std::uint32_t rounds = (tiles * (first + second) + gridDim.x - 1) / gridDim.x;
      const std::uint32_t pieces = rounds * gridDim.x / tiles;
      second = min(more, pieces - first);
      first = min(groups, pieces - second);
      early = second - min(second, (gridDim.x + tiles - 1) / tiles);
    }
    if (lane < kRuns) {
      Run run;
      run.before = lane < kLateRun ? 0 : early;
      const std::uint32_t each = lane == 0 ? first : lane < kLateRun ? early : second - early;
      run.begin = lane == 0 ? 0 : tiles * (first + run.before);
      run.end = run.begin + tiles * each;
      run.each = Divisor(max(each, 1u));
      const std::uint32_t own = lane == 0 ? groups : more;
      const std::uint32_t pieces = max(lane == 0 ? first : second, 1u);
      run.size = own / pieces;
      run.larger = own - run.size * pieces;
      runs_[lane] = run;
      if (lane == kLateRun) {
        tiles_ = tiles;
        early_groups_ = run.first(early);
      }
    }
    __syncwarp();
  }

  __device__ std::uint32_t tiles() const { return tiles_; }
  // Groups of the second product that come early.
  __device__ std::uint32_t early_groups() const { return early_groups_; }
  __device__ Part part(std::uint32_t number) const {
    const std::uint32_t which = number < runs_[0].end ? 0 : number < runs_[1].end ? 1 : kLateRun;
    const Run run = runs_[which];
    if (number >= run.end) return {};
    const std::uint32_t tile = run.each.of(number - run.begin);
    const std::uint32_t piece = number - run.begin - tile * run.each.by() + run.before;
    return {tile, run.first(piece), run.size + (piece < run.larger ? 1 : 0), min(which, 1u),
            which / kLateRun};
  }

 private:
  static constexpr std::uint32_t kRuns = 3, kLateRun = 2;
  // Pieces that follow each other: of the first product, early ones of the second, late ones.
  struct Run {
    std::uint32_t begin, end;    // their numbers
    Divisor each;                // of a tile
    std::uint32_t before;        // of the same product, that come earlier
    std::uint32_t size, larger;  // groups of a piece; the first `larger` have one more

    __device__ std::uint32_t first(std::uint32_t piece) const {
      return piece * size + min(piece, larger);
    }
  };

  Run runs_[kRuns];
  std::uint32_t tiles_, early_groups_;
};

}  // namespace fp4moe::kernels::cuda::sm90::product
