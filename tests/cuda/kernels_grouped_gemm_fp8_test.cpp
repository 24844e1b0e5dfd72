// The grouped GEMM on FP8 tensor cores, on hand-made tiles against sums in float64; and the kernels
// around it: gather_fp8, quantize_hidden, row_scales.
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "fp4moe/formats/e4m3fn.hpp"
#include "fp4moe/kernels/cuda/sm90/gather_fp8/params.hpp"
#include "fp4moe/kernels/cuda/sm90/grouped_gemm_fp8/shape.hpp"
#include "fp4moe/kernels/cuda/sm90/quantize_hidden/params.hpp"
#include "fp4moe/kernels/cuda/sm90/row_scales/params.hpp"
#include "fp4moe/moe/quantized_rows.hpp"
#include "matrices.hpp"
#include "support/emulated.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_grouped_gemm_fp8_test {

using formats::E4m3fn;

// Of the sums of a row, in root mean squares: the bound that docs/cuda.md tells.
constexpr double kMaxError = 1e-3;

// Byte of a row's column in token tiles of E4M3: inside 32 columns, column 8 i + 2 j + h is byte
// 16 h + 4 j + i.
std::size_t code_byte(const HostTables& tables, std::uint32_t row, std::uint32_t column,
                      std::uint32_t k_blocks, bool has_block_scales) {
  const TokenTile& tile = tables.tiles[static_cast<std::size_t>(tables.tile_of_row_group[row / 8])];
  const std::uint32_t r = row - tile.first_row, c = column % 32;
  const std::size_t row_bytes = has_block_scales ? 132 : 128, blocks = (k_blocks + 1) / 2;
  const std::uint32_t chunk = column % 128 / 32 * 2 + c % 2;
  return tile.first_row * row_bytes * blocks + column / 128 * tile.rows * row_bytes + r * 128 +
         (chunk ^ r % 8) * 16 + c % 8 / 2 * 4 + c / 8;
}
std::size_t scale_byte(const HostTables& tables, std::uint32_t row, std::uint32_t block,
                       std::uint32_t k_blocks) {
  const TokenTile& tile = tables.tiles[static_cast<std::size_t>(tables.tile_of_row_group[row / 8])];
  return tile.first_row * std::size_t{132} * ((k_blocks + 1) / 2) +
         std::size_t{block} * tile.rows * 132 + tile.rows * 128 + (row - tile.first_row) * 4;
}
float float_at(const std::vector<std::uint8_t>& bytes, std::size_t at) {
  float result = 0;
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data() + at), 4,
              reinterpret_cast<std::byte*>(&result));
  return result;
}

HostTables tables_of(const std::vector<std::uint32_t>& counts, std::uint32_t tile_tokens) {
  std::vector<std::int32_t> experts;
  for (std::size_t e = 0; e < counts.size(); ++e)
    experts.insert(experts.end(), counts[e], static_cast<std::int32_t>(e));
  SplitMix64 random(7);
  for (std::size_t i = experts.size(); i > 1; --i)
    std::swap(experts[i - 1], experts[random.next() % i]);
  return host_tables(experts, static_cast<std::uint32_t>(counts.size()), tile_tokens);
}

// Block scales that span all that E4M3 holds, and blocks of zeros under other scales.
HostMatrix wide_matrix(std::size_t experts, std::uint32_t m_blocks, std::uint32_t k_blocks,
                       std::uint64_t seed) {
  HostMatrix result = make_matrix(experts, m_blocks, k_blocks, false, seed);
  SplitMix64 random(seed + 100);
  for (std::size_t block = 0; block < result.scales.size(); ++block) {
    const bool is_zero = random.next() % 7 == 0;
    result.scales[block] =
        static_cast<std::uint8_t>(is_zero ? 20 + random.next() % 108 : 114 + random.next() % 15);
    for (std::size_t i = block * 32; i < (block + 1) * 32; ++i) {
      if (is_zero && i % 2 == 0) result.codes[i / 2] = random.next() % 2 == 0 ? 0x08 : 0x80;
      const std::uint8_t byte = result.codes[i / 2];
      const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? byte & 15 : byte >> 4);
      result.values[i] =
          std::ldexp(double{formats::E2m1::decode(code)}, result.scales[block] - 127);
    }
  }
  return result;
}

struct Case {
  Epilogue epilogue = Epilogue::raw_f32;
  std::uint32_t tile_tokens = 64;
  bool has_block_scales = false, has_token_scales = true;
  std::uint32_t m_blocks = 5, k_blocks = 3;
  std::vector<std::uint32_t> counts{1, 9, 0, 23};
  std::uint32_t blocks = 3;
};

class GroupedGemmFp8 : public WithMatrices {
 protected:
  struct RowScales {
    Memory memory{};
    std::uint32_t wide = 0;
  };
  RowScales row_scales(const Memory& tiles, std::size_t matrices, std::uint32_t k_blocks) {
    RowScales result{.memory = buffer<std::uint8_t>(matrices * kBlockM)};
    const Memory wide = upload(std::vector<std::uint32_t>{0});
    run("fp4moe_sm90_row_scales",
        RowScalesParams{.tiles = tiles.as<std::uint8_t>(),
                        .k_blocks = k_blocks,
                        .largest = result.memory.as<std::uint8_t>(),
                        .wide_rows = wide.as<std::uint32_t>()},
        {static_cast<std::uint32_t>(matrices), kRowScalesThreads});
    result.wide = download<std::uint32_t>(wide, 1)[0];
    return result;
  }

  void expect_multiplied(const Case& c) {
    SCOPED_TRACE(fmt::format("epilogue {}, tiles of {}, {} x {} blocks, block scales {}",
                             static_cast<int>(c.epilogue), c.tile_tokens, c.m_blocks, c.k_blocks,
                             c.has_block_scales));
    const HostTables tables = tables_of(c.counts, c.tile_tokens);
    const std::size_t experts = c.counts.size(), rows = tables.assignment_of_row.size();
    const HostMatrix w = wide_matrix(experts, c.m_blocks, c.k_blocks, 5);
    const Memory weights = pack(w, experts, false);
    const RowScales scales = row_scales(weights, experts * c.m_blocks, c.k_blocks);
    ASSERT_EQ(scales.wide, 0);

    // Tokens: codes and scales of every row, zeros behind the last column, NaN in padding.
    SplitMix64 random(3);
    const std::uint32_t blocks = (c.k_blocks + 1) / 2;
    std::vector<std::uint8_t> tiles(rows * blocks * 132, 0x7F);
    std::vector<float> token_scales = random_values(rows, 4);
    std::vector<double> x(rows * w.columns());
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (tables.assignment_of_row[row] < 0) continue;
      for (std::uint32_t k = 0; k < w.columns(); ++k) {
        auto code = static_cast<std::uint8_t>(random.next());
        if ((code & 0x7F) == E4m3fn::kNan) code = 0x3A;
        tiles[code_byte(tables, row, k, c.k_blocks, c.has_block_scales)] = code;
        double scale = c.has_token_scales ? double{token_scales[row]} : 1.0;
        if (c.has_block_scales) scale = 0.5 + ((row * 7 + k / 128) % 16) / 8.0;
        x[row * w.columns() + k] = double{E4m3fn::decode(code)} * scale;
      }
      for (std::uint32_t k = w.columns(); k < blocks * 128; ++k)
        tiles[code_byte(tables, row, k, c.k_blocks, c.has_block_scales)] = 0;
      for (std::uint32_t b = 0; b < blocks && c.has_block_scales; ++b) {
        const auto scale = static_cast<float>(0.5 + ((row * 7 + b) % 16) / 8.0);
        std::copy_n(reinterpret_cast<const std::uint8_t*>(&scale), 4,
                    tiles.data() + scale_byte(tables, row, b, c.k_blocks));
      }
    }
    std::vector<float> factors = w.factors;
    if (c.epilogue == Epilogue::scaled_bf16) factors.resize(experts);
    const Memory token_tiles = upload(tiles), scales_of = upload(token_scales),
                 factor = upload(factors), bias = upload(w.bias), tile_table = upload(tables.tiles),
                 counter = upload(std::vector<std::uint32_t>(3)),
                 progress = upload(std::vector<std::uint32_t>(tables.tiles.size())),
                 signals = upload(std::vector<std::uint32_t>(kCombineSignals)),
                 count = upload(
                     std::vector<std::uint32_t>{static_cast<std::uint32_t>(tables.tiles.size())}),
                 out = buffer<float>(rows * w.rows());
    GroupedGemmParams p;
    p.gemms[0] = {.matrix = {.tiles = weights.as<std::uint8_t>(),
                             .expert_bytes =
                                 std::uint64_t{w.m_blocks} * w.k_blocks * weight_tile_bytes(false),
                             .m_blocks = w.m_blocks,
                             .k_blocks = w.k_blocks,
                             .factor = factor.as<float>(),
                             .bias = bias.as<float>(),
                             .row_scales = scales.memory.as<std::uint8_t>()},
                  .tiles = token_tiles.as<std::uint8_t>(),
                  .epilogue = c.epilogue,
                  .out = out.data(),
                  .token_scales =
                      c.has_token_scales && !c.has_block_scales ? scales_of.as<float>() : nullptr};
    p.tables.tiles = tile_table.as<TokenTile>();
    p.tables.tile_count = count.as<std::uint32_t>();
    p.tables.tile_progress = progress.as<std::uint32_t>();
    p.tables.combine_signals = signals.as<std::uint32_t>();
    p.work_counter = counter.as<std::uint32_t>();
    const auto shape = grouped_gemm_fp8::shape(c.tile_tokens, c.has_block_scales);
    p.stages = shape.stages;
    const std::string name = fmt::format("fp4moe_sm90_grouped_gemm_fp8_{}_n{}",
                                         c.has_block_scales ? "block" : "token", c.tile_tokens);
    run(name.c_str(), p, {c.blocks, shape.threads, shape.shared_bytes});

    const auto out32 = download<float>(out, rows * w.rows());
    const auto out16 = download<std::uint16_t>(out, rows * w.rows());
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (tables.assignment_of_row[row] < 0) continue;
      const auto expert = static_cast<std::size_t>(tables.expert_of_row[row]);
      double squares = 0, errors = 0;
      for (std::uint32_t r = 0; r < w.rows(); ++r) {
        double wanted = 0;
        for (std::uint32_t k = 0; k < w.columns(); ++k)
          wanted += w.row(expert, r)[k] * x[row * w.columns() + k];
        double found = out32[row * w.rows() + r];
        if (c.epilogue == Epilogue::scaled_bf16) {
          wanted = wanted * double{factors[expert]} + double{w.bias[expert * w.rows() + r]};
          found = formats::Bf16::decode(out16[row * w.rows() + r]);
        }
        squares += wanted * wanted;
        errors += (found - wanted) * (found - wanted);
      }
      const double error = std::sqrt(errors / squares);
      const double bound = c.epilogue == Epilogue::raw_f32 ? kMaxError : kMaxError + 0x1p-9;
      worst_ = std::max(worst_, error);
      ASSERT_LE(error, bound) << "row " << row;
    }
  }
  void TearDown() override { RecordProperty("worst_error", fmt::format("{}", worst_)); }

  double worst_ = 0;
};

TEST_F(GroupedGemmFp8, TakesTilesOfEverySizeWithPartialRowGroups) {
  for (const bool has_block_scales : {false, true})
    for (const std::uint32_t size : grouped_gemm_fp8::kTileSizes) {
      if (has_block_scales && size != grouped_gemm_fp8::kMaxTileTokens) continue;  // no such kernel
      expect_multiplied({.tile_tokens = size,
                         .has_block_scales = has_block_scales,
                         .counts = {1, size + 3, 0, size - 5, 2 * size, 17, 40, 90}});
    }
}

TEST_F(GroupedGemmFp8, TakesAnyNumberOfBlocks) {
  for (const bool has_block_scales : {false, true})
    for (const std::uint32_t m_blocks : some<std::uint32_t>({1, 7, 2}))
      for (const std::uint32_t k_blocks : some<std::uint32_t>({1, 5, 2, 18, 45}))
        for (const std::uint32_t blocks : {1u, 40u})
          expect_multiplied({.tile_tokens = has_block_scales ? 160u : 64u,
                             .has_block_scales = has_block_scales,
                             .m_blocks = m_blocks,
                             .k_blocks = k_blocks,
                             .blocks = blocks});
}

TEST_F(GroupedGemmFp8, HasFactorsAndBiases) {
  for (const std::uint32_t size : grouped_gemm_fp8::kTileSizes)
    for (const bool has_token_scales : {false, true})
      expect_multiplied({.epilogue = Epilogue::scaled_bf16,
                         .tile_tokens = size,
                         .has_token_scales = has_token_scales,
                         .counts = {5, size, 12}});
}

TEST_F(GroupedGemmFp8, RowsThatSpanMoreThanE4m3HoldsAreCounted) {
  HostMatrix w = wide_matrix(2, 3, 5, 8);
  for (const std::size_t block : {100u, 101u}) {  // row 10: 15 apart
    w.scales[block] = block == 100 ? 113 : 128;
    w.codes[block * 16] = 0x11;
  }
  const Memory tiles = pack(w, 2, false);
  const RowScales found = row_scales(tiles, 2 * 3, 5);
  EXPECT_EQ(found.wide, 1);
  const auto largest = download<std::uint8_t>(found.memory, 2 * w.rows());
  EXPECT_EQ(largest[10], 128 + 126);
}

// gather_fp8 and quantize_hidden: the codes and scales of moe/quantized_rows.
class QuantizedRows : public OnDevice {
 protected:
  void expect_codes(Quantization kind, std::uint32_t hidden, std::uint32_t tile_tokens) {
    SCOPED_TRACE(fmt::format("kind {}, {} columns", static_cast<int>(kind), hidden));
    constexpr std::uint32_t kTopK = 2, kExperts = 5, kTokens = 61;
    const std::uint32_t k_blocks = (hidden + 63) / 64;
    SplitMix64 random(hidden);
    std::vector<std::int32_t> experts;
    for (std::uint32_t i = 0; i < kTokens * kTopK; ++i)
      experts.push_back(i % 11 == 3 ? -1 : static_cast<std::int32_t>(random.next() % kExperts));
    const HostTables tables = host_tables(experts, kExperts, tile_tokens);
    const std::size_t rows = tables.assignment_of_row.size();
    std::vector<float> x = random_values(kTokens * hidden, 3, 5);
    for (std::size_t i = 0; i < x.size(); i += 17) x[i] *= 1e-3f;
    for (std::uint32_t k = 0; k < hidden; ++k) x[7 * hidden + k] = 0;  // a token of zeros
    for (float& value : x) value = as_stored(ElementType::bf16, value);

    const Memory tokens = upload(stored(ElementType::bf16, x)),
                 ranks = upload(tables.rank_of_assignment), counts = upload(tables.expert_counts),
                 tiles = buffer<TokenTile>(tables.tiles.size()),
                 tile_count = buffer<std::uint32_t>(4),
                 of_assignment = buffer<std::int32_t>(experts.size()),
                 of_row = buffer<std::int32_t>(rows), expert_of_row = buffer<std::int32_t>(rows),
                 groups = buffer<std::int32_t>(rows / 8),
                 codes = buffer<std::uint8_t>(rows * 132 * ((k_blocks + 1) / 2)),
                 token_scales = buffer<float>(rows);
    RoutingTables on{.tiles = tiles.as<TokenTile>(),
                     .tile_count = tile_count.as<std::uint32_t>(),
                     .rank_of_assignment = ranks.as<std::int32_t>(),
                     .expert_counts = counts.as<std::uint32_t>(),
                     .row_of_assignment = of_assignment.as<std::int32_t>(),
                     .assignment_of_row = of_row.as<std::int32_t>(),
                     .expert_of_row = expert_of_row.as<std::int32_t>(),
                     .tile_of_row_group = groups.as<std::int32_t>()};
    LayerParams layer{};
    layer.experts = kExperts;
    layer.hidden = hidden;
    layer.w13.k_blocks = k_blocks;
    layer.quantization = kind;
    const GatherFp8Params gather{
        .gather = {.call = {.x = {tokens.data(), ElementType::bf16, kTokens, hidden},
                            .tokens = kTokens,
                            .top_k = kTopK},
                   .layer = layer,
                   .tile_tokens = tile_tokens,
                   .tables = on,
                   .tiles = codes.as<std::uint8_t>()},
        .token_scales = token_scales.as<float>()};
    run("fp4moe_sm90_gather_fp8", gather, {3, kGatherThreads, gather_shared_bytes(kExperts)});
    expect_rows(tables, x, kind, hidden, codes, token_scales);

    // The same values as h, in tiles of bf16.
    std::vector<std::uint16_t> h(rows * k_blocks * 64, 0);
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (tables.assignment_of_row[row] < 0) continue;
      const auto token = static_cast<std::size_t>(tables.assignment_of_row[row]) / kTopK;
      for (std::uint32_t k = 0; k < hidden; ++k)
        h[tile_byte(tables, row, k, k_blocks) / 2] = formats::Bf16::encode(x[token * hidden + k]);
    }
    const Memory h_tiles = upload(h);
    EXPECT_TRUE(device_->clear(codes.data(), 0xFF, codes.size(), nullptr));
    EXPECT_TRUE(device_->clear(token_scales.data(), 0xFF, token_scales.size(), nullptr));
    run("fp4moe_sm90_quantize_hidden",
        QuantizeHiddenParams{.tables = on,
                             .quantization = kind,
                             .h = h_tiles.as<std::uint8_t>(),
                             .k_blocks = k_blocks,
                             .tiles = codes.as<std::uint8_t>(),
                             .token_scales = token_scales.as<float>()},
        {3, kQuantizeHiddenThreads});
    expect_rows(tables, x, kind, hidden, codes, token_scales);
  }

 private:
  void expect_rows(const HostTables& tables, const std::vector<float>& x, Quantization kind,
                   std::uint32_t hidden, const Memory& codes, const Memory& token_scales) {
    const bool has_block_scales = kind == Quantization::fp8_block128;
    const std::uint32_t k_blocks = (hidden + 63) / 64, blocks = (k_blocks + 1) / 2;
    const std::size_t rows = tables.assignment_of_row.size();
    const auto found = download<std::uint8_t>(codes, rows * 132 * blocks);
    const auto scales = download<float>(token_scales, rows);
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (tables.assignment_of_row[row] < 0) continue;
      const auto token = static_cast<std::size_t>(tables.assignment_of_row[row]) / 2;
      std::vector<float> wanted(x.begin() + static_cast<std::ptrdiff_t>(token * hidden),
                                x.begin() + static_cast<std::ptrdiff_t>((token + 1) * hidden));
      moe::quantize_dequantize({.key = static_cast<moe::ActivationKey>(kind)}, wanted);
      for (std::uint32_t k = 0; k < blocks * 128; ++k) {
        const std::uint8_t code = found[code_byte(tables, row, k, k_blocks, has_block_scales)];
        const float scale = has_block_scales
                                ? float_at(found, scale_byte(tables, row, k / 128, k_blocks))
                                : scales[row];
        ASSERT_EQ(E4m3fn::decode(code) * scale, k < hidden ? wanted[k] : 0.0f)
            << "row " << row << ", column " << k;
      }
    }
  }
};

TEST_F(QuantizedRows, HaveTheCodesOfTheOtherEngines) {
  for (const Quantization kind : {Quantization::fp8_block128, Quantization::fp8_token})
    for (const std::uint32_t hidden : {32u, 96u, 128u, 1056u, 2880u})
      expect_codes(kind, hidden, 64);
}

}  // namespace kernels_grouped_gemm_fp8_test
}  // namespace fp4moe::kernels::cuda::sm90
