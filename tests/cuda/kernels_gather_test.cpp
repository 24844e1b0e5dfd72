#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/moe/quantized_rows.hpp"
#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_gather_test {

using moe::ActivationKey;

struct Case {
  ElementType type = ElementType::bf16;
  Quantization kind = Quantization::none;
  std::uint32_t tokens = 0, top_k = 0, experts = 0, hidden = 0;
  std::uint32_t stride = 0;  // 0: hidden
  std::uint32_t tile_tokens = kMaxTileTokens;
  std::uint32_t filled = 0xFFFFFFFF;  // tiles
  bool to_last = false;               // expert, all assignments
  bool has_scale_each = false, in_bf16 = false, is_quantized = false, is_batched = false;
};

class Gather : public OnDevice {
 protected:
  void expect_gathered(const Case& c) {
    SCOPED_TRACE(fmt::format("type {}, kind {}, {} tokens, {} choices, hidden {}, stride {}",
                             static_cast<int>(c.type), static_cast<int>(c.kind), c.tokens, c.top_k,
                             c.hidden, c.stride));
    const std::uint32_t stride = c.stride == 0 ? c.hidden : c.stride;
    const std::uint32_t rows_of_x = c.is_batched ? c.experts * c.tokens : c.tokens;
    const std::uint32_t units = (c.hidden + kBlockK - 1) / kBlockK;
    std::vector<float> x = random_values(std::size_t{rows_of_x} * stride, 3, 5);
    for (std::size_t i = 0; i < x.size(); i += 97) x[i] *= 300;
    if (x.size() > 40) x[40] = std::numeric_limits<float>::infinity();
    for (float& value : x) value = as_stored(c.type, value);
    const std::vector<float> scales = scales_of(c);

    SplitMix64 random(8);
    std::vector<std::int32_t> experts(std::size_t{rows_of_x} * c.top_k);
    for (std::int32_t& expert : experts)
      expert =
          static_cast<std::int32_t>(c.to_last ? c.experts : random.next() % (c.experts + 1)) - 1;
    std::vector<std::int32_t> counts(c.experts);
    if (c.is_batched)
      for (std::uint32_t assignment = 0; assignment < rows_of_x; ++assignment) {
        const std::uint32_t e = assignment / c.tokens;
        counts[e] = static_cast<std::int32_t>(e % 4 == 3 ? c.tokens : e * 3 % c.tokens);
        experts[assignment] =
            static_cast<std::int32_t>(assignment % c.tokens) < counts[e] ? static_cast<int>(e) : -1;
      }
    const HostTables plain = host_tables(experts, c.experts, c.tile_tokens);
    const auto result = gathered(c, stride, stored(c.type, x), scales, counts, plain);
    for (std::uint32_t row = 0; row < plain.assignment_of_row.size(); ++row) {
      if (plain.assignment_of_row[row] < 0) continue;
      const auto token = static_cast<std::size_t>(plain.assignment_of_row[row]) / c.top_k;
      const auto wanted = expected_row(
          c,
          {x.begin() + static_cast<std::ptrdiff_t>(token * stride),
           x.begin() + static_cast<std::ptrdiff_t>(token * stride + c.hidden)},
          scales.empty()
              ? 1.0f
              : scales[c.has_scale_each ? static_cast<std::size_t>(plain.expert_of_row[row]) : 0]);
      const auto tile = static_cast<std::uint32_t>(plain.tile_of_row_group[row / 8]);
      for (std::uint32_t column = 0; column < units * kBlockK; ++column) {
        const std::uint16_t bits = in_tile(result, tile_byte(plain, row, column, units));
        if (tile >= c.filled) {
          ASSERT_EQ(bits, kUntouched) << "row " << row << ", column " << column;
          continue;
        }
        const float found = formats::Bf16::decode(bits);
        const float value = column < c.hidden ? as_stored(ElementType::bf16, wanted[column]) : 0.0f;
        ASSERT_TRUE(found == value || (std::isnan(found) && std::isnan(value)))
            << "row " << row << ", column " << column << ": " << found << ", not " << value;
      }
    }
  }

 private:
  static constexpr std::uint16_t kUntouched = 0x5A5A;

  static std::vector<float> scales_of(const Case& c) {
    std::vector<float> result;
    for (std::uint32_t e = 0; e < (c.has_scale_each ? c.experts : 1); ++e)
      result.push_back(0.02f * static_cast<float>(1 + e % 7));
    return result;
  }
  static std::vector<float> expected_row(const Case& c, std::vector<float> values, float scale) {
    if (c.kind == Quantization::none || c.is_quantized) return values;
    const moe::RowQuantizer how{static_cast<ActivationKey>(c.kind), scale};
    moe::quantize_dequantize(how, values);
    if (c.in_bf16)
      for (float& value : values) value *= moe::shared_factor(how);
    return values;
  }

  // Compares the tables of rows on the way.
  std::vector<std::uint16_t> gathered(const Case& c, std::uint32_t stride,
                                      const std::vector<std::byte>& x,
                                      const std::vector<float>& scales,
                                      const std::vector<std::int32_t>& counts,
                                      const HostTables& plain) {
    const std::uint32_t units = (c.hidden + kBlockK - 1) / kBlockK;
    const std::size_t assignments = plain.row_of_assignment.size(),
                      rows = plain.assignment_of_row.size();
    const std::size_t count = rows * units * kBlockK;
    const Memory x_on_device = upload(x), scales_on_device = upload(scales);
    const Memory tiles = buffer<TokenTile>(plain.tiles.size()),
                 tile_count = buffer<std::uint32_t>(1);
    const Memory ranks = upload(plain.rank_of_assignment),
                 expert_counts = upload(plain.expert_counts);
    const std::vector<std::int32_t> untouched(std::max(assignments, rows), 7);
    const Memory row_of_assignment = upload(untouched), assignment_of_row = upload(untouched);
    const Memory expert_of_row = upload(untouched), tile_of_row_group = upload(untouched);
    const Memory counts_on_device = upload(counts);
    const Memory to = upload(std::vector<std::uint16_t>(count, kUntouched));
    GatherParams params;
    params.call.x = {x_on_device.data(), c.type, c.tokens, stride};
    params.call.tokens = c.tokens;
    params.call.top_k = c.top_k;
    params.call.x_is_quantized = c.is_quantized ? 1 : 0;
    params.call.counts = c.is_batched ? counts_on_device.as<std::int32_t>() : nullptr;
    params.call.capacity = c.is_batched ? c.tokens : 0;
    params.layer.w13.k_blocks = units;
    params.layer.experts = c.experts;
    params.layer.hidden = c.hidden;
    params.layer.quantization = c.kind;
    params.layer.activations_in_bf16 = c.in_bf16 ? 1 : 0;
    params.layer.input_scales = scales_on_device.as<float>();
    params.layer.input_scales_each = c.has_scale_each ? 1 : 0;
    params.tile_tokens = c.tile_tokens;
    params.tables.tiles = tiles.as<TokenTile>();
    params.tables.tile_count = tile_count.as<std::uint32_t>();
    params.tables.rank_of_assignment = ranks.as<std::int32_t>();
    params.tables.expert_counts = expert_counts.as<std::uint32_t>();
    params.tables.row_of_assignment = row_of_assignment.as<std::int32_t>();
    params.tables.assignment_of_row = assignment_of_row.as<std::int32_t>();
    params.tables.expert_of_row = expert_of_row.as<std::int32_t>();
    params.tables.tile_of_row_group = tile_of_row_group.as<std::int32_t>();
    params.tiles = to.as<std::uint8_t>();
    params.filled_tiles = c.filled;
    run("fp4moe_sm90_gather", params,
        {gather_blocks(params.layer, c.tokens, 40), kGatherThreads,
         gather_shared_bytes(c.experts)});
    EXPECT_EQ(download<std::uint32_t>(tile_count, 1).at(0), plain.tiles.size());
    const auto result = download<TokenTile>(tiles, plain.tiles.size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_EQ(result[i].expert, plain.tiles[i].expert) << i;
      EXPECT_EQ(result[i].first_row, plain.tiles[i].first_row) << i;
      EXPECT_EQ(result[i].rows, plain.tiles[i].rows) << i;
      EXPECT_EQ(result[i].expert_tiles, plain.tiles[i].expert_tiles) << i;
    }
    EXPECT_EQ(download<std::int32_t>(tile_of_row_group, rows / 8), plain.tile_of_row_group);
    EXPECT_EQ(download<std::int32_t>(row_of_assignment, assignments), plain.row_of_assignment);
    EXPECT_EQ(download<std::int32_t>(assignment_of_row, rows), plain.assignment_of_row);
    EXPECT_EQ(download<std::int32_t>(expert_of_row, rows), plain.expert_of_row);
    return download<std::uint16_t>(to, count);
  }
};

TEST_F(Gather, PutsTokensIntoTheTilesOfAllTheirExperts) {
  for (const std::uint32_t tokens : {1u, 3u, 17u, 100u, 300u})
    for (const std::uint32_t top_k : {1u, 4u, 8u})
      expect_gathered({.tokens = tokens, .top_k = top_k, .experts = 3, .hidden = 336});
}

TEST_F(Gather, FindsTheRowsOfManyChunks) {
  for (const std::uint32_t experts : {1u, 128u, 300u, 1024u})
    expect_gathered({.tokens = 5000, .top_k = 8, .experts = experts, .hidden = 64});
}

TEST_F(Gather, CutsManyTokensOfOneExpertIntoEvenTiles) {
  for (const std::uint32_t tile_tokens : {32u, 64u, 88u, 128u, kMaxTileTokens})
    for (const std::uint32_t tokens :
         {1u, 8u, 33u, 127u, 128u, 129u, 192u, 193u, 257u, 1000u, 60000u})
      expect_gathered({.tokens = tokens,
                       .top_k = 1,
                       .experts = 7,
                       .hidden = 64,
                       .tile_tokens = tile_tokens,
                       .to_last = true});
}

TEST_F(Gather, LeavesLaterTilesToTheGemm) {
  for (const std::uint32_t filled : {0u, 1u, 7u, 8u, 100u})
    expect_gathered({.tokens = 700, .top_k = 3, .experts = 5, .hidden = 128, .filled = filled});
}

TEST_F(Gather, ReadsAllTypesAlignedOrNot) {
  for (const ElementType type : {ElementType::bf16, ElementType::f16, ElementType::f32})
    for (const std::uint32_t stride : {0u, 97u, 104u})
      expect_gathered(
          {.type = type, .tokens = 17, .top_k = 2, .experts = 128, .hidden = 96, .stride = stride});
}

TEST_F(Gather, QuantizesToTheBitsOfTheHost) {
  for (std::uint32_t kind = 1; kind <= static_cast<std::uint32_t>(Quantization::fp8_token); ++kind)
    for (const std::uint32_t hidden : {64u, 96u, 544u, 1056u})
      for (const bool each : {false, true})
        for (const bool in_bf16 : {false, true})
          expect_gathered({.type = in_bf16 ? ElementType::f32 : ElementType::bf16,
                           .kind = static_cast<Quantization>(kind),
                           .tokens = 20,
                           .top_k = 3,
                           .experts = 12,
                           .hidden = hidden,
                           .has_scale_each = each,
                           .in_bf16 = in_bf16});
}

TEST_F(Gather, LeavesQuantizedValuesAsTheyCome) {
  expect_gathered({.kind = Quantization::nvfp4,
                   .tokens = 20,
                   .top_k = 3,
                   .experts = 12,
                   .hidden = 176,
                   .is_quantized = true});
}

TEST_F(Gather, TakesTheOccupiedRowsOfBatches) {
  for (const std::uint32_t capacity : {40u, 200u})
    expect_gathered({.kind = Quantization::mxfp8,
                     .tokens = capacity,
                     .top_k = 1,
                     .experts = 17,
                     .hidden = 320,
                     .is_batched = true});
}

}  // namespace kernels_gather_test
}  // namespace fp4moe::kernels::cuda::sm90
