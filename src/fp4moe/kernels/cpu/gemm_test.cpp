#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/kernels/cpu/elementwise_list.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"

namespace fp4moe::kernels::cpu {
namespace gemm_test {

using formats::WeightFormat;

struct Shape {
  std::size_t rows = 0, columns = 0, tokens = 0;
};

// Which block scales there are decides what kernels may fold.
enum class Scales { alike, spread, wild };

struct Matrix {
  std::vector<std::uint8_t> codes{}, scales{};
  std::size_t blocks = 0, scale_columns = 0, group = 0;
  GemmWeights view() const { return {codes.data(), scales.data(), blocks, scale_columns}; }
};

std::uint8_t random_scale(WeightFormat format, Scales kind, std::mt19937& random) {
  const auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  if (format == WeightFormat::nvfp4)
    return static_cast<std::uint8_t>(kind == Scales::alike ? 0x38 + below(4) : below(0x7F));
  if (kind == Scales::alike) return static_cast<std::uint8_t>(120 + below(3));
  if (kind == Scales::spread) return static_cast<std::uint8_t>(110 + below(12));
  const std::uint8_t odd[] = {0, 1, 31, 32, 33, 34, 35, 36, 120, 200, 223, 224, 226};
  return odd[below(std::size(odd))];
}

Matrix random_matrix(const TileForm& tiles, const Shape& shape, WeightFormat format, Scales kind,
                     std::mt19937& random) {
  Matrix result;
  result.group = tiles.group;
  result.blocks = (shape.columns + 31) / 32;
  result.scale_columns = shape.columns / formats::block_size(format);
  const std::size_t padded = (shape.rows + 15) / 16 * 16;
  result.codes.resize(padded * result.blocks * 16);
  result.scales.resize(padded * result.scale_columns);
  for (auto& byte : result.codes) byte = static_cast<std::uint8_t>(random());
  for (auto& byte : result.scales) byte = random_scale(format, kind, random);
  return result;
}

struct Rounded {
  std::vector<std::int16_t> values{};  // [tokens][chunks * kChunk]
  std::vector<float> half_steps{};     // [chunks][padded tokens]
  std::size_t tokens = 0, chunks = 0;
};

struct RoundingTarget {
  std::int16_t* values = nullptr;
  float* half_steps = nullptr;
};
void round_values(std::span<const float> values, std::size_t limbs, const RoundingTarget& to) {
  elementwise_kernels().back().functions->round({.values = values.data(),
                                                 .count = values.size(),
                                                 .limit = kLimit[limbs],
                                                 .rounded = to.values,
                                                 .half_steps = to.half_steps});
}

Rounded random_tokens(const Shape& shape, std::size_t limbs, std::mt19937& random) {
  Rounded result;
  result.tokens = shape.tokens;
  result.chunks = (shape.columns + kChunk - 1) / kChunk;
  const std::size_t width = result.chunks * kChunk, steps = padded_tokens(shape.tokens);
  result.values.resize(shape.tokens * width);
  result.half_steps.assign(result.chunks * steps, 0.0f);
  std::normal_distribution<float> normal;
  std::vector<float> row(width), half(result.chunks);
  for (std::size_t t = 0; t < shape.tokens; ++t) {
    std::fill(row.begin(), row.end(), 0.0f);
    for (std::size_t k = 0; k < shape.columns; ++k)
      row[k] = normal(random) * (k % 97 == 0 ? 30.0f : 1.0f);
    // One chunk of the largest integers, all of one sign.
    if (t % 3 == 0)
      std::fill(row.begin(), row.begin() + std::min<std::ptrdiff_t>(kChunk, std::ssize(row)),
                t % 2 == 0 ? 1.0f : -1.0f);
    round_values(row, limbs, {result.values.data() + t * width, half.data()});
    for (std::size_t c = 0; c < result.chunks; ++c) result.half_steps[c * steps + t] = half[c];
  }
  return result;
}

std::vector<std::byte> panel_of(const GemmKernel& kernel, std::size_t limbs,
                                const Rounded& tokens) {
  std::vector<std::byte> panel(kernel.panel_bytes(limbs, tokens.tokens, tokens.chunks),
                               std::byte{0x5A});  // nothing may count on zeros
  const std::size_t width = tokens.chunks * kChunk;
  for (std::size_t t = 0; t < tokens.tokens; ++t)
    for (std::size_t c = 0; c < tokens.chunks; c += 3) {  // in parts, as the engine does
      const std::size_t columns = std::min<std::size_t>(3, tokens.chunks - c) * kChunk;
      kernel.pack_tokens(limbs)({.values = tokens.values.data() + t * width + c * kChunk,
                                 .first_column = c * kChunk,
                                 .columns = columns,
                                 .token = t,
                                 .tokens = tokens.tokens,
                                 .chunks = tokens.chunks,
                                 .panel = panel.data()});
    }
  return panel;
}

std::vector<float> sums_of(const GemmKernel& kernel, WeightFormat format, std::size_t limbs,
                           const Matrix& matrix, const Rounded& tokens, std::size_t first,
                           std::size_t rows) {
  const std::vector<std::byte> panel = panel_of(kernel, limbs, tokens);
  const std::size_t stride = rows + 3;
  std::vector<float> sums(tokens.tokens * stride, -12345.0f);
  kernel.gemm(format, limbs)({.weights = matrix.view(),
                              .first_row = first,
                              .rows = rows,
                              .tokens = {panel.data(), tokens.half_steps.data(), tokens.tokens},
                              .sums = sums.data(),
                              .stride = stride});
  return sums;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr Shape kShapes[] = {
    {16, 32, 1},   {16, 64, 1},    {32, 96, 1},    {48, 2880, 1}, {16, 64, 2},   {32, 160, 3},
    {16, 96, 4},   {16, 352, 5},   {32, 128, 6},   {16, 192, 7},  {48, 288, 8},  {16, 96, 9},
    {32, 416, 12}, {16, 2880, 13}, {32, 64, 16},   {16, 96, 17},  {32, 224, 31}, {16, 7168, 33},
    {48, 160, 64}, {16, 96, 100},  {32, 128, 128},
};

class Gemms : public testing::TestWithParam<std::tuple<WeightFormat, std::size_t>> {};

TEST_P(Gemms, EqualTheirReferenceBitForBit) {
  const auto [format, limbs] = GetParam();
  std::mt19937 random(7);
  for (const GemmKernel& kernel : gemm_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    const GemmKernel& reference = gemm_reference(*kernel.tiles);
    for (Shape shape : kShapes)
      for (const Scales kind : {Scales::alike, Scales::spread, Scales::wild}) {
        if (format == WeightFormat::nvfp4 && shape.columns % 64 == 32) shape.columns += 16;
        const Matrix matrix = random_matrix(*kernel.tiles, shape, format, kind, random);
        const Rounded tokens = random_tokens(shape, limbs, random);
        const auto expected = sums_of(reference, format, limbs, matrix, tokens, 0, shape.rows);
        const auto found = sums_of(kernel, format, limbs, matrix, tokens, 0, shape.rows);
        ASSERT_TRUE(same_bits(found, expected))
            << kernel.name << ": " << shape.rows << " x " << shape.columns << ", " << shape.tokens
            << " tokens, scales " << static_cast<int>(kind);
      }
  }
}

// A token's sums, alone or among others, from any range of rows.
TEST_P(Gemms, DependOnNothingButTheirRowAndToken) {
  const auto [format, limbs] = GetParam();
  std::mt19937 random(8);
  for (const GemmKernel& kernel : gemm_kernels()) {
    if (!machine_features().contains_all(kernel.needs)) continue;
    const Shape shape{64, 480, 21};
    const Matrix matrix = random_matrix(*kernel.tiles, shape, format, Scales::spread, random);
    const Rounded all = random_tokens(shape, limbs, random);
    const auto together = sums_of(kernel, format, limbs, matrix, all, 0, shape.rows);
    const std::size_t width = all.chunks * kChunk;
    for (const std::size_t t : {0, 8, 20}) {
      Rounded alone{.tokens = 1, .chunks = all.chunks};
      alone.values.assign(all.values.begin() + static_cast<std::ptrdiff_t>(t * width),
                          all.values.begin() + static_cast<std::ptrdiff_t>((t + 1) * width));
      alone.half_steps.assign(all.chunks * padded_tokens(1), 0.0f);
      for (std::size_t c = 0; c < all.chunks; ++c)
        alone.half_steps[c * padded_tokens(1)] = all.half_steps[c * padded_tokens(all.tokens) + t];
      const auto single = sums_of(kernel, format, limbs, matrix, alone, 16, 32);
      for (std::size_t r = 0; r < 32; ++r)
        ASSERT_EQ(single[r], together[t * (shape.rows + 3) + 16 + r]) << kernel.name;
    }
  }
}

#if defined(__x86_64__)
// AVX-512 came without dot products of bytes (Skylake), then without lookups of bytes (Cascade
// Lake).
TEST(GemmKernels, TakeWideRegistersWhereDotProductsAreMissing) {
  using enum platform::CpuFeature;
  EXPECT_EQ(pick(gemm_kernels(), {avx2, avx512}).name, "avx512/gemm");
  EXPECT_EQ(pick(gemm_kernels(), {avx2, avx512, avx512_vnni}).name, "avx512/gemm");
  EXPECT_EQ(pick(gemm_kernels(), {avx2}).name, "avx2/gemm");
}
#endif

INSTANTIATE_TEST_SUITE_P(All, Gemms,
                         testing::Combine(testing::Values(WeightFormat::mxfp4, WeightFormat::nvfp4),
                                          testing::Values(std::size_t{1}, std::size_t{2})));

TEST(RoundChunks, IsWithinHalfAStepAndKeepsTheLargest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::size_t limbs : {1, 2}) {
    std::vector<float> values(2 * kChunk);
    for (float& value : values) value = normal(random);
    std::vector<std::int16_t> rounded(values.size());
    float half[2];
    round_values(values, limbs, {rounded.data(), half});
    int largest = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double step = 2.0 * half[i / kChunk];
      EXPECT_LE(std::abs(rounded[i] * step - values[i]), step * 0.5001);
      largest = std::max(largest, std::abs(int{rounded[i]}));
    }
    EXPECT_EQ(largest, kLimit[limbs]);
  }
}

TEST(RoundChunks, TakesZerosTinyAndBrokenValues) {
  std::vector<float> values(3 * kChunk, 0.0f);
  values[kChunk] = 1e-42f;
  values[2 * kChunk + 5] = std::numeric_limits<float>::infinity();
  std::vector<std::int16_t> rounded(values.size(), 7);
  float half[3];
  round_values(values, 2, {rounded.data(), half});
  EXPECT_EQ(half[0], 0.0f);
  EXPECT_EQ(rounded[0], 0);
  EXPECT_TRUE(std::isfinite(half[1]));
  EXPECT_EQ(rounded[kChunk], 0);
  EXPECT_TRUE(std::isnan(half[2]));
}

// Checkpoint rows cut into tiles, with columns in the tiles' order, give the same sums as the
// layout's own tiles.
TEST(CutTiles, GiveTheSameSums) {
  std::mt19937 random(5);
  for (const TileForm* tiles : {&kArmTiles, &kX86Tiles})
    for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
      for (const bool apart : {false, true}) {
        const std::size_t block = formats::block_size(format);
        const std::size_t rows = 24, columns = format == WeightFormat::nvfp4 ? 112 : 160;
        std::vector<std::uint8_t> codes(rows * columns / 2), scales(rows * columns / block);
        for (auto& byte : codes) byte = static_cast<std::uint8_t>(random());
        for (auto& byte : scales) byte = random_scale(format, Scales::alike, random);
        GemmRows from{.codes = codes.data(),
                      .scales = scales.data(),
                      .code_stride = columns / 2,
                      .scale_stride = columns / block,
                      .rows = rows,
                      .columns = columns,
                      .block = block};
        if (apart) {
          from.odd_codes = codes.data() + codes.size() / 2;
          from.odd_scales = scales.data() + scales.size() / 2;
        }
        Matrix cut;
        cut.blocks = (columns + 31) / 32;
        cut.scale_columns = columns / block;
        cut.codes.resize(32 * cut.blocks * 16);
        cut.scales.resize(32 * cut.scale_columns);
        cut_tiles(*tiles, from, 0, 32, cut.codes.data(), cut.scales.data());

        const Shape shape{rows, columns, 2};
        Rounded tokens = random_tokens(shape, 2, random);
        const std::size_t width = tokens.chunks * kChunk;
        // Expected: the definition, on the rows as they are.
        std::vector<double> expected(2 * rows, 0.0);
        for (std::size_t t = 0; t < 2; ++t)
          for (std::size_t r = 0; r < rows; ++r)
            for (std::size_t k = 0; k < columns; ++k) {
              const std::size_t at = apart ? r / 2 + r % 2 * (rows / 2) : r;
              const unsigned code = codes[at * columns / 2 + k / 2] >> (k % 2 * 4) & 15;
              const double size[] = {0, 1, 2, 3, 4, 6, 8, 12};
              const double weight = (code & 8) != 0 ? -size[code & 7] : size[code & 7];
              const std::uint8_t byte = scales[at * columns / block + k / block];
              const double scale = format == WeightFormat::mxfp4
                                       ? std::ldexp(1.0, byte - 127)
                                       : std::ldexp(1.0 + (byte & 7) / 8.0, (byte >> 3) - 7);
              expected[t * rows + r] += weight * scale * tokens.values[t * width + k] *
                                        tokens.half_steps[k / kChunk * padded_tokens(2) + t];
            }
        std::vector<std::int16_t> zipped(tokens.values.size());
        for (std::size_t i = 0; i < zipped.size(); ++i)
          zipped[i] = tokens.values[i / 32 * 32 + tiles->zipped[i % 32]];
        tokens.values = zipped;
        const auto found = sums_of(gemm_reference(*tiles), format, 2, cut, tokens, 0, 32);
        for (std::size_t t = 0; t < 2; ++t)
          for (std::size_t r = 0; r < 32; ++r) {
            const double value = r < rows ? expected[t * rows + r] : 0.0;
            ASSERT_NEAR(found[t * 35 + r], value, 1e-5 * (1 + std::abs(value)));
          }
      }
}

}  // namespace gemm_test
}  // namespace fp4moe::kernels::cpu
