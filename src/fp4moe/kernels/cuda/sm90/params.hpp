// What kernels are launched with: plain structs of device pointers and sizes, the same bytes for
// the host compiler and for nvcc. Every kernel takes one of them.
//
//   T tokens, k choices each; a slot is t * k + j. Weights lie in the layout native_sm90: records
//   of 64 rows x 64 columns. Columns of activations come in units of 64.
//
// Few tokens (decode):  one launch does everything.
// Some:                 prepare, which routes ─► product of w13 and w2, which sorts ─► combine
// More (rows):          prepare, which routes ─► gather ─► product of w13 and w2 ─► combine
//                       or, with more in between: ... product of w13 ─► activate ─► of w2 ...
//
// Between prepare and combine a slot is a row: rows are grouped by expert, in any order in each,
// and an expert's rows are cut into tiles of at most GatherParams::tile_tokens whose sizes differ
// by at most one group of 8. Rows of a tile are padded to a multiple of 8; padding rows hold
// anything, and nothing that is kept depends on them. Activations of a tile are what tensor cores
// read from shared memory, unit after unit:
//
//   byte of (row r of the tile, column c) = tile.first_row * units * 128
//       + (c / 64) * tile.rows * 128 + r * 128 + (((c % 64) / 8) ^ (r % 8)) * 16 + (c % 8) * 2
#pragma once
#include <cstdint>

#include "fp4moe/kernels/cuda/device_lora.hpp"

namespace fp4moe::kernels::cuda::sm90 {

inline constexpr std::uint32_t kUnit = 64;          // rows and columns of a record
inline constexpr std::uint32_t kTileTokens = 192;   // at most, of a tile
inline constexpr std::uint32_t kDecodeColumns = 8;  // tokens of an expert at once, in decode
inline constexpr std::uint32_t kDecodeCounters = 2;
inline constexpr std::uint32_t kDecodeTokens = 16;   // at most, of a decode launch
inline constexpr std::uint32_t kMostExperts = 1024;  // columns of logits, and experts of a rank
inline constexpr std::uint32_t kMostChoices = 32;    // k

enum class Type : std::uint32_t { bf16, f16, f32 };

// As moe::routing::Score and Normalization, `optional` resolved.
enum class Score : std::uint32_t { logit, softmax, sigmoid, sqrt_softplus };
enum class Normal : std::uint32_t { none, over_sum, over_sum_eps, softmax };

// As moe::Activation, in its order.
enum class Act : std::uint32_t {
  swigluoai,
  swigluoai_uninterleave,
  silu,
  gelu,
  gelu_tanh,
  swiglustep,
  situ,
  relu2_no_mul,
  silu_no_mul,
  gelu_no_mul,
  gelu_tanh_no_mul,
};

// As oracle::ActivationKey.
enum class Quantise : std::uint32_t {
  none,
  mxfp8,
  mxfp4,
  nvfp4,
  fp8_static,
  fp8_block128,
  fp8_token
};

// As moe::FirstRounding, MiddleRounding, SecondRounding, WeightRounding.
enum class First : std::uint32_t { none, sum, steps };
enum class Middle : std::uint32_t { none, result, gate_and_result };
enum class Second : std::uint32_t { none, weighted, unweighted, steps };
enum class WeightKind : std::uint32_t { none, bf16, bf16_with_global };

enum class Form : std::uint32_t { summed, slots, batches };

// [rows, columns], `stride` elements from row to row.
struct Rows {
  const void* data = nullptr;
  Type type = Type::bf16;
  std::uint32_t rows = 0;
  std::uint64_t stride = 0;

  friend bool operator==(const Rows&, const Rows&) = default;
};
struct MutableRows {
  void* data = nullptr;
  Type type = Type::bf16;
  std::uint32_t rows = 0;
  std::uint64_t stride = 0;

  friend bool operator==(const MutableRows&, const MutableRows&) = default;
};

// One matrix of every expert of a rank, native_sm90.
struct Matrix {
  const std::uint8_t* records = nullptr;  // [experts][groups][units][kRecord]
  std::uint64_t expert_bytes = 0;         // from expert to expert
  std::uint32_t groups = 0, units = 0;    // of 64 rows, of 64 columns
  const float* factor = nullptr;          // [experts][turns]: multiplies the accumulator
  const float* bias = nullptr;            // [experts][64 * groups] in the order of rows; or null

  friend bool operator==(const Matrix&, const Matrix&) = default;
};

// Rows of w13 in each 16: eight gates, their eight ups (gated), else plain order.
struct Layer {
  Matrix w13{}, w2{};
  std::uint32_t experts = 0, hidden = 0, intermediate = 0;
  std::uint32_t is_gated = 1;
  std::uint32_t is_nvfp4 = 0;

  Act act = Act::silu;
  float alpha = 1, beta = 0, limit = 0;  // limit: infinity where there is none
  float situ_beta = 1, situ_linear_beta = 0;

  First first = First::none;
  Middle middle = Middle::none;
  Second second = Second::none;
  WeightKind weight = WeightKind::none;
  std::uint32_t rounds_sum = 0;
  std::uint32_t activations_in_bf16 = 0;  // quantised values take their factor and are rounded

  Quantise quantise = Quantise::none;
  // NVFP4: G; static FP8: the scale. [1] or [experts]; null where not read.
  const float* input_scales = nullptr;
  const float* hidden_scales = nullptr;
  std::uint32_t input_scales_each = 0, hidden_scales_each = 0;  // one for each expert
  const float* down_global = nullptr;  // [experts]: for WeightKind::bf16_with_global; null: all 1

  friend bool operator==(const Layer&, const Layer&) = default;
};

struct RouteParams {
  Rows logits{};  // [tokens, columns]
  std::uint32_t tokens = 0, columns = 0, top_k = 0;
  Score key = Score::logit, weight = Score::logit;
  Normal normal = Normal::none;
  std::uint32_t groups = 1, chosen_groups = 1, adds_two_per_group = 0;
  std::uint32_t scores_in_logits_type = 0, weights_in_bf16 = 0;
  const float* bias = nullptr;  // [columns] or null
  float scale = 1;
  float* weights = nullptr;  // [tokens, top_k] out

  friend bool operator==(const RouteParams&, const RouteParams&) = default;
};

// What a call brings: ids and weights, given or about to be routed.
struct Call {
  Rows x{};  // [tokens, hidden]; batches: [experts * capacity, hidden]
  std::uint32_t tokens = 0, top_k = 0;
  std::uint32_t x_is_quantised = 0;          // x holds decoded values
  float x_factor = 1;                        // of all x, where so
  const std::int32_t* ids = nullptr;         // [tokens, top_k], global
  const float* weights = nullptr;            // [tokens, top_k]; null: 1
  const std::int32_t* expert_map = nullptr;  // [map_size]: local position or -1; null: id - first
  std::uint32_t map_size = 0;                // global experts
  std::int32_t first_expert = 0;
  // Batches: rows [e * capacity, e * capacity + counts[e]) are expert e's. Null: standard rows.
  const std::int32_t* counts = nullptr;
  std::uint32_t capacity = 0;
  std::uint32_t weight_on_input = 0;  // already in x: no weight is applied
  Form form = Form::summed;
  MutableRows out{};

  friend bool operator==(const Call&, const Call&) = default;
};

struct Tile {
  std::int32_t expert = 0;
  std::uint32_t first_row = 0;
  std::uint32_t rows = 0;   // multiple of 8
  std::uint32_t tiles = 0;  // of the expert
};

inline constexpr std::uint32_t kApart = 8;  // words: sectors of the cache count side by side
// Tables of rows, at most slots + 7 * tiles of them, see most_rows. Prepare gives a slot its rank
// among the slots of its expert, as they come: in whatever order rows are, none has a bit of
// another. Gather, or every block of a product that sorts, adds up experts and writes the others.
struct Sorted {
  Tile* tiles = nullptr;
  std::uint32_t* tile_count = nullptr;  // [1]
  std::uint32_t* work = nullptr;        // [3]: counters of the products; 0 between calls
  // [tiles]: eights of tokens that came late, and groups of h that are there; 0 between calls
  std::uint32_t* done = nullptr;
  std::uint32_t* finished = nullptr;  // [kFinished]; 0 between calls
  // [slots, rounded up to 4], with the expert: see ranked; -1: of none here
  std::int32_t* rank_of_slot = nullptr;
  std::uint32_t* totals = nullptr;        // [experts][kApart]: slots first; 0 between calls
  std::int32_t* row_of_slot = nullptr;    // [slots], -1: computed nowhere here
  std::int32_t* slot_of_row = nullptr;    // [rows], -1: padding
  std::int32_t* expert_of_row = nullptr;  // [rows], local; -1: padding
  std::int32_t* tile_of_row = nullptr;    // [rows / 8]: of each group of 8 rows
};

// What the second product tells combine: early groups of rows that lack, of all tiles; blocks whose
// tables are there, and behind some bits how many groups are early (known before the others are).
// Combine counts its blocks that have heard.
inline constexpr std::uint32_t kEarly = 0, kTold = 1, kHeard = 2, kFinished = 3;
inline constexpr std::uint32_t kToldBits = 16;

// Slots' experts and ranks; before products that sort for themselves also tokens as the first one
// reads them, row after row of layer.w13.units.
struct PrepareParams {
  RouteParams route{};        // columns 0: ids and weights are given
  std::uint32_t rankers = 0;  // blocks that do that, and route; those behind round tokens
  Call call{};
  Layer layer{};
  Sorted to{};
  std::uint8_t* rows = nullptr;  // null: they are fine as they are
  float raise = 1;               // see product_raise
};

// x into tiles, quantised and dequantised on the way.
struct GatherParams {
  Call call{};
  Layer layer{};
  std::uint32_t tile_tokens = kTileTokens;  // at most, of a tile: see kTileBounds
  Sorted sorted{};
  std::uint8_t* tiles = nullptr;      // of layer.w13.units
  std::uint32_t filled = 0xFFFFFFFF;  // so many of them; the product fills the others
  float raise = 1;                    // see product_raise
};

// What h is rounded to between the products, as in Layer.
struct HiddenFormat {
  Quantise quantise = Quantise::none;
  Middle middle = Middle::none;
  std::uint32_t activations_in_bf16 = 0;
  const float* scales = nullptr;
  std::uint32_t scales_each = 0;
};

enum class Epilogue : std::uint32_t {
  hidden,   // activation (swigluoai, swigluoai_uninterleave, silu), bf16 into tiles of `out_units`
  placed,   // the same, quantised by blocks of at most 32 and read back
  raw,      // accumulators, float32 [rows][64 * groups]
  rounded,  // accumulator * factor + bias in bf16, [rows][64 * groups]
};

// A matrix times the tokens of every tile.
struct Product {
  Matrix matrix{};
  const std::uint8_t* tiles = nullptr;  // tokens, of matrix.units; null: they are in `rows`
  Rows rows{};  // of whole units, every address a multiple of 16, less than 4 GiB apart
  Epilogue epilogue = Epilogue::raw;
  void* out = nullptr;
  std::uint32_t out_units = 0;
  std::uint32_t is_gated = 0;  // hidden, placed: always
  float alpha = 1, beta = 0, limit = 0;
  HiddenFormat hidden{};   // placed
  float raise = 1;         // of tokens, and of h that is written
  float input_factor = 1;  // over `raise`; all but raw: also multiplies the accumulator
};
// A slot's rank among those of its expert, or its row, behind the expert.
inline constexpr std::uint32_t kRankBits = 21;
static_assert(kMostExperts <= 1u << (31 - kRankBits));
constexpr std::int32_t ranked(std::uint32_t expert, std::uint32_t rank) {
  return static_cast<std::int32_t>(expert << kRankBits | rank);
}
constexpr std::uint32_t expert_of(std::int32_t both) {
  return static_cast<std::uint32_t>(both) >> kRankBits;
}
constexpr std::uint32_t rank_of(std::int32_t both) {
  return static_cast<std::uint32_t>(both) & ((1u << kRankBits) - 1);
}

// Slots that every block of a product sorts for itself, of standard rows.
struct OwnSlots {
  std::uint32_t slots = 0;
  std::uint32_t experts = 0;  // local; 0: gather has been there
  std::uint32_t tile_tokens = 0;
  std::uint32_t part = 0;          // 2^32 / top_k, rounded up; 0: top_k is 1
  std::uint8_t* tables = nullptr;  // of every block: tiles, then tokens of rows
  std::uint64_t stride = 0;        // bytes from block to block
};
inline constexpr std::uint32_t kOwnShare = 128;  // slots that a block tells others of
// Blocks of a product that write tables for combine.
constexpr std::uint32_t told_blocks(const OwnSlots& own, std::uint32_t blocks) {
  if (own.experts == 0) return 1;
  const std::uint32_t shares = (own.slots + kOwnShare - 1) / kOwnShare;
  return shares < blocks ? shares : blocks;
}
// Rows and tiles of so many slots, at most: an expert's rows are padded to a multiple of 8.
constexpr std::uint32_t own_rows(std::uint32_t slots, std::uint32_t experts) {
  return (slots + 7 * (slots < experts ? slots : experts) + 7) / 8 * 8;
}
constexpr std::uint32_t own_tiles(std::uint32_t slots, std::uint32_t experts) {
  return slots / 32 + (slots < experts ? slots : experts);
}
constexpr std::uint64_t own_bytes(std::uint32_t slots, std::uint32_t experts) {
  return std::uint64_t{own_tiles(slots, experts)} * sizeof(Tile) +
         std::uint64_t{own_rows(slots, experts)} * 2;
}
// Shared memory for it: those, sums of 32 warps, and tables of experts.
inline constexpr std::uint32_t kOwnSlots = 8192, kOwnExperts = 640;
constexpr std::uint64_t own_space(std::uint32_t slots, std::uint32_t experts) {
  return own_bytes(slots, experts) + 256 + (3 * std::uint64_t{experts} + 2) * 4;
}

// Tokens that the product lays into of[0].tiles itself, from of[0].rows.
struct Late {
  std::uint32_t first = 0xFFFFFFFF;  // tile; those before it are there
  std::uint32_t choices = 1;         // slots of a row
};

// The first product, the second (the other has no groups), or both: then tokens of the second are
// what the first leaves, tile by tile.
struct ProductParams {
  Product of[2]{};
  Late late{};
  Sorted sorted{};
  OwnSlots own{};
  std::uint32_t* work = nullptr;  // sorted.work, or sorted.work + 1 for the second of two launches
  std::uint32_t stages = 0;       // of product_shape
};

// Low-rank additions, [adapters][experts] of them.
struct DeviceLora {
  const DeviceLoraExpert* pairs = nullptr;  // null: none
  const std::int32_t* adapters = nullptr;   // [tokens], -1: none
  std::uint32_t experts = 0;
  std::uint32_t most_rank = 0;
  float* low = nullptr;  // [rows][most_rank]: A_down h of each row, from activate to combine
};

// Raw sums of the first product become h: all activations, roundings, quantisers, low ranks.
struct ActivateParams {
  Call call{};
  Layer layer{};
  Sorted sorted{};
  const float* raw = nullptr;     // [rows][64 * w13.groups]
  std::uint8_t* tiles = nullptr;  // of layer.w2.units
  DeviceLora lora{};
  float raise = 1;
};

// Rows of the second product become the output. Counters of the products are made 0 again.
struct CombineParams {
  Call call{};
  Layer layer{};
  Sorted sorted{};
  const void* rows = nullptr;  // raw or rounded, as the kernel reads them, [rows][64 * w2.groups]
  std::uint32_t told = 0;      // blocks of the product that tell of tables
  DeviceLora lora{};
};

// Everything for at most kDecodeTokens tokens in one cooperative launch of one block an SM.
// Standard rows only, output summed, no low ranks. Numbers that blocks leave for each other carry
// the number of the launch in their upper halves, so that who waits for them sees them come; all
// memory is 0 before the first launch.
struct DecodeParams {
  Call call{};
  Layer layer{};
  RouteParams route{};                // columns 0: ids and weights are given
  std::uint32_t tile_rows = 8;        // of the tile of tokens, see decode_shape
  std::uint32_t stages = 0;           // of the ring of weights
  std::uint64_t* partial = nullptr;   // [blocks][4][64 * kDecodeColumns]
  std::uint64_t* hidden = nullptr;    // [slots][64 * w2.units], see hidden_place
  std::uint64_t* sums = nullptr;      // [slots][64 * w2.groups]
  std::uint32_t* counters = nullptr;  // [kDecodeCounters]: launches so far, blocks that are done

  friend bool operator==(const DecodeParams&, const DecodeParams&) = default;
};

// What most calls are, and kernels of their own are for, which know it when they are compiled: BF16
// in and out, gated SwiGLU, nothing rounded on the way, experts chosen by up to 128 logits as they
// are, or given; activations as they come, or quantised as well. Other calls do not stay as they
// were.
inline constexpr std::uint32_t kMostHeld = 128;  // logits that a warp holds in registers
constexpr DecodeParams quantised(DecodeParams p) {
  p.layer.is_gated = 1;
  p.layer.act = Act::swigluoai;
  p.layer.first = First::none;
  p.layer.middle = Middle::none;
  p.layer.second = Second::none;
  p.layer.weight = WeightKind::none;
  p.layer.rounds_sum = 0;
  p.call.x.type = Type::bf16;
  p.call.x_is_quantised = 0;
  p.call.out.type = Type::bf16;
  if (p.route.columns > kMostHeld) p.route.columns = kMostHeld;
  p.route.weight = p.route.key;
  p.route.groups = 1;
  p.route.scores_in_logits_type = 0;
  p.route.weights_in_bf16 = 0;
  p.route.bias = nullptr;
  return p;
}
constexpr DecodeParams plain(DecodeParams p) {
  p.layer.quantise = Quantise::none;
  p.layer.activations_in_bf16 = 0;
  p.layer.input_scales = nullptr;
  p.layer.hidden_scales = nullptr;
  return quantised(p);
}

// Packs rows of the checkpoint into native_sm90, one matrix of one expert.
struct PackParams {
  const std::uint8_t* codes = nullptr;              // [rows, columns / 2], low nibble first
  const std::uint8_t* scales = nullptr;             // [rows, columns / block]
  std::uint64_t code_stride = 0, scale_stride = 0;  // bytes from row to row
  // Rows of the gate and of the up matrix begin here and there; both are `rows` long. Not gated:
  // second_codes is null.
  const std::uint8_t* second_codes = nullptr;
  const std::uint8_t* second_scales = nullptr;
  std::uint32_t rows = 0, columns = 0;
  std::uint32_t is_nvfp4 = 0;
  std::int32_t offset = 0;  // MXFP4: taken out of the scales
  std::uint8_t* records = nullptr;
  std::uint32_t groups = 0;  // of 64 rows that are written, zeros behind the last; at least all
};

}  // namespace fp4moe::kernels::cuda::sm90
