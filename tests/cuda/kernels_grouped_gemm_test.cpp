// The grouped GEMM on hand-made tiles, against sums in float64: every epilogue, tiles of all sizes with
// partial row groups, prescaled activations, the deferred gather, GEMM2 behind GEMM1 in one launch.
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "matrices.hpp"
#include "support/emulated.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_grouped_gemm_test {

constexpr double kBf16Step = 0x1p-8;

struct Case {
  Epilogue epilogue = Epilogue::raw_f32;
  std::uint32_t tile_tokens = 64;
  bool is_nvfp4 = false;
  std::uint32_t m_blocks = 5, k_blocks = 3;
  std::vector<std::uint32_t> counts{1, 9, 0, 23};  // assignments of each expert
  std::uint32_t blocks = 3;
  std::uint32_t deferred_tile = 0xFFFFFFFF;  // first tile that the kernel fills itself
  bool has_gemm2 = false;
};

class GroupedGemm : public WithMatrices {
 protected:
  void expect_multiplied(const Case& c) {
    SCOPED_TRACE(fmt::format("epilogue {}, tiles of {}, nvfp4 {}, {} x {} blocks, deferred from {}",
                             static_cast<int>(c.epilogue), c.tile_tokens, c.is_nvfp4, c.m_blocks,
                             c.k_blocks, c.deferred_tile));
    const HostTables tables = make_tables(c);
    const auto experts = static_cast<std::uint32_t>(c.counts.size());
    const float prescale = activation_prescale(c.tile_tokens, c.is_nvfp4);
    const HostMatrix w13 = make_matrix(experts, c.m_blocks, c.k_blocks, c.is_nvfp4, 5);
    const std::uint32_t h_blocks = (c.m_blocks + 1) / 2;
    const HostMatrix w2 = make_matrix(experts, 2, h_blocks, c.is_nvfp4, 9);
    const std::size_t assignments = tables.row_of_assignment.size();
    std::vector<float> x = random_values(assignments * w13.columns(), 3, 2);
    for (float& value : x) value = as_stored(ElementType::bf16, value);

    const Uploaded on = upload_all(c, tables, w13, w2, x, prescale);
    GroupedGemmParams params = on.params;
    const GroupedGemmShape shape = grouped_gemm_shape(c.tile_tokens, c.is_nvfp4);
    params.stages = shape.stages;
    const std::string name = fmt::format("fp4moe_sm90_grouped_gemm_n{}_{}", c.tile_tokens,
                                         c.is_nvfp4 ? "nvfp4" : "mxfp4");
    run(name.c_str(), params, {c.blocks, shape.threads, shape.shared_bytes});

    const std::size_t rows = tables.assignment_of_row.size();
    const bool is_hidden =
        c.epilogue == Epilogue::swiglu || c.epilogue == Epilogue::swiglu_quantized;
    const std::size_t width = is_hidden ? h_blocks * kBlockK : w13.rows();
    const auto out32 = download<float>(on.out, rows * width);
    const auto out16 = download<std::uint16_t>(on.out, rows * width);
    const auto sums2 = download<float>(on.out2, rows * w2.rows());
    for (std::uint32_t row = 0; row < rows; ++row) {
      if (tables.assignment_of_row[row] < 0) continue;
      const auto token = static_cast<std::size_t>(tables.assignment_of_row[row]);
      const auto expert = static_cast<std::size_t>(tables.expert_of_row[row]);
      const float* in = x.data() + token * w13.columns();
      std::vector<double> h(width);
      for (std::uint32_t column = 0; column < width; ++column) {
        if (is_hidden)
          h[column] =
              formats::Bf16::decode(out16[tile_byte(tables, row, column, h_blocks) / 2]) / prescale;
        else
          h[column] = c.epilogue == Epilogue::raw_f32
                          ? out32[row * width + column] / w13.unit
                          : formats::Bf16::decode(out16[row * width + column]);
        const double wanted = expected(c, w13, expert, in, column);
        const double step = c.epilogue == Epilogue::swiglu_quantized ? 0x1p-4 : kBf16Step;
        ASSERT_NEAR(h[column], wanted,
                    c.epilogue == Epilogue::raw_f32 ? 5e-2 : std::abs(wanted) * step + 1e-2)
            << "row " << row << ", column " << column;
      }
      if (!c.has_gemm2) continue;
      for (std::uint32_t column = 0; column < w2.rows(); ++column) {
        double wanted = 0;
        for (std::size_t k = 0; k < width; ++k) wanted += w2.row(expert, column)[k] * h[k];
        ASSERT_NEAR(sums2[row * w2.rows() + column], wanted, std::abs(wanted) * 1e-4 + 1e-1)
            << "GEMM2, row " << row << ", column " << column;
      }
    }
  }

 private:
  struct Uploaded {
    std::vector<Memory> memory{};
    Memory out{}, out2{};
    GroupedGemmParams params{};
  };

  static HostTables make_tables(const Case& c) {
    std::vector<std::int32_t> experts;
    for (std::size_t e = 0; e < c.counts.size(); ++e)
      experts.insert(experts.end(), c.counts[e], static_cast<std::int32_t>(e));
    SplitMix64 random(7);
    for (std::size_t i = experts.size(); i > 1; --i)
      std::swap(experts[i - 1], experts[random.next() % i]);
    return host_tables(experts, static_cast<std::uint32_t>(c.counts.size()), c.tile_tokens);
  }

  // What GEMM1 gives for a column of the output.
  static double expected(const Case& c, const HostMatrix& w, std::size_t expert, const float* x,
                         std::uint32_t column) {
    const auto sum = [&](std::size_t r) {
      double result = 0;
      for (std::size_t k = 0; k < w.columns(); ++k) result += w.row(expert, r)[k] * double{x[k]};
      return result;
    };
    const auto scaled = [&](std::size_t r, double factor) {
      return sum(r) * factor + double{w.bias[expert * w.rows() + r]};
    };
    if (c.epilogue == Epilogue::raw_f32) return sum(column);
    if (c.epilogue == Epilogue::scaled_bf16) return scaled(column, double{w.factors[expert]});
    const std::size_t gate_row = std::size_t{column} / 8 * 16 + column % 8;
    if (gate_row >= w.rows()) return 0;  // padding of the last K block
    const double gate = std::min(scaled(gate_row, double{w.factors[2 * expert]}), double{kLimit});
    const double up = scaled(gate_row + 8, double{w.factors[2 * expert + 1]});
    return gate / (1 + std::exp(-kAlpha * gate)) *
           (std::clamp(up, -double{kLimit}, double{kLimit}) + kBeta);
  }

  Uploaded upload_all(const Case& c, const HostTables& tables, const HostMatrix& w13,
                      const HostMatrix& w2, const std::vector<float>& x, float prescale) {
    Uploaded on;
    const auto keep = [&](Memory memory) {
      return on.memory.emplace_back(std::move(memory)).data();
    };
    const auto keep_as = [&]<class T>(const std::vector<T>& values) {
      return reinterpret_cast<T*>(keep(upload(values)));
    };
    const std::size_t experts = c.counts.size(), rows = tables.assignment_of_row.size();
    on.memory.reserve(32);
    on.out = buffer<float>(rows * w13.rows());
    on.out2 = buffer<float>(rows * w2.rows());
    GroupedGemmParams& p = on.params;

    // Tokens: in tiles up to the first deferred one, and in rows.
    std::vector<std::uint16_t> tiles(rows * w13.columns(), 0), in_rows(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) in_rows[i] = formats::Bf16::encode(x[i]);
    for (std::uint32_t row = 0; row < rows; ++row) {
      const auto tile = static_cast<std::uint32_t>(tables.tile_of_row_group[row / 8]);
      if (tables.assignment_of_row[row] < 0 || tile >= c.deferred_tile) continue;
      const auto token = static_cast<std::size_t>(tables.assignment_of_row[row]);
      for (std::uint32_t k = 0; k < w13.columns(); ++k)
        tiles[tile_byte(tables, row, k, w13.k_blocks) / 2] =
            formats::Bf16::encode(x[token * w13.columns() + k] * prescale);
    }
    const auto matrix = [&](const HostMatrix& w) {
      std::vector<float> factors = w.factors;
      for (float& factor : factors) factor /= static_cast<float>(w.unit);
      if (c.epilogue == Epilogue::scaled_bf16) factors.resize(experts);  // one for each expert
      return WeightMatrix{
          .tiles = reinterpret_cast<const std::uint8_t*>(keep(pack(w, experts, c.is_nvfp4))),
          .expert_bytes = std::uint64_t{w.m_blocks} * w.k_blocks * weight_tile_bytes(c.is_nvfp4),
          .m_blocks = w.m_blocks,
          .k_blocks = w.k_blocks,
          .factor = keep_as(factors),
          .bias = keep_as(w.bias)};
    };
    p.gemms[0] = {.matrix = matrix(w13),
                  .tiles = reinterpret_cast<const std::uint8_t*>(keep_as(tiles)),
                  .rows = {keep_as(in_rows), ElementType::bf16, 0, w13.columns()},
                  .epilogue = c.epilogue,
                  .out = on.out.data(),
                  .out_k_blocks = (c.m_blocks + 1) / 2,
                  .is_gated = 1,
                  .alpha = kAlpha,
                  .beta = kBeta,
                  .limit = kLimit,
                  .hidden = {.quantization = Quantization::mxfp8},
                  .prescale = prescale,
                  .input_factor = 1 / prescale};
    if (c.has_gemm2)
      p.gemms[1] = {.matrix = matrix(w2),
                    .tiles = on.out.as<std::uint8_t>(),
                    .epilogue = Epilogue::raw_f32,
                    .out = on.out2.data(),
                    .prescale = prescale,
                    .input_factor = 1 / prescale};
    p.deferred_gather = {.first_tile = c.deferred_tile};
    p.tables.tiles = keep_as(tables.tiles);
    p.tables.tile_count =
        keep_as(std::vector<std::uint32_t>{static_cast<std::uint32_t>(tables.tiles.size())});
    p.tables.work_counters = keep_as(std::vector<std::uint32_t>(3));
    p.tables.tile_progress = keep_as(std::vector<std::uint32_t>(tables.tiles.size()));
    p.tables.combine_signals = keep_as(std::vector<std::uint32_t>(kCombineSignals));
    p.tables.assignment_of_row = keep_as(tables.assignment_of_row);
    p.tables.tile_of_row_group = keep_as(tables.tile_of_row_group);
    p.work_counter = p.tables.work_counters;
    return on;
  }

  static constexpr float kAlpha = 1.5f, kBeta = 0.5f, kLimit = 7.0f;
};

TEST_F(GroupedGemm, HasFourEpilogues) {
  for (const bool is_nvfp4 : {false, true})
    for (const Epilogue epilogue :
         {Epilogue::raw_f32, Epilogue::scaled_bf16, Epilogue::swiglu, Epilogue::swiglu_quantized})
      expect_multiplied({.epilogue = epilogue, .is_nvfp4 = is_nvfp4});
}

// Tiles of 32 tokens have prescaled activations for MXFP4.
TEST_F(GroupedGemm, TakesTilesOfEverySizeWithPartialRowGroups) {
  for (const bool is_nvfp4 : {false, true})
    for (const std::uint32_t size : kTileSizes)
      expect_multiplied({.epilogue = Epilogue::swiglu,
                         .tile_tokens = size,
                         .is_nvfp4 = is_nvfp4,
                         .counts = {1, size + 3, 0, size - 5, 2 * size, 17}});
}

TEST_F(GroupedGemm, TakesAnyNumberOfBlocks) {
  for (const std::uint32_t m_blocks : some<std::uint32_t>({1, 9, 2, 4}))
    for (const std::uint32_t k_blocks : some<std::uint32_t>({1, 7, 4, 18}))
      for (const std::uint32_t blocks : {1u, 4u, 40u})
        expect_multiplied({.m_blocks = m_blocks, .k_blocks = k_blocks, .blocks = blocks});
}

TEST_F(GroupedGemm, FillsLaterTilesItself) {
  for (const bool is_nvfp4 : {false, true})
    for (const std::uint32_t size : {128u, 192u})
      for (const std::uint32_t first : some<std::uint32_t>({1, 100, 0, 3}))
        expect_multiplied({.tile_tokens = size,
                           .is_nvfp4 = is_nvfp4,
                           .m_blocks = kIsEmulated ? 1u : 5u,
                           .k_blocks = 20,
                           .counts = {5, 2 * size + 1, 77, 1},
                           .deferred_tile = first});
}

TEST_F(GroupedGemm, ComputesGemm2OfATileWhenItsGemm1IsComplete) {
  for (const std::uint32_t size : kTileSizes)
    for (const std::uint32_t blocks : {1u, 3u, 50u})
      expect_multiplied({.epilogue = Epilogue::swiglu,
                         .tile_tokens = size,
                         .m_blocks = 8,
                         .counts = {3, size + 9, 12, 31},
                         .blocks = blocks,
                         .has_gemm2 = true});
}

}  // namespace kernels_grouped_gemm_test
}  // namespace fp4moe::kernels::cuda::sm90
