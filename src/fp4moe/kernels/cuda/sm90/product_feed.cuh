// What a product's warps work on, and those that feed the ones that multiply: pieces of work and
// the ring of stages, weights by bulk copies, tokens of tiles likewise and of rows 16 bytes a lane,
// and how a block begins that sorts for itself.
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/sm90/cut.cuh"
#include "fp4moe/kernels/cuda/sm90/own_sort.cuh"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/pipeline.cuh"
#include "fp4moe/kernels/cuda/sm90/product_late.cuh"
#include "fp4moe/kernels/cuda/sm90/ptx.cuh"
#include "fp4moe/kernels/cuda/sm90/shapes.hpp"
#include "fp4moe/kernels/cuda/sm90/weights.cuh"

namespace fp4moe::kernels::cuda::sm90::product {

inline constexpr std::uint32_t kMostStages = 8, kQueue = 2;

// Some neighbouring groups of rows of one tile, at most one for each warpgroup; none: there is no
// more work.
struct Piece {
  Tile tile;
  std::uint32_t first, groups;
  std::uint32_t product, number;  // which of them, of which tile
  std::uint32_t is_late;          // see Cut
};

// In front of the ring.
struct Shared {
  std::uint64_t full[kMostStages], empty[kMostStages];
  std::uint64_t queue_full[kQueue], queue_empty[kQueue];
  Piece queue[kQueue];
  Cut cut;                              // before the first piece
  std::uint32_t sources[kMostFetched];  // rows of a tile's tokens
};
static_assert(sizeof(Shared) <= kTables);

// What a block of the kernel for tiles of at most `most` tokens looks like.
template <class Format, int most>
struct Stage {
  static constexpr std::uint32_t kUnits = stage_units(most);
  static constexpr std::uint32_t kWeights = product_weight_bytes(most, Format::kIsNvfp4);
  static constexpr std::uint32_t kBytes = product_stage_bytes(most, Format::kIsNvfp4);
};

template <class TileAt>
__device__ Piece piece_of(const Part& part, const TileAt& tile_at) {
  if (part.groups == 0) return {};
  return {tile_at(part.tile), part.first, part.groups, part.product, part.tile, part.is_late};
}

// What a block begins with: its first piece, and the number of the next, in the first lane of the
// warp that streams weights.
struct Begin {
  std::uint32_t number = 0, next = 0;
  Piece piece{};

  __device__ void take(const ProductParams& p) {
    number = atomicAdd(p.work, 1u);
    next = atomicAdd(p.work, 1u);
  }
};

// Where an expert has one tile, as a rule, its weights are read once.
__device__ inline std::uint64_t weights_l2_policy(int most) {
  return most <= 128 ? l2_evict_first() : l2_evict_normal();
}
// Weights of a piece that are still to be sent: what its groups go on with, how far they are apart.
template <class Format>
struct Weights {
  const std::uint8_t* from;
  std::uint32_t group_bytes, units;

  __device__ Weights(const ProductParams& p, const Piece& piece) {
    const Matrix& matrix = p.of[warp_uniform(piece.product)].matrix;
    units = matrix.units;
    group_bytes = units * Format::kRecord;
    from = matrix.records +
           std::uint64_t{warp_uniform(static_cast<std::uint32_t>(piece.tile.expert))} *
               matrix.expert_bytes +
           std::uint64_t{warp_uniform(piece.first)} * group_bytes;
  }
  __device__ std::uint32_t bytes(std::uint32_t most) const {
    return min(most, units) * Format::kRecord;
  }
  __device__ void pass(std::uint32_t most) {
    from += bytes(most);
    units -= min(most, units);
  }
};
// As much as a stage takes. One lane begins the copies.
template <class Format, int most>
__device__ inline void send_weights(const Weights<Format>& weights, std::uint32_t groups,
                                    std::uint32_t to, std::uint32_t full, std::uint64_t policy) {
  const std::uint32_t bytes = weights.bytes(stage_units(most));
  if (elect_one()) {
    mbarrier_arrive_expect_tx(full, groups * bytes);
#pragma unroll
    for (std::uint32_t g = 0; g < consumers(most); ++g)
      if (g < groups)
        cp_async_bulk(to + g * stage_units(most) * Format::kRecord,
                      weights.from + g * weights.group_bytes, bytes, full, policy);
  }
  __syncwarp();
}

// A piece, for everybody else.
__device__ inline void publish(Shared& shared, const PipelineState& queue, const Piece& piece) {
  mbarrier_wait(shared_address(&shared.queue_empty[queue.index]), queue.phase ^ 1);
  if (threadIdx.x % 32 == 0) {
    shared.queue[queue.index] = piece;
    mbarrier_arrive(shared_address(&shared.queue_full[queue.index]));
  }
  __syncwarp();
}

// One warp: what it goes by is the same in all lanes, and as it is computed once a warp it takes
// few instructions. The number of a piece is asked for while the one before is streamed, and where
// it lies while this one is. `is_begun`: the first piece is published, its first stage sent.
template <class Format, int most>
__device__ void stream_weights(const ProductParams& p, const Tiles& tiles, const Begin& begin,
                               Shared& shared, std::uint32_t ring, bool is_begun) {
  using Ring = Stage<Format, most>;
  const std::uint64_t policy = weights_l2_policy(most);
  std::uint32_t number = begin.next;
  Piece piece = begin.piece;
  PipelineState stage, queue;
  for (;;) {
    if (!is_begun) publish(shared, queue, piece);
    queue.advance(kQueue);
    const std::uint32_t groups = warp_uniform(piece.groups);
    if (groups == 0) return;
    Weights<Format> weights(p, piece);
    piece = piece_of(shared.cut.part(warp_uniform(number)),
                     [&](std::uint32_t tile) { return tile_at(tiles.tiles, tile); });
    if (threadIdx.x % 32 == 0) number = atomicAdd(p.work, 1u);
    if (is_begun) {
      weights.pass(Ring::kUnits);
      stage.advance(p.stages);
    }
    is_begun = false;
    while (weights.units > 0) {
      mbarrier_wait(shared_address(&shared.empty[stage.index]), stage.phase ^ 1);
      send_weights<Format, most>(weights, groups, ring + stage.index * Ring::kBytes,
                                 shared_address(&shared.full[stage.index]), policy);
      weights.pass(Ring::kUnits);
      stage.advance(p.stages);
    }
  }
}

// From row to row, of tokens that are not in tiles.
__device__ inline std::uint32_t row_bytes(const Product& product) {
  return static_cast<std::uint32_t>(product.rows.stride) * 2;
}
// Of the first piece of a block that sorts: all that there is a place for.
template <int most>
__device__ inline std::uint32_t begun_stages(const ProductParams& p) {
  const std::uint32_t units = p.of[0].matrix.units;
  return min(p.stages, (units + stage_units(most) - 1) / stage_units(most));
}
// Rows take two warps, quads of them by turns; tiles one.
constexpr std::uint32_t fetchers(int most) { return most <= kMostFetched ? 2 : 1; }
template <class Format, int most>
class Fetcher {
 public:
  __device__ Fetcher(const ProductParams& p, const Tiles& tiles, Shared& shared, std::uint32_t ring,
                     std::uint32_t warp)
      : p_(p), tokens_(tiles.tokens), shared_(shared), to_(ring + Ring::kWeights), warp_(warp) {}

  __device__ void run() {
    for (PipelineState queue;; queue.advance(kQueue)) {
      mbarrier_wait(shared_address(&shared_.queue_full[queue.index]), queue.phase);
      const Piece& piece = shared_.queue[queue.index];
      const std::uint32_t groups = piece.groups, number = piece.number, which = piece.product;
      const std::uint32_t first = piece.tile.first_row, rows = piece.tile.rows;
      __syncwarp();
      if (lane() == 0) mbarrier_arrive(shared_address(&shared_.queue_empty[queue.index]));
      if (groups == 0) return;
      const Product& product = p_.of[which];
      if (most <= kMostFetched && product.tiles == nullptr) {
        fetch_rows(product, first, rows);
      } else {
        if (is_first()) wait_for_tokens(which, number, rows);
        __syncwarp();
        fetch_tile(product, first, rows);
      }
    }
  }

 private:
  using Ring = Stage<Format, most>;
  __device__ static std::uint32_t lane() { return threadIdx.x % 32; }
  __device__ bool is_first() const { return warp_ == 0 && lane() == 0; }

  // All of a tile that come late, and then h of all groups.
  __device__ void wait_for_tokens(std::uint32_t which, std::uint32_t number, std::uint32_t rows) {
    const std::uint32_t late = number >= p_.late.first ? rows / kGroup : 0;
    const std::uint32_t count = late + (which != 0 ? p_.of[0].matrix.groups : 0);
    if (count != 0) spin_until_count(p_.sorted.done + number, count);
  }
  // send(its first unit, its units, its place in shared memory, its barrier) for each stage.
  template <class Send>
  __device__ void for_stages(std::uint32_t units, const Send& send) {
    for (std::uint32_t unit = 0; unit < units; unit += Ring::kUnits) {
      mbarrier_wait(shared_address(&shared_.empty[stage_.index]), stage_.phase ^ 1);
      send(unit, min(Ring::kUnits, units - unit), to_ + stage_.index * Ring::kBytes,
           shared_address(&shared_.full[stage_.index]));
      stage_.advance(p_.stages);
    }
  }
  // What lies there as it is wanted. All lanes arrive, as they do with rows.
  __device__ void fetch_tile(const Product& product, std::uint32_t first, std::uint32_t rows) {
    const std::uint8_t* from = product.tiles + std::uint64_t{first} * product.matrix.units * 128;
    const std::uint32_t unit_bytes = rows * 128;
    for_stages(product.matrix.units,
               [&](std::uint32_t unit, std::uint32_t units, std::uint32_t to, std::uint32_t full) {
                 if (warp_ == 0 && elect_one()) {
                   fence_proxy_async();  // rows may have lain there
                   mbarrier_arrive_expect_tx(full, units * unit_bytes);
                   cp_async_bulk(to, from + std::uint64_t{unit} * unit_bytes, units * unit_bytes,
                                 full, l2_evict_normal());
                 } else {
                   mbarrier_arrive(full);
                 }
               });
  }
  // Lane l has 16 bytes of row l / 8 of a quad: which one of eight rows that is never changes.
  __device__ void fetch_rows(const Product& product, std::uint32_t first, std::uint32_t rows) {
    const std::uint32_t row = warp_ * 4 + lane() / 8, chunk = lane() % 8;
    const std::uint32_t begun = is_begun_ ? begun_stages<most>(p_) : 0;  // sent for by others
    const std::uint32_t sent = min(begun * Ring::kUnits, product.matrix.units);
    for (std::uint32_t stage = 0; stage < begun; ++stage) {
      mbarrier_arrive(shared_address(&shared_.full[stage]));
      stage_.advance(p_.stages);
    }
    __syncwarp();
    if (!is_begun_)  // this warp's rows
      for (std::uint32_t own = lane() / 4 * 8 + warp_ * 4 + lane() % 4; own < rows; own += 64)
        shared_.sources[own] = tokens_[first + own];
    is_begun_ = false;
    __syncwarp();
    const auto* data =
        static_cast<const std::uint8_t*>(product.rows.data) + chunk * 16 + sent * 128;
    const std::uint32_t stride = keep_in_register(row_bytes(product));
    const std::uint8_t* from[most / kGroup];  // of the lane's row of each eight, where there is one
#pragma unroll
    for (std::uint32_t i = 0; i < most / kGroup; ++i)
      from[i] = data + std::uint64_t{shared_.sources[i * kGroup + row]} * stride;
    for_stages(product.matrix.units - sent,
               [&](std::uint32_t, std::uint32_t units, std::uint32_t to, std::uint32_t full) {
                 std::uint32_t at[Ring::kUnits];
#pragma unroll
                 for (std::uint32_t u = 0; u < Ring::kUnits; ++u)
                   at[u] = keep_in_register(to + (u * rows + row) * 128 + (chunk ^ row) * 16);
#pragma unroll
                 for (std::uint32_t i = 0; i < most / kGroup; ++i) {
                   if (i * kGroup >= rows) break;
                   from[i] += Ring::kUnits * 128;
#pragma unroll
                   for (std::uint32_t u = 0; u < Ring::kUnits; ++u)
                     if (u < units)
                       cp_async_16(at[u] + i * 1024, from[i] - (Ring::kUnits - u) * 128);
                 }
                 cp_async_mbarrier_arrive_noinc(full);
               });
  }

  const ProductParams& p_;
  const std::uint16_t* tokens_;
  Shared& shared_;
  std::uint32_t to_, warp_;
  PipelineState stage_{};
  bool is_begun_ = true;  // the first tile's rows are known, and its first stages are sent for
};

// What a block that sorts does about its first piece meanwhile: weights of its first stage are on
// their way when experts are counted, its tokens when rows are known, and tokens of the other
// stages when the sort needs their place no more.
template <class Format, int most>
class FirstPiece {
 public:
  __device__ FirstPiece(const ProductParams& p, Shared& shared, std::uint32_t ring, Begin& begin)
      : p_(p), product_(p.of[0]), shared_(shared), ring_(ring), begin_(begin) {}

  // `space`: of the sort.
  __device__ Tiles sort(std::uint8_t* space) const {
    constexpr std::uint32_t kStreams = consumers(most) * 4;  // the warp that does
    const std::uint32_t warp = warp_uniform(threadIdx.x / 32);
    // As a rule every expert has a tile.
    const std::uint32_t guess = min(p_.own.slots, p_.own.experts);
    if (warp == kStreams) shared_.cut.make(p_, guess, most);
    return OwnSort(p_, space).run(
        [&] {
          if (threadIdx.x == kStreams * 32) begin_.take(p_);
        },
        [&](const ExpertTables& of) {
          const std::uint32_t tiles = of.first_tile[p_.own.experts];
          if (tiles != guess) shared_.cut.make(p_, tiles, most);
          look_up(of);
        },
        [&](const std::uint16_t* tokens) {
          const std::uint16_t* rows = tokens + shared_.queue[0].tile.first_row;
          if (warp == kStreams)
            keep_rows(rows);
          else
            send_tokens(0, rows);
        });
  }
  // Threads that multiply.
  __device__ void send_other_stages() const {
    for (std::uint32_t stage = 1; stage < begun_stages<most>(p_); ++stage)
      send_tokens(stage, shared_.sources);
    named_barrier_arrive(kTokensAreSent, kSenders);
  }
  // Threads that fetch: they count upon those.
  __device__ static void wait_for_senders() { named_barrier_sync(kTokensAreSent, kSenders); }

 private:
  using Ring = Stage<Format, most>;
  static constexpr std::uint32_t kTokensAreSent = consumers(most) + 1;  // behind theirs
  static constexpr std::uint32_t kSenders = consumers(most) * 128 + fetchers(most) * 32;

  __device__ void look_up(const ExpertTables& of) const {
    begin_.piece = piece_of(shared_.cut.part(warp_uniform(begin_.number)), [&](std::uint32_t tile) {
      return tile_of(of, expert_of_tile(of, p_.own.experts, tile), tile);
    });
    publish(shared_, PipelineState{}, begin_.piece);
    const std::uint32_t groups = warp_uniform(begin_.piece.groups);
    if (groups != 0)
      send_weights<Format, most>(Weights<Format>(p_, begin_.piece), groups, ring_,
                                 shared_address(&shared_.full[0]), weights_l2_policy(most));
  }
  __device__ void keep_rows(const std::uint16_t* rows) const {
    for (std::uint32_t i = threadIdx.x % 32; i < shared_.queue[0].tile.rows; i += 32)
      shared_.sources[i] = rows[i];
  }
  // 16 bytes of each unit of a stage a thread, of the token of its row or two.
  template <class Token>
  __device__ void send_tokens(std::uint32_t stage, const Token* tokens) const {
    constexpr std::uint32_t kRows = consumers(most) * 128 / 8;  // at once
    const std::uint32_t chunk = threadIdx.x % 8, first = stage * Ring::kUnits;
    const std::uint32_t rows = shared_.queue[0].tile.rows;
    if (threadIdx.x >= kRows * 8 || threadIdx.x / 8 >= rows) return;
#pragma unroll
    for (std::uint32_t row = threadIdx.x / 8; row < most; row += kRows) {
      if (row >= rows) break;
      const std::uint8_t* from = static_cast<const std::uint8_t*>(product_.rows.data) +
                                 std::uint64_t{tokens[row]} * row_bytes(product_) + first * 128 +
                                 chunk * 16;
      const std::uint32_t to =
          ring_ + stage * Ring::kBytes + Ring::kWeights + row * 128 + (chunk ^ row % 8) * 16;
#pragma unroll
      for (std::uint32_t u = 0; u < Ring::kUnits; ++u)
        if (first + u < product_.matrix.units) cp_async_16(to + u * rows * 128, from + u * 128);
    }
    cp_async_mbarrier_arrive(shared_address(&shared_.full[stage]));
  }

  const ProductParams& p_;
  const Product& product_;
  Shared& shared_;
  std::uint32_t ring_;
  Begin& begin_;
};

}  // namespace fp4moe::kernels::cuda::sm90::product
