// One matrix of every expert times the tokens of its tiles: 64 rows of weights by up to 192 tokens
// a warpgroup, several of them a block, one block a multiprocessor.
//
//   producer   one warp takes pieces of work (a tile, a group of 64 rows for each warpgroup) and
//              streams records into a ring of stages by bulk copies; which they are has been known
//              since sort, so it waits for nobody. Two more fetch tokens: of tiles by bulk copies,
//              of rows that are not in tiles 16 bytes a lane. They wait for all kernels before
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

#include "fp4moe/kernels/cuda/sm90/cut.cuh"
#include "fp4moe/kernels/cuda/sm90/own_sort.cuh"
#include "fp4moe/kernels/cuda/sm90/params.hpp"
#include "fp4moe/kernels/cuda/sm90/product_late.cuh"
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
__device__ inline std::uint64_t weights_policy(int most) {
  return most <= 128 ? read_once() : read_again();
}
// Weights of a piece that are still to be sent: what its groups go on with, how far they are apart.
template <class Format>
struct Weights {
  const std::uint8_t* from;
  std::uint32_t group_bytes, units;

  __device__ Weights(const ProductParams& p, const Piece& piece) {
    const Matrix& matrix = p.of[uniform(piece.product)].matrix;
    units = matrix.units;
    group_bytes = units * Format::kRecord;
    from = matrix.records +
           std::uint64_t{uniform(static_cast<std::uint32_t>(piece.tile.expert))} *
               matrix.expert_bytes +
           std::uint64_t{uniform(piece.first)} * group_bytes;
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
  if (is_elected()) {
    barrier_expect(full, groups * bytes);
#pragma unroll
    for (std::uint32_t g = 0; g < consumers(most); ++g)
      if (g < groups)
        bulk_copy(to + g * stage_units(most) * Format::kRecord,
                  weights.from + g * weights.group_bytes, bytes, full, policy);
  }
  __syncwarp();
}

// A piece, for everybody else.
__device__ inline void publish(Shared& shared, const Place& queue, const Piece& piece) {
  barrier_wait(shared_address(&shared.queue_empty[queue.at]), queue.parity ^ 1);
  if (threadIdx.x % 32 == 0) {
    shared.queue[queue.at] = piece;
    barrier_arrive(shared_address(&shared.queue_full[queue.at]));
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
  const std::uint64_t policy = weights_policy(most);
  std::uint32_t number = begin.next;
  Piece piece = begin.piece;
  Place stage, queue;
  for (;;) {
    if (!is_begun) publish(shared, queue, piece);
    queue.advance(kQueue);
    const std::uint32_t groups = uniform(piece.groups);
    if (groups == 0) return;
    Weights<Format> weights(p, piece);
    piece = piece_of(shared.cut.part(uniform(number)),
                     [&](std::uint32_t tile) { return tile_at(tiles.tiles, tile); });
    if (threadIdx.x % 32 == 0) number = atomicAdd(p.work, 1u);
    if (is_begun) {
      weights.pass(Ring::kUnits);
      stage.advance(p.stages);
    }
    is_begun = false;
    while (weights.units > 0) {
      barrier_wait(shared_address(&shared.empty[stage.at]), stage.parity ^ 1);
      send_weights<Format, most>(weights, groups, ring + stage.at * Ring::kBytes,
                                 shared_address(&shared.full[stage.at]), policy);
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
    for (Place queue;; queue.advance(kQueue)) {
      barrier_wait(shared_address(&shared_.queue_full[queue.at]), queue.parity);
      const Piece& piece = shared_.queue[queue.at];
      const std::uint32_t groups = piece.groups, number = piece.number, which = piece.product;
      const std::uint32_t first = piece.tile.first_row, rows = piece.tile.rows;
      __syncwarp();
      if (lane() == 0) barrier_arrive(shared_address(&shared_.queue_empty[queue.at]));
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
    if (count != 0) wait_for_count(p_.sorted.done + number, count);
  }
  // send(its first unit, its units, its place in shared memory, its barrier) for each stage.
  template <class Send>
  __device__ void for_stages(std::uint32_t units, const Send& send) {
    for (std::uint32_t unit = 0; unit < units; unit += Ring::kUnits) {
      barrier_wait(shared_address(&shared_.empty[stage_.at]), stage_.parity ^ 1);
      send(unit, min(Ring::kUnits, units - unit), to_ + stage_.at * Ring::kBytes,
           shared_address(&shared_.full[stage_.at]));
      stage_.advance(p_.stages);
    }
  }
  // What lies there as it is wanted. All lanes arrive, as they do with rows.
  __device__ void fetch_tile(const Product& product, std::uint32_t first, std::uint32_t rows) {
    const std::uint8_t* from = product.tiles + std::uint64_t{first} * product.matrix.units * 128;
    const std::uint32_t unit_bytes = rows * 128;
    for_stages(product.matrix.units,
               [&](std::uint32_t unit, std::uint32_t units, std::uint32_t to, std::uint32_t full) {
                 if (warp_ == 0 && is_elected()) {
                   fence_for_tensor_cores();  // rows may have lain there
                   barrier_expect(full, units * unit_bytes);
                   bulk_copy(to, from + std::uint64_t{unit} * unit_bytes, units * unit_bytes, full,
                             read_again());
                 } else {
                   barrier_arrive(full);
                 }
               });
  }
  // Lane l has 16 bytes of row l / 8 of a quad: which one of eight rows that is never changes.
  __device__ void fetch_rows(const Product& product, std::uint32_t first, std::uint32_t rows) {
    const std::uint32_t row = warp_ * 4 + lane() / 8, chunk = lane() % 8;
    const std::uint32_t begun = is_begun_ ? begun_stages<most>(p_) : 0;  // sent for by others
    const std::uint32_t sent = min(begun * Ring::kUnits, product.matrix.units);
    for (std::uint32_t stage = 0; stage < begun; ++stage) {
      barrier_arrive(shared_address(&shared_.full[stage]));
      stage_.advance(p_.stages);
    }
    __syncwarp();
    static_assert(kMostFetched / fetchers(kMostFetched) <= 32);
    const std::uint32_t own = lane() / 4 * 8 + warp_ * 4 + lane() % 4;  // of this warp's rows
    if (own < rows && !is_begun_) shared_.sources[own] = tokens_[first + own];
    is_begun_ = false;
    __syncwarp();
    const auto* data =
        static_cast<const std::uint8_t*>(product.rows.data) + chunk * 16 + sent * 128;
    const std::uint32_t stride = held(row_bytes(product));
    const std::uint8_t* from[most / kGroup];  // of the lane's row of each eight, where there is one
#pragma unroll
    for (std::uint32_t i = 0; i < most / kGroup; ++i)
      from[i] = data + std::uint64_t{shared_.sources[i * kGroup + row]} * stride;
    for_stages(product.matrix.units - sent,
               [&](std::uint32_t, std::uint32_t units, std::uint32_t to, std::uint32_t full) {
                 std::uint32_t at[Ring::kUnits];
#pragma unroll
                 for (std::uint32_t u = 0; u < Ring::kUnits; ++u)
                   at[u] = held(to + (u * rows + row) * 128 + (chunk ^ row) * 16);
#pragma unroll
                 for (std::uint32_t i = 0; i < most / kGroup; ++i) {
                   if (i * kGroup >= rows) break;
                   from[i] += Ring::kUnits * 128;
#pragma unroll
                   for (std::uint32_t u = 0; u < Ring::kUnits; ++u)
                     if (u < units)
                       copy_later16(at[u] + i * 1024, from[i] - (Ring::kUnits - u) * 128);
                 }
                 arrive_behind_copies(full);
               });
  }

  const ProductParams& p_;
  const std::uint16_t* tokens_;
  Shared& shared_;
  std::uint32_t to_, warp_;
  Place stage_{};
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
    const std::uint32_t warp = uniform(threadIdx.x / 32);
    return OwnSort(p_, space).run(
        [&] {
          if (threadIdx.x == kStreams * 32) begin_.take(p_);
        },
        [&](const ExpertTables& of) { look_up(of); },
        [&](const std::uint16_t* tokens) {
          const std::uint16_t* rows = tokens + shared_.queue[0].tile.first_row;
          if (warp == kStreams)
            keep_rows(rows);
          else
            send_tokens(0, rows[threadIdx.x / 8]);
        });
  }
  // Threads that multiply.
  __device__ void send_other_stages() const {
    for (std::uint32_t stage = 1; stage < begun_stages<most>(p_); ++stage)
      send_tokens(stage, shared_.sources[threadIdx.x / 8]);
    arrive_some(kTokensAreSent, kSenders);
  }
  // Threads that fetch: they count upon those.
  __device__ static void wait_for_senders() { sync_some(kTokensAreSent, kSenders); }

 private:
  using Ring = Stage<Format, most>;
  static constexpr std::uint32_t kTokensAreSent = consumers(most) + 1;  // behind theirs
  static constexpr std::uint32_t kSenders = consumers(most) * 128 + fetchers(most) * 32;

  __device__ void look_up(const ExpertTables& of) const {
    shared_.cut.make(p_, of.first_tile[p_.own.experts], most);
    begin_.piece = piece_of(shared_.cut.part(uniform(begin_.number)), [&](std::uint32_t tile) {
      return tile_of(of, expert_of_tile(of, p_.own.experts, tile), tile);
    });
    publish(shared_, Place{}, begin_.piece);
    const std::uint32_t groups = uniform(begin_.piece.groups);
    if (groups != 0)
      send_weights<Format, most>(Weights<Format>(p_, begin_.piece), groups, ring_,
                                 shared_address(&shared_.full[0]), weights_policy(most));
  }
  __device__ void keep_rows(const std::uint16_t* rows) const {
    for (std::uint32_t i = threadIdx.x % 32; i < shared_.queue[0].tile.rows; i += 32)
      shared_.sources[i] = rows[i];
  }
  // 16 bytes of each unit of a stage a thread.
  __device__ void send_tokens(std::uint32_t stage, std::uint32_t token) const {
    const std::uint32_t row = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const std::uint32_t rows = shared_.queue[0].tile.rows, first = stage * Ring::kUnits;
    if (row >= rows) return;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(product_.rows.data) +
                               std::uint64_t{token} * row_bytes(product_) + first * 128 +
                               chunk * 16;
    const std::uint32_t to =
        ring_ + stage * Ring::kBytes + Ring::kWeights + row * 128 + (chunk ^ row % 8) * 16;
#pragma unroll
    for (std::uint32_t u = 0; u < Ring::kUnits; ++u)
      if (first + u < product_.matrix.units) copy_later16(to + u * rows * 128, from + u * 128);
    add_arrival_behind_copies(shared_address(&shared_.full[stage]));
  }

  const ProductParams& p_;
  const Product& product_;
  Shared& shared_;
  std::uint32_t ring_;
  Begin& begin_;
};

// One lane. Of pieces of the first product it tells whoever waits for the tile, of early ones of
// the second combine, which also hears of its tables, and how many columns are early.
class Herald {
 public:
  __device__ Herald(const ProductParams& p, Shared& shared) : p_(p), shared_(shared) {}

  // Consumers give a place of the queue back when all that they wrote is on its way.
  __device__ void run() {
    bool tells = p_.sorted.finished != nullptr && p_.of[1].matrix.groups != 0;
    for (Place queue;; queue.advance(kQueue)) {
      barrier_wait(shared_address(&shared_.queue_full[queue.at]), queue.parity);
      if (tells) begin(shared_.cut);
      tells = false;
      const Piece& piece = shared_.queue[queue.at];
      const std::uint32_t groups = piece.groups;
      std::uint32_t* counter = counter_of(piece);
      barrier_arrive(shared_address(&shared_.queue_empty[queue.at]));
      if (groups == 0) return;
      if (counter == nullptr) continue;
      barrier_wait(shared_address(&shared_.queue_empty[queue.at]), queue.parity);
      add_released(counter, groups);
    }
  }

 private:
  __device__ void begin(const Cut& cut) {
    std::uint32_t* finished = p_.sorted.finished;
    if (blockIdx.x == 0) {
      const std::uint32_t early = cut.early_groups();
      add_released(finished + kEarly, 0 - cut.tiles() * early);
      add_released(finished + kTold, 1 + (early << kToldBits));
    } else if (blockIdx.x < told_blocks(p_.own, gridDim.x)) {
      add_released(finished + kTold, 1);
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
__device__ inline void multiply(std::uint32_t units, std::uint32_t stages, Shared& shared,
                                std::uint32_t ring, std::uint32_t tile_bytes, Consumer& me,
                                float (&sums)[most / 2]) {
  using Ring = Stage<Format, most>;
  std::uint32_t stage = ring + me.stage.at * Ring::kBytes;
  for (std::uint32_t left = units; left > 0;) {
    barrier_wait(shared_address(&shared.full[me.stage.at]), me.stage.parity);
    // Tokens may have come by ordinary copies.
    if constexpr (columns > 16 && most <= kMostFetched) fence_for_tensor_cores();
    multiply_stage<Format, most, columns>(me, stage, left, tile_bytes, sums);
    left -= min(Ring::kUnits, left);
    if (me.lane == 0) barrier_arrive(shared_address(&shared.empty[me.stage.at]));
    me.stage.advance(stages);
    stage = me.stage.at == 0 ? ring : stage + Ring::kBytes;
  }
}

// A warpgroup without rows in a piece: stages go by.
template <class Format, int most>
__device__ inline void let_pass(std::uint32_t units, std::uint32_t stages, Shared& shared,
                                Consumer& me) {
  constexpr std::uint32_t kUnits = Stage<Format, most>::kUnits;
  for (std::uint32_t unit = 0; unit < units; unit += kUnits) {
    barrier_wait(shared_address(&shared.full[me.stage.at]), me.stage.parity);
    if (me.lane == 0) barrier_arrive(shared_address(&shared.empty[me.stage.at]));
    me.stage.advance(stages);
  }
}

// What all registers of a block are shared out as, where that is worth its while.
struct Registers {
  int feeds, multiplies;
};
constexpr Registers registers(int most) {
  return most > 128 ? Registers{32, 160} : most > 64 ? Registers{32, 112} : Registers{48, 104};
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
  const std::uint32_t block_warp = uniform(threadIdx.x / 32);
  Consumer me{block_warp / 4, block_warp % 4, threadIdx.x % 32, {}};
  const Staging space(ring + params.stages * Stage<Format, most>::kBytes + me.group * kStaging);
  Place queue;
  for (;;) {
    barrier_wait(shared_address(&shared.queue_full[queue.at]), queue.parity);
    const Piece& piece = shared.queue[queue.at];
    const std::uint32_t groups = uniform(piece.groups);
    if (groups == 0) return;
    const std::uint32_t tile_bytes = uniform(piece.tile.rows) * 128;
    const Product& p = params.of[uniform(piece.product)];
    const std::uint32_t units = p.matrix.units, stages = params.stages;
    float sums[most / 2];
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    const auto product = [&]<int... columns>(std::integer_sequence<int, columns...>) {
      // The first number of columns that the tile fits into.
      const bool done =
          ((tile_bytes <= columns * 128 &&
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
    if (me.lane == 0) barrier_arrive(shared_address(&shared.queue_empty[queue.at]));
    queue.advance(kQueue);
  }
}

// Inline: behind a call the compiler waits for each tensor instruction.
template <class Format, int most>
__device__ __forceinline__ void run(const ProductParams& p) {
  constexpr std::uint32_t kWarps = consumers(most) * 4, kFetchers = fetchers(most);
  extern __shared__ std::uint8_t memory[];
  fetch_params(p);
  // Swizzled tokens want multiples of 1024.
  const std::uint32_t start = (shared_address(memory) + 1023) & ~1023u;
  auto& shared = *reinterpret_cast<Shared*>(memory + (start - shared_address(memory)));
  const std::uint32_t ring = start + kTables;
  static_assert(kQueue <= kMostStages);
  if (threadIdx.x < kMostStages) {
    barrier_init(shared_address(&shared.full[threadIdx.x]), 1 + kFetchers * 32);
    barrier_init(shared_address(&shared.empty[threadIdx.x]), kWarps);
    if (threadIdx.x < kQueue) {
      barrier_init(shared_address(&shared.queue_full[threadIdx.x]), 1);
      barrier_init(shared_address(&shared.queue_empty[threadIdx.x]), kWarps + kFetchers + 1);
    }
    barrier_init_done();
  }
  __syncthreads();
  const std::uint32_t warp = uniform(threadIdx.x / 32);
  const bool streams = warp == kWarps;
  const bool sorts = most <= kMostFetched && p.own.experts != 0;
  Tiles tiles{p.sorted.tiles, 0, nullptr};
  Begin begin;
  const FirstPiece<Format, most> first(p, shared, ring, begin);
  if (sorts)
    tiles = first.sort(memory + (ring - shared_address(memory)) + Stage<Format, most>::kBytes);
  if (warp >= kWarps) {
    if constexpr (most > 32) give_registers<registers(most).feeds>();
    if (streams) {
      if (!sorts) {
        tiles.count = __ldcg(p.sorted.tile_count);
        if (threadIdx.x % 32 == 0) begin.take(p);
        shared.cut.make(p, tiles.count, most);
        begin.piece = piece_of(shared.cut.part(uniform(begin.number)),
                               [&](std::uint32_t tile) { return tile_at(tiles.tiles, tile); });
      }
      return stream_weights<Format, most>(p, tiles, begin, shared, ring, sorts);
    }
    if (!sorts) {
      wait_for_previous();
      let_next_begin();  // it looks at tables of all kernels before this one
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
    if constexpr (most > 32) take_registers<registers(most).multiplies>();
    if (sorts) first.send_other_stages();
    consume_all<Format, most>(p, shared, ring);
  }
}

}  // namespace fp4moe::kernels::cuda::sm90::product
