// One matrix of every expert times the tokens of its tiles: 64 rows of weights by up to 192 tokens
// a warpgroup, several of them a block, one block a multiprocessor.
//
//   producer   one warp takes pieces of work (a tile, a group of 64 rows for each warpgroup) and
//              streams records into a ring of stages by bulk copies; which they are is known
//              before it begins, so it waits for nobody. Two more fetch tokens: of tiles by bulk
//              copies, of rows that are not in tiles 16 bytes a lane. They wait for all kernels
//              before
//   consumers  turn FP4 into BF16 in registers, multiply, and finish their 64 x tokens sums
//              themselves
//   mover      lays tokens of later tiles into them, where gather left that to the product
//   herald     tells everybody of pieces that are finished
//
// Pieces of the second product follow those of the first: while the last of these are computed
// somewhere, tiles that are finished go on. Pieces are taken in their order, none belongs to a
// block that has not begun: whoever waits for one waits for a block that runs.
//
// Weights are the A operand from registers, tokens the B operand from shared memory: however few
// tokens there are, nothing is padded but their number to a multiple of 8.
#pragma once
#include <cstdint>
#include <utility>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/product_feed.cuh"
#include "fp4moe/kernels/cuda/sm90/product_late.cuh"
#include "fp4moe/kernels/cuda/sm90/product_store.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"

namespace fp4moe::kernels::cuda::sm90::product {

// One lane. Of pieces of the first product it tells whoever waits for the tile, of early ones of
// the second combine, which also hears of its tables, and how many columns are early.
class Herald {
 public:
  __device__ Herald(const ProductParams& p, Shared& shared) : p_(p), shared_(shared) {}

  // Consumers give a place of the queue back when all that they wrote is on its way.
  __device__ void run() {
    bool tells = p_.of[1].matrix.groups != 0;
    for (PipelineState queue;; queue.advance(kQueue)) {
      mbarrier_wait(shared_address(&shared_.queue_full[queue.index]), queue.phase);
      if (tells) begin(shared_.cut);
      tells = false;
      const Piece& piece = shared_.queue[queue.index];
      const std::uint32_t groups = piece.groups;
      std::uint32_t* counter = counter_of(piece);
      mbarrier_arrive(shared_address(&shared_.queue_empty[queue.index]));
      if (groups == 0) return;
      if (counter == nullptr) continue;
      mbarrier_wait(shared_address(&shared_.queue_empty[queue.index]), queue.phase);
      red_release_add(counter, groups);
    }
  }

 private:
  __device__ void begin(const Cut& cut) {
    std::uint32_t* finished = p_.sorted.finished;
    if (blockIdx.x == 0) {
      const std::uint32_t early = cut.early_groups();
      red_release_add(finished + kEarly, 0 - cut.tiles() * early);
      red_release_add(finished + kTold, 1 + (early << kToldBits));
    } else if (blockIdx.x < told_blocks(p_.own, gridDim.x)) {
      red_release_add(finished + kTold, 1);
    }
  }
  __device__ std::uint32_t* counter_of(const Piece& piece) const {
    if (piece.product != 0) return piece.is_late != 0 ? nullptr : p_.sorted.finished + kEarly;
    return p_.of[1].matrix.groups != 0 ? p_.sorted.done + piece.number : nullptr;
  }

  const ProductParams& p_;
  Shared& shared_;
};

struct Consumer {
  std::uint32_t group, warp, lane;  // warpgroup of the block, warp of the warpgroup, lane
  PipelineState stage;
};

// The units of a stage, `left` at most. Up to 16 tokens the warps' own tensor instructions are
// best; beyond, the warpgroup's do more at once, and while one warpgroup waits for them the others
// turn their weights.
template <class Format, int most, int columns>
__device__ inline void multiply_stage(const Consumer& me, std::uint32_t stage, std::uint32_t left,
                                      std::uint32_t tile_bytes, float (&sums)[most / 2]) {
  using Ring = Stage<Format, most>;
  const std::uint32_t records = stage + me.group * Ring::kUnits * Format::kRecord;
  const std::uint32_t tokens = stage + Ring::kWeights;
  std::uint32_t described = describe_tokens(tokens);
#pragma unroll
  for (std::uint32_t u = 0; u < Ring::kUnits; ++u) {
    if (u != 0 && left <= u) break;
    const std::uint32_t record = records + u * Format::kRecord;
    if constexpr (columns <= 16) {
      Operands<Format, columns / 8> now;
      now.load(record, me.warp, me.lane, tokens + u * tile_bytes, matrix_row(me.lane));
      if constexpr (product_raise(most, Format::kIsNvfp4) != 1.0f)
        now.multiply_raised(sums);
      else
        now.multiply(sums);
    } else {
      const auto block = Block<Format>::load(record, me.warp, me.lane);
      Fragment weights[4] = {block.template at<0>(), block.template at<1>(), block.template at<2>(),
                             block.template at<3>()};
      multiply_unit<columns>(sums, weights, described);
      finish_unit(weights);
      described += tile_bytes / kDescribed;
    }
  }
}

// The sums of `columns` tokens over all units: a loop for each number of tokens.
template <class Format, int most, int columns>
__device__ inline void multiply(std::uint32_t units, std::uint32_t stages, Shared& shared,
                                std::uint32_t ring, std::uint32_t tile_bytes, Consumer& me,
                                float (&sums)[most / 2]) {
  using Ring = Stage<Format, most>;
  std::uint32_t stage = ring + me.stage.index * Ring::kBytes;
  for (std::uint32_t left = units; left > 0;) {
    mbarrier_wait(shared_address(&shared.full[me.stage.index]), me.stage.phase);
    // Tokens may have come by ordinary copies.
    if constexpr (columns > 16 && most <= kMostFetched) fence_proxy_async();
    multiply_stage<Format, most, columns>(me, stage, left, tile_bytes, sums);
    left -= min(Ring::kUnits, left);
    if (me.lane == 0) mbarrier_arrive(shared_address(&shared.empty[me.stage.index]));
    me.stage.advance(stages);
    stage = me.stage.index == 0 ? ring : stage + Ring::kBytes;
  }
}

// A warpgroup without rows in a piece: stages go by.
template <class Format, int most>
__device__ inline void let_pass(std::uint32_t units, std::uint32_t stages, Shared& shared,
                                Consumer& me) {
  constexpr std::uint32_t kUnits = Stage<Format, most>::kUnits;
  for (std::uint32_t unit = 0; unit < units; unit += kUnits) {
    mbarrier_wait(shared_address(&shared.full[me.stage.index]), me.stage.phase);
    if (me.lane == 0) mbarrier_arrive(shared_address(&shared.empty[me.stage.index]));
    me.stage.advance(stages);
  }
}

// What all registers of a block are shared out as, where that is worth its while.
struct Registers {
  int feeds, multiplies;
};
constexpr Registers registers(int most) {
  return most > 128  ? Registers{32, 160}
         : most > 88 ? Registers{32, 112}
         : most > 64 ? Registers{64, 104}
                     : Registers{48, 104};
}

// The numbers of tokens that have a loop. Together they may take as many registers as there are:
// the compiler shares none among them.
template <int most>
struct Columns;
template <>
struct Columns<32> {
  using type = std::integer_sequence<int, 8, 16, 24, 32>;
};
template <>
struct Columns<64> {
  using type = std::integer_sequence<int, 16, 24, 32, 40, 48, 56, 64>;
};
template <>
struct Columns<88> {
  using type = std::integer_sequence<int, 32, 48, 56, 64, 72, 80, 88>;
};
template <>
struct Columns<128> {
  using type = std::integer_sequence<int, 32, 48, 64, 72, 80, 88, 96, 104, 112, 120, 128>;
};
template <>
struct Columns<192> {
  using type = std::integer_sequence<int, 32, 64, 80, 96, 104, 112, 120, 128, 136, 144, 152, 160,
                                     168, 176, 184, 192>;
};

template <class Format, int most>
__device__ void consume_all(const ProductParams& params, Shared& shared, std::uint32_t ring) {
  const std::uint32_t block_warp = warp_uniform(threadIdx.x / 32);
  Consumer me{block_warp / 4, block_warp % 4, threadIdx.x % 32, {}};
  const Staging space(ring + params.stages * Stage<Format, most>::kBytes + me.group * kStaging);
  PipelineState queue;
  for (;;) {
    mbarrier_wait(shared_address(&shared.queue_full[queue.index]), queue.phase);
    const Piece& piece = shared.queue[queue.index];
    const std::uint32_t groups = warp_uniform(piece.groups);
    if (groups == 0) return;
    const std::uint32_t tile_bytes = warp_uniform(piece.tile.rows) * 128;
    // Whichever of its expert's tiles a token is in, the same instructions multiply it.
    const std::uint32_t least = most <= 32 && warp_uniform(piece.tile.tiles) > 1 ? 24 * 128 : 0;
    const Product& p = params.of[warp_uniform(piece.product)];
    const std::uint32_t units = p.matrix.units, stages = params.stages;
    float sums[most / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    const auto product = [&]<int... columns>(std::integer_sequence<int, columns...>) {
      // The first number of columns that the tile fits into.
      const bool done =
          ((max(tile_bytes, least) <= columns * 128 &&
            (multiply<Format, most, columns>(units, stages, shared, ring, tile_bytes, me, sums),
             true)) ||
           ...);
      static_cast<void>(done);
    };
    const auto whose = [&] {
      Tile tile = piece.tile;
      tile.rows = tile_bytes / 128;
      return Sums{tile, piece.first + me.group, 1 + me.group, threadIdx.x % 128, me.lane};
    };
    if (me.group < groups) {
      fetch_numbers(p, whose(), space);
      product(typename Columns<most>::type{});
      asm volatile("" ::: "memory");  // reads the piece again: registers are few in the loop
      store(p, whose(), space, sums);
    } else {
      let_pass<Format, most>(units, stages, shared, me);
    }
    __syncwarp();
    if (me.lane == 0) mbarrier_arrive(shared_address(&shared.queue_empty[queue.index]));
    queue.advance(kQueue);
  }
}

// Inline: behind a call the compiler waits for each tensor instruction.
template <class Format, int most>
__device__ __forceinline__ void run(const ProductParams& p) {
  constexpr std::uint32_t kWarps = consumers(most) * 4, kFetchers = fetchers(most);
  extern __shared__ std::uint8_t memory[];
  prefetch_params(p);
  // Swizzled tokens want multiples of 1024.
  const std::uint32_t start = (shared_address(memory) + 1023) & ~1023u;
  auto& shared = *reinterpret_cast<Shared*>(memory + (start - shared_address(memory)));
  const std::uint32_t ring = start + kTables;
  static_assert(kQueue <= kMostStages);
  if (threadIdx.x < kMostStages) {
    mbarrier_init(shared_address(&shared.full[threadIdx.x]), 1 + kFetchers * 32);
    mbarrier_init(shared_address(&shared.empty[threadIdx.x]), kWarps);
    if (threadIdx.x < kQueue) {
      mbarrier_init(shared_address(&shared.queue_full[threadIdx.x]), 1);
      mbarrier_init(shared_address(&shared.queue_empty[threadIdx.x]), kWarps + kFetchers + 1);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
  const bool streams = warp == kWarps;
  const bool sorts = most <= kMostFetched && p.own.experts != 0;
  Tiles tiles{p.sorted.tiles, 0, nullptr};
  Begin begin;
  const FirstPiece<Format, most> first(p, shared, ring, begin);
  if (sorts)
    tiles = first.sort(memory + (ring - shared_address(memory)) + Stage<Format, most>::kBytes);
  if (warp >= kWarps) {
    if constexpr (most > 32) setmaxnreg_dec<registers(most).feeds>();
    if (streams) {
      if (!sorts) {
        tiles.count = __ldcg(p.sorted.tile_count);
        if (threadIdx.x % 32 == 0) begin.take(p);
        shared.cut.make(p, tiles.count, most);
        begin.piece = piece_of(shared.cut.part(warp_uniform(begin.number)),
                               [&](std::uint32_t tile) { return tile_at(tiles.tiles, tile); });
      }
      return stream_weights<Format, most>(p, tiles, begin, shared, ring, sorts);
    }
    if (!sorts) {
      pdl_wait();
      pdl_launch_dependents();  // it looks at tables of all kernels before this one
    }
    if (warp <= kWarps + kFetchers) {
      if (sorts) first.wait_for_senders();
      Fetcher<Format, most>(p, tiles, shared, ring, warp - kWarps - 1).run();
    } else if (warp == kWarps + 3) {
      if (threadIdx.x % 32 == 0) Herald(p, shared).run();
    } else if constexpr (most > kMostFetched) {
      const std::uint32_t behind =
          p.stages * Stage<Format, most>::kBytes + consumers(most) * kStaging;
      Mover<static_cast<int>(late_units(most, Format::kIsNvfp4))>(p, ring + behind).run();
    }
  } else {
    if constexpr (most > 32) setmaxnreg_inc<registers(most).multiplies>();
    if (sorts) first.send_other_stages();
    consume_all<Format, most>(p, shared, ring);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90::product
