// One matrix of every expert times the tokens of its tiles: 64 rows of weights by up to 128 tokens
// a warpgroup, several of them a block, one block a multiprocessor.
//
//   producer   takes pieces of work (a tile, a group of 64 rows for each warpgroup) and streams
//              records and tokens into a ring of stages by bulk copies
//   consumers  turn FP4 into BF16 in registers, multiply, and finish their 64 x tokens sums
//              themselves; they wait for tokens, and so for all kernels before
//
// Weights are the A operand from registers, tokens the B operand from shared memory: however few
// tokens there are, nothing is padded but their number to a multiple of 8.
#pragma once
#include <cstdint>
#include <utility>

#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/product_store.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/kernels/cuda/sm90/wgmma.cuh"

namespace fp4moe::kernels::cuda::sm90::product {

inline constexpr std::uint32_t kMostStages = 8, kQueue = 2;

// Some neighbouring groups of rows of one tile, at most one for each warpgroup; none: there is no
// more work.
struct Piece {
  Tile tile;
  std::uint32_t first, groups;
};

// In front of the ring.
struct Shared {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t queue_full[kQueue], queue_empty[kQueue];
  Piece queue[kQueue];
};
static_assert(sizeof(Shared) <= kTables);

// What a block of the kernel for tiles of at most `most` tokens looks like.
template <class Format, int most>
struct Stage {
  static constexpr std::uint32_t kUnits = stage_units(most);
  static constexpr std::uint32_t kWeights = product_weight_bytes(most, Format::kIsNvfp4);
  static constexpr std::uint32_t kBytes = product_stage_bytes(most, Format::kIsNvfp4);
};

// Past the nearer cache: it may hold what lay there before sort.
__device__ inline Tile tile_at(const Sorted& sorted, std::uint32_t number) {
  static_assert(sizeof(Tile) == sizeof(uint4));
  const uint4 words = __ldcg(reinterpret_cast<const uint4*>(sorted.tiles + number));
  Tile made;
  made.expert = static_cast<std::int32_t>(words.x);
  made.first_row = words.y;
  made.rows = words.z;
  made.count = words.w;
  return made;
}

// All pieces. Tiles of an expert follow each other, so that its weights are in the cache for all of
// them. Pieces of a tile are of about the same size, and as small as can be without one more round
// of all blocks.
struct Pieces {
  std::uint32_t each, all;  // of a tile, of all tiles

  __device__ explicit Pieces(const ProductParams& p) {
    const std::uint32_t tiles = __ldcg(p.sorted.tile_count), groups = p.matrix.groups;
    const std::uint32_t fewest = (groups + kConsumers - 1) / kConsumers;
    const std::uint32_t rounds = (tiles * fewest + gridDim.x - 1) / gridDim.x;
    each = tiles == 0 ? fewest : min(groups, rounds * gridDim.x / tiles);
    all = tiles * each;
  }
  // None beyond the last.
  __device__ Piece at(const ProductParams& p, std::uint32_t number) const {
    if (number >= all) return {};
    const std::uint32_t tile = number / each, part = number - tile * each;
    const std::uint32_t size = p.matrix.groups / each, larger = p.matrix.groups % each;
    return {tile_at(p.sorted, tile), part * size + min(part, larger),
            size + (part < larger ? 1 : 0)};
  }
};

// What a lane of the producer copies of a piece: lane g the records of group g, lane kConsumers the
// tokens.
template <class Format>
struct Source {
  const std::uint8_t* from;
  std::uint32_t unit_bytes, all_bytes;  // of this lane, 0: nothing; of all

  __device__ Source(const ProductParams& p, const Piece& piece, std::uint32_t lane) {
    from = p.tiles + std::uint64_t{piece.tile.first_row} * p.matrix.units * 128;
    unit_bytes = lane == kConsumers ? piece.tile.rows * 128 : 0;
    all_bytes = piece.groups * Format::kRecord + piece.tile.rows * 128;
    if (lane >= piece.groups) return;
    from = p.matrix.records + std::uint64_t(piece.tile.expert) * p.matrix.expert_bytes +
           std::uint64_t{piece.first + lane} * (p.matrix.units * Format::kRecord);
    unit_bytes = Format::kRecord;
  }
};

// One warp. Weights of the first piece are on their way before the kernel before is done: which
// they are has been known since sort.
template <class Format, int most>
__device__ void produce(const ProductParams& p, Shared& shared, std::uint32_t ring) {
  using Ring = Stage<Format, most>;
  const std::uint32_t lane = threadIdx.x % 32;
  const bool has_weights = lane < kConsumers;
  const Pieces pieces(p);
  const std::uint32_t to =
      ring + (has_weights ? lane * Ring::kUnits * Format::kRecord : Ring::kWeights);
  // Where an expert has one tile, as a rule, its weights are read once.
  const std::uint64_t policy = most < 128 && has_weights ? read_once() : read_again();
  const auto expect = [&](std::uint32_t stage, std::uint32_t bytes) {
    if (lane == 0) barrier_expect(shared_address(&shared.full[stage]), bytes);
    __syncwarp();
  };
  const auto send = [&](std::uint32_t stage, const std::uint8_t* from, std::uint32_t bytes) {
    if (bytes != 0)
      bulk_copy(to + stage * Ring::kBytes, from, bytes, shared_address(&shared.full[stage]),
                policy);
  };
  Piece piece = pieces.at(p, blockIdx.x);
  std::uint32_t early = 0;  // stages that wait for tokens alone
  if (piece.groups != 0) {
    const Source<Format> source(p, piece, lane);
    for (; early < p.stages && early * Ring::kUnits < p.matrix.units; ++early) {
      const std::uint32_t first = early * Ring::kUnits;
      const std::uint32_t units = min(Ring::kUnits, p.matrix.units - first);
      expect(early, units * source.all_bytes);
      if (has_weights)
        send(early, source.from + first * Format::kRecord, units * source.unit_bytes);
    }
  }
  wait_for_previous();
  Place stage, queue;
  for (;;) {
    if (lane == 0) {
      barrier_wait(shared_address(&shared.queue_empty[queue.at]), queue.parity ^ 1);
      shared.queue[queue.at] = piece;
      barrier_arrive(shared_address(&shared.queue_full[queue.at]));
    }
    queue.advance(kQueue);
    if (piece.groups == 0) return;
    const std::uint32_t number = lane == 0 ? gridDim.x + atomicAdd(p.work, 1u) : 0;
    const auto next = [&] { return pieces.at(p, __shfl_sync(~0u, number, 0)); };
    Source<Format> source(p, piece, lane);
    for (std::uint32_t left = p.matrix.units; left > 0;) {
      const std::uint32_t units = min(Ring::kUnits, left);
      const bool has_begun = early > 0;
      if (has_begun) {
        --early;
      } else {
        barrier_wait(shared_address(&shared.empty[stage.at]), stage.parity ^ 1);
        expect(stage.at, units * source.all_bytes);
      }
      if (!has_begun || !has_weights) send(stage.at, source.from, units * source.unit_bytes);
      source.from += Ring::kUnits * source.unit_bytes;
      if (left == p.matrix.units) piece = next();  // while this one is on its way
      left -= units;
      stage.advance(p.stages);
    }
    if (p.matrix.units == 0) piece = next();
  }
}

struct Consumer {
  std::uint32_t group, warp, lane;  // warpgroup of the block, warp of the warpgroup, lane
  Place stage;
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
__device__ inline void multiply(const ProductParams& p, Shared& shared, std::uint32_t ring,
                                std::uint32_t tile_bytes, Consumer& me, float (&sums)[most / 2]) {
  using Ring = Stage<Format, most>;
  std::uint32_t stage = ring + me.stage.at * Ring::kBytes;
  for (std::uint32_t left = p.matrix.units; left > 0;) {
    barrier_wait(shared_address(&shared.full[me.stage.at]), me.stage.parity);
    multiply_stage<Format, most, columns>(me, stage, left, tile_bytes, sums);
    left -= min(Ring::kUnits, left);
    if (me.lane == 0) barrier_arrive(shared_address(&shared.empty[me.stage.at]));
    me.stage.advance(p.stages);
    stage = me.stage.at == 0 ? ring : stage + Ring::kBytes;
  }
}

// A warpgroup without rows in a piece: stages go by.
template <class Format, int most>
__device__ inline void let_pass(const ProductParams& p, Shared& shared, Consumer& me) {
  constexpr std::uint32_t kUnits = Stage<Format, most>::kUnits;
  for (std::uint32_t unit = 0; unit < p.matrix.units; unit += kUnits) {
    barrier_wait(shared_address(&shared.full[me.stage.at]), me.stage.parity);
    if (me.lane == 0) barrier_arrive(shared_address(&shared.empty[me.stage.at]));
    me.stage.advance(p.stages);
  }
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
struct Columns<128> {
  using type = std::integer_sequence<int, 32, 48, 64, 72, 80, 88, 96, 104, 112, 120, 128>;
};

template <class Format, int most>
__device__ void consume_all(const ProductParams& p, Shared& shared, std::uint32_t ring) {
  const std::uint32_t block_warp = uniform(threadIdx.x / 32);
  Consumer me{block_warp / 4, block_warp % 4, threadIdx.x % 32, {}};
  const Staging space(ring + p.stages * Stage<Format, most>::kBytes + me.group * kStaging);
  Place queue;
  for (;;) {
    barrier_wait(shared_address(&shared.queue_full[queue.at]), queue.parity);
    const Piece& piece = shared.queue[queue.at];
    const std::uint32_t groups = uniform(piece.groups);
    if (groups == 0) return;
    const std::uint32_t tile_bytes = uniform(piece.tile.rows) * 128;
    float sums[most / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    const auto product = [&]<int... columns>(std::integer_sequence<int, columns...>) {
      // The first number of columns that the tile fits into.
      const bool done =
          ((tile_bytes <= columns * 128 &&
            (multiply<Format, most, columns>(p, shared, ring, tile_bytes, me, sums), true)) ||
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
      let_pass<Format, most>(p, shared, me);
    }
    __syncwarp();
    if (me.lane == 0) barrier_arrive(shared_address(&shared.queue_empty[queue.at]));
    queue.advance(kQueue);
  }
}

template <class Format, int most>
__device__ void run(const ProductParams& p) {
  constexpr std::uint32_t kWarps = kConsumers * 4;
  extern __shared__ std::uint8_t memory[];
  // Swizzled tokens want multiples of 1024.
  const std::uint32_t begin = (shared_address(memory) + 1023) & ~1023u;
  auto& shared = *reinterpret_cast<Shared*>(memory + (begin - shared_address(memory)));
  const std::uint32_t ring = begin + kTables;
  let_next_begin();
  if (threadIdx.x == 0) {
    for (std::uint32_t i = 0; i < p.stages; ++i) {
      barrier_init(shared_address(&shared.full[i]), 1);
      barrier_init(shared_address(&shared.empty[i]), kWarps);
    }
    for (std::uint32_t i = 0; i < kQueue; ++i) {
      barrier_init(shared_address(&shared.queue_full[i]), 1);
      barrier_init(shared_address(&shared.queue_empty[i]), kWarps);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (uniform(threadIdx.x / 32) >= kWarps) {
    if constexpr (most > 32) give_registers<most == 128 ? 32 : 40>();
    if (threadIdx.x < kWarps * 32 + 32) produce<Format, most>(p, shared, ring);
  } else {
    if constexpr (most > 32) take_registers<most == 128 ? 112 : 104>();
    consume_all<Format, most>(p, shared, ring);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90::product
