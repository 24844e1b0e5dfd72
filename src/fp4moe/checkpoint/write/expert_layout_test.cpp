#include "fp4moe/checkpoint/write/expert_layout.hpp"

#include <bit>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "fp4moe/checkpoint/gguf_blocks.hpp"

namespace fp4moe::checkpoint {
namespace expert_layout_test {

// An expert whose every byte says where it is: hidden 64, intermediate 32.
struct Numbered {
  static constexpr std::uint64_t kHidden = 64, kWidth = 32;
  std::vector<std::byte> gate_codes = fill(kWidth * kHidden / 2, 0x10);
  std::vector<std::byte> up_codes = fill(kWidth * kHidden / 2, 0x60);
  std::vector<std::byte> down_codes = fill(kHidden * kWidth / 2, 0x01);
  std::vector<std::byte> gate_scales = fill(kWidth * 2, 0x20), up_scales = fill(kWidth * 2, 0x30);
  std::vector<std::byte> down_scales = fill(kHidden, 0x40);
  std::vector<std::byte> gate_bias = fill(kWidth * 2, 7), up_bias = fill(kWidth * 2, 9);
  std::vector<std::byte> down_bias = fill(kHidden * 2, 11);

  static std::vector<std::byte> fill(std::size_t size, int start) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<std::byte>((i * 7 + static_cast<std::size_t>(start)) % 251);
    return bytes;
  }
  static ProjectionView projection(const std::vector<std::byte>& codes,
                                   const std::vector<std::byte>& scales,
                                   const std::vector<std::byte>& bias, std::uint64_t rows,
                                   std::uint64_t k) {
    ProjectionView view;
    view.codes = {codes.data(), rows, k / 2, k / 2};
    view.scales = {scales.data(), rows, k / 32, k / 32};
    view.bias = {bias.data(), rows, 2, tensor::DType::bf16};
    return view;
  }
  MoeShape shape{.format = WeightFormat::mxfp4,
                 .experts = 3,
                 .hidden = kHidden,
                 .intermediate = kWidth,
                 .order = RowOrder::halves,
                 .has_bias = true};
  ExpertView view{.shape = shape,
                  .gate = projection(gate_codes, gate_scales, gate_bias, kWidth, kHidden),
                  .up = projection(up_codes, up_scales, up_bias, kWidth, kHidden),
                  .down = projection(down_codes, down_scales, down_bias, kHidden, kWidth)};
};

std::vector<std::byte> laid_out(const ExpertLayout& layout, const ExpertBytes& source) {
  std::vector<std::byte> out(layout.bytes());
  EXPECT_TRUE(lay_out_expert(layout, source, out));
  return out;
}

TEST(ExpertLayout, FusedRowsAreInterleaved) {
  const Numbered numbered;
  const ExpertLayout layout = expert_layout(*find_row(Dialect::gpt_oss, WeightFormat::mxfp4),
                                            numbered.shape, tensor::DType::bf16);

  const std::vector<std::byte> out = laid_out(layout, {numbered.view});

  ASSERT_EQ(layout.runs.size(), 6u);
  EXPECT_EQ(std::memcmp(out.data(), numbered.gate_codes.data(), 32), 0);
  EXPECT_EQ(std::memcmp(out.data() + 32, numbered.up_codes.data(), 32), 0);
  EXPECT_EQ(std::memcmp(out.data() + 64, numbered.gate_codes.data() + 32, 32), 0);
  const std::byte* scales = out.data() + layout.runs[0].bytes();
  EXPECT_EQ(std::memcmp(scales + 2, numbered.up_scales.data(), 2), 0);
  const std::byte* bias = scales + layout.runs[1].bytes();
  EXPECT_EQ(std::memcmp(bias, numbered.gate_bias.data(), 2), 0);
  EXPECT_EQ(std::memcmp(bias + 2, numbered.up_bias.data(), 2), 0);
  EXPECT_EQ(std::memcmp(bias + 4, numbered.gate_bias.data() + 2, 2), 0);
}

TEST(ExpertLayout, RowsThatLieAsStoredAreNotCopied) {
  const Numbered numbered;
  const ExpertLayout layout = expert_layout(*find_row(Dialect::gpt_oss, WeightFormat::mxfp4),
                                            numbered.shape, tensor::DType::bf16);
  const std::vector<std::byte> fused = laid_out(layout, {numbered.view});
  ExpertView view = numbered.view;
  view.gate.codes = {fused.data(), 32, 32, 64};
  view.up.codes = {fused.data() + 32, 32, 32, 64};

  const auto codes = stored_bytes(layout, layout.runs[0], {view});
  const auto apart = stored_bytes(layout, layout.runs[0], {numbered.view});

  EXPECT_EQ(codes.data(), fused.data());
  EXPECT_EQ(codes.size(), layout.runs[0].bytes());
  EXPECT_TRUE(apart.empty());
  EXPECT_EQ(laid_out(layout, {view}), fused);
}

TEST(ExpertLayout, RowRangesGiveThePartsOfTheWhole) {
  const Numbered numbered;
  for (const DialectRow& row : dialects()) {
    if (row.format != WeightFormat::mxfp4) continue;
    MoeShape shape = numbered.shape;
    shape.has_bias = !row.parts.bias.empty();
    const ExpertLayout layout = expert_layout(row, shape, tensor::DType::bf16);
    const std::vector<std::byte> whole = laid_out(layout, {numbered.view});
    std::size_t begin = 0;
    for (std::size_t i = 0; i < layout.runs.size(); ++i) {
      const checkpoint::Run& run = layout.runs[i];
      for (std::uint64_t r = 0; r < run.rows; r += 5) {
        const Range rows{r, std::min(run.rows, r + 5)};
        std::vector<std::byte> part(rows.size() * run.row_bytes);
        lay_out_step(layout, {.run = i, .rows = rows}, {numbered.view}, part);
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin + r * run.row_bytes, part.size()),
                  0)
            << row.name;
      }
      begin += run.bytes();
    }
  }
}

// The numbered expert as it lies in an interleaved checkpoint.
ExpertView interleaved_view(const Numbered& numbered, const std::vector<std::byte>& fused) {
  ExpertView view = numbered.view;
  const std::byte* scales = fused.data() + 2 * Numbered::kWidth * 32;
  view.gate.codes = {fused.data(), Numbered::kWidth, 32, 64};
  view.up.codes = {fused.data() + 32, Numbered::kWidth, 32, 64};
  view.gate.scales = {scales, Numbered::kWidth, 2, 4};
  view.up.scales = {scales + 2, Numbered::kWidth, 2, 4};
  return view;
}

TEST(ExpertLayout, InterleavedSourcesGiveTheBytesThatSeparateOnesGive) {
  const Numbered numbered;
  const ExpertLayout gpt_oss = expert_layout(*find_row(Dialect::gpt_oss, WeightFormat::mxfp4),
                                             numbered.shape, tensor::DType::bf16);
  const std::vector<std::byte> fused = laid_out(gpt_oss, {numbered.view});
  const ExpertView view = interleaved_view(numbered, fused);
  for (const DialectRow& row : dialects()) {
    if (row.format != WeightFormat::mxfp4) continue;
    const ExpertLayout layout = expert_layout(row, numbered.shape, tensor::DType::bf16);
    const std::vector<std::byte> expected = laid_out(layout, {numbered.view});
    std::vector<std::size_t> begins;
    std::size_t end = 0;
    for (const checkpoint::Run& run : layout.runs)
      begins.push_back(std::exchange(end, end + run.bytes()));

    EXPECT_EQ(laid_out(layout, {view}), expected) << row.name;
    for (const std::uint64_t bytes : {1u, 100u, 700u}) {
      std::vector<std::byte> out(layout.bytes());
      const auto place = [&](std::size_t run, Range rows) {
        const std::uint64_t size = layout.runs[run].row_bytes;
        return std::span(out).subspan(begins[run] + rows.begin * size, rows.size() * size);
      };
      bool pairs = false;
      for (const Step& step : steps_of(layout, {view}, bytes)) {
        pairs = pairs || step.paired;
        lay_out_step(layout, step, {view}, place(step.run, step.rows),
                     step.paired ? place(*step.paired, step.rows) : std::span<std::byte>{});
      }
      EXPECT_EQ(out, expected) << row.name << " in steps of " << bytes;
      EXPECT_EQ(pairs, !row.joins_gate_up()) << row.name;
    }
  }
}

TEST(ExpertLayout, GgufBlocksHoldScaleThenHalvesApart) {
  const Numbered numbered;
  const ExpertLayout layout = expert_layout(*find_row(Dialect::gguf, WeightFormat::mxfp4),
                                            numbered.shape, tensor::DType::f32);

  const std::vector<std::byte> out = laid_out(layout, {numbered.view});

  ASSERT_EQ(layout.runs[0].row_bytes, 2u * 17);
  EXPECT_EQ(out[0], numbered.gate_scales[0]);
  const auto element = [&](std::size_t i) {
    const std::byte pair = numbered.gate_codes[i / 2];
    return i % 2 == 0 ? pair & std::byte{15} : pair >> 4;
  };
  for (std::size_t j = 0; j < 16; ++j) {
    EXPECT_EQ(out[1 + j] & std::byte{15}, element(j)) << j;
    EXPECT_EQ(out[1 + j] >> 4, element(j + 16)) << j;
  }
  EXPECT_EQ(out[17], numbered.gate_scales[1]);
  // Biases are widened to float32: two zero bytes, then the bfloat16.
  const std::byte* bias = out.data() + layout.runs[0].bytes();
  EXPECT_EQ(bias[0], std::byte{0});
  EXPECT_EQ(bias[1], std::byte{0});
  EXPECT_EQ(std::memcmp(bias + 2, numbered.gate_bias.data(), 2), 0);
}

TEST(ExpertLayout, Nvfp4GgufBlocksHoldFourScalesThenFourGroups) {
  std::vector<std::byte> codes(32), scales(4), blocks(36), back(32), scales_back(4);
  for (std::size_t i = 0; i < 32; ++i) codes[i] = static_cast<std::byte>(i * 37 + 5);
  for (std::size_t i = 0; i < 4; ++i) scales[i] = static_cast<std::byte>(0x38 + i);

  const GgufBlocks gguf(WeightFormat::nvfp4);
  gguf.pack(codes, scales, blocks);
  gguf.unpack(blocks, back, scales_back);

  EXPECT_EQ(std::memcmp(blocks.data(), scales.data(), 4), 0);
  // Group 1 is elements 16 to 31; its byte 3 pairs elements 19 and 27.
  EXPECT_EQ(blocks[4 + 8 + 3] & std::byte{15}, codes[19 / 2] >> 4);
  EXPECT_EQ(blocks[4 + 8 + 3] >> 4, codes[27 / 2] >> 4);
  EXPECT_EQ(back, codes);
  EXPECT_EQ(scales_back, scales);
}

TEST(ExpertLayout, NamesAndShapesAreTheDialects) {
  const Numbered numbered;
  const auto spec = [&](Dialect dialect, std::size_t run, WeightFormat format) {
    MoeShape shape = numbered.shape;
    shape.format = format;
    shape.has_input_scale = format == WeightFormat::nvfp4;
    const ExpertLayout layout =
        expert_layout(*find_row(dialect, format), shape, tensor::DType::bf16);
    return run_tensor(layout, layout.runs[run], "p.", 2);
  };

  const auto gpt_oss = spec(Dialect::gpt_oss, 0, WeightFormat::mxfp4);
  EXPECT_EQ(gpt_oss.name, "p.experts.gate_up_proj_blocks");
  EXPECT_EQ(gpt_oss.shape, (tensor::Shape{3, 64, 2, 16}));
  const auto scale = spec(Dialect::modelopt, 2, WeightFormat::nvfp4);
  EXPECT_EQ(scale.name, "p.experts.2.gate_proj.weight_scale_2");
  EXPECT_EQ(scale.shape, tensor::Shape{});
  const auto reciprocal = spec(Dialect::compressed_tensors, 2, WeightFormat::nvfp4);
  EXPECT_EQ(reciprocal.name, "p.experts.2.gate_proj.weight_global_scale");
  EXPECT_EQ(reciprocal.shape, tensor::Shape{1});
  const auto gguf = spec(Dialect::gguf, 0, WeightFormat::nvfp4);
  EXPECT_EQ(gguf.name, "p.ffn_gate_exps.weight");
  EXPECT_EQ(gguf.shape, (tensor::Shape{3, 32, 64}));
  EXPECT_EQ(spec(Dialect::gguf, 1, WeightFormat::nvfp4).shape, tensor::Shape{3});
}

TEST(ExpertLayout, ScalarsFollowTheConventionAndGivenBitsWin) {
  Numbered numbered;
  MoeShape shape = numbered.shape;
  shape.format = WeightFormat::nvfp4;
  shape.has_bias = false;
  std::vector<std::byte> scales(Numbered::kWidth * 4, std::byte{0x38});
  ExpertView view{.shape = shape,
                  .gate = numbered.view.gate,
                  .up = numbered.view.up,
                  .down = numbered.view.down};
  for (ProjectionView* projection : {&view.gate, &view.up, &view.down})
    projection->scales = {scales.data(), projection->codes.rows, projection->codes.row_bytes / 8,
                          projection->codes.row_bytes / 8};
  view.gate.global_scale = 0.3f;
  const StoredScales given{.gate = {.global = 0x12345678u}};
  const auto first_global = [&](Dialect dialect, const StoredScales* exact) {
    const ExpertLayout layout =
        expert_layout(*find_row(dialect, WeightFormat::nvfp4), shape, tensor::DType::bf16);
    std::uint32_t bits = 0;
    lay_out_step(layout, {.run = 2, .rows = {0, 1}}, {view, exact},
                 std::as_writable_bytes(std::span(&bits, 1)));
    return bits;
  };

  EXPECT_EQ(first_global(Dialect::modelopt, nullptr), std::bit_cast<std::uint32_t>(0.3f));
  EXPECT_EQ(first_global(Dialect::compressed_tensors, nullptr),
            std::bit_cast<std::uint32_t>(1.0f / 0.3f));
  EXPECT_EQ(first_global(Dialect::modelopt, &given), 0x12345678u);
}

TEST(ExpertLayout, RefusesABufferOfAnotherSize) {
  const Numbered numbered;
  const ExpertLayout layout = expert_layout(*find_row(Dialect::quark, WeightFormat::mxfp4),
                                            numbered.shape, tensor::DType::bf16);
  std::vector<std::byte> out(layout.bytes() - 1);

  const Result<Done> done = lay_out_expert(layout, {numbered.view}, out);

  ASSERT_FALSE(done);
  EXPECT_EQ(done.why().id, "expert.buffer");
}

}  // namespace expert_layout_test
}  // namespace fp4moe::checkpoint
