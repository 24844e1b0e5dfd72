#include "fp4moe/moe/cpu/engine.hpp"

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/kernels/cpu/gemm_list.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/moe/cpu/workspace.hpp"
#include "fp4moe/moe/reference/engine.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::moe::cpu {
namespace engine_test {

using checkpoint::RowOrder;
using formats::WeightFormat;
using kernels::cpu::TileForm;
using testing::TestLayer;
using testing::TestMatrix;
using testing::TestTokens;

RowOrder order_of(Activation activation) {
  return !is_gated(activation)                                 ? RowOrder::single
         : row(activation).columns == GateColumns::alternating ? RowOrder::interleaved
                                                               : RowOrder::halves;
}

checkpoint::MoeShape shape_of(WeightFormat format, std::uint64_t hidden, std::uint64_t intermediate,
                              Activation activation = Activation::silu) {
  return {.format = format,
          .experts = 5,
          .hidden = hidden,
          .intermediate = intermediate,
          .order = order_of(activation),
          .has_bias = format == WeightFormat::mxfp4};
}

const Numerics& numerics(std::string_view id) { return **require_numerics(id); }

const TileForm& machine_tiles() {
  return *kernels::cpu::pick(kernels::cpu::gemm_kernels(), kernels::cpu::machine_features()).tiles;
}

// The layout by its formula (docs/layouts/cpu_native.*.md), one nibble at a time.
struct PackedLayer {
  std::vector<std::uint8_t> w13{}, w2{}, w13_scale{}, w2_scale{};
  std::vector<float> w13_bias{}, w2_bias{}, w13_global{}, w2_global{};
  ExpertSource source{};

  static std::size_t assignment(const TileForm& tiles, std::size_t n, std::size_t k,
                                std::size_t blocks) {
    const std::size_t tile = (n / tiles.group * blocks + k / 32) * tiles.group * 32;
    n %= tiles.group;
    k %= 32;
    return tile + (tiles.group == 4
                       ? k / 8 % 2 + 2 * (k % 8) + 16 * (n % 2) + 32 * (k / 16) + 64 * (n / 2)
                       : k / 4 % 2 + 2 * (k % 4) + 8 * n + 128 * (k / 8));
  }

  PackedLayer(const TestLayer& layer, const TileForm& tiles) {
    const checkpoint::MoeShape& shape = layer.shape;
    const std::size_t block = formats::block_size(shape.format),
                      padding = tiles.group == 4 ? 8 : 16;
    const std::size_t projections = shape.gated() ? 2 : 1;
    // Columns are padded to 32, as the backend's rounding does.
    const auto pack = [&](std::vector<std::uint8_t>& codes, std::vector<std::uint8_t>& scales,
                          std::size_t rows, std::size_t columns, const auto& row_of) {
      const std::size_t blocks = ceil_div(columns, 32),
                        groups = round_up(rows, padding) / tiles.group;
      const std::size_t scale_columns = blocks * 32 / block;
      codes.assign(shape.experts * groups * blocks * tiles.group * 16, 0);
      scales.assign(shape.experts * groups * scale_columns * tiles.group, 0);
      for (std::size_t e = 0; e < shape.experts; ++e)
        for (std::size_t n = 0; n < rows; ++n) {
          const auto [matrix, from] = row_of(e, n);
          for (std::size_t k = 0; k < columns; ++k) {
            const auto byte = static_cast<unsigned>(matrix->codes[from * columns / 2 + k / 2]);
            const unsigned code = k % 2 == 0 ? byte & 15 : byte >> 4;
            const std::size_t at =
                e * groups * blocks * tiles.group * 32 + assignment(tiles, n, k, blocks);
            codes[at / 2] = static_cast<std::uint8_t>(codes[at / 2] | code << (at % 2 * 4));
          }
          for (std::size_t b = 0; b < columns / block; ++b)
            scales[(e * groups + n / tiles.group) * scale_columns * tiles.group + b * tiles.group +
                   n % tiles.group] =
                static_cast<std::uint8_t>(matrix->scales[from * columns / block + b]);
        }
      return std::pair(tensor::Shape{shape.experts, groups, blocks, tiles.group * 16},
                       tensor::Shape{shape.experts, groups, blocks, tiles.group * 32 / block});
    };
    const auto part = [&](std::size_t e, std::size_t n) {
      return std::pair(projections == 2 && n % 2 == 0 ? &layer.gate[e] : &layer.up[e],
                       n / projections);
    };
    const auto first = pack(w13, w13_scale, shape.w13_rows(), shape.hidden, part);
    const auto second =
        pack(w2, w2_scale, shape.hidden, shape.intermediate,
             [&](std::size_t e, std::size_t n) { return std::pair(&layer.down[e], n); });
    for (std::size_t e = 0; e < shape.experts; ++e) {
      if (projections == 2) w13_global.push_back(layer.gate[e].global);
      w13_global.push_back(layer.up[e].global);
      w2_global.push_back(layer.down[e].global);
      if (!shape.has_bias) continue;
      for (std::size_t n = 0; n < shape.w13_rows(); ++n)
        w13_bias.push_back(part(e, n).first->bias[n / projections]);
      w2_bias.insert(w2_bias.end(), layer.down[e].bias.begin(), layer.down[e].bias.end());
    }
    source = layer.source();
    source.visit = [](std::size_t, const UseExpert&) -> Result<Done> {
      return usage("test.visit", "the packed tensors are there to be read");
    };
    source.layout = shape.format == WeightFormat::mxfp4 ? "cpu_native.mxfp4" : "cpu_native.nvfp4";
    source.generation = tiles.generation;
    const auto add = [&](std::string name, const auto& values, tensor::Shape sizes) {
      source.packed.push_back(
          {std::move(name), std::as_bytes(std::span(values)), std::move(sizes)});
    };
    add("w13", w13, first.first);
    add("w13_scale", w13_scale, first.second);
    add("w2", w2, second.first);
    add("w2_scale", w2_scale, second.second);
    add("w13_bias", w13_bias, {});
    add("w2_bias", w2_bias, {});
    add("w13_scale_2", w13_global, {});
    add("w2_scale_2", w2_global, {});
  }
  PackedLayer(const PackedLayer&) = delete;
};

ExpertsProblem complete(const TestLayer& layer, ExpertsProblem problem) {
  problem.shape = layer.shape;
  problem.activation = layer.activation;
  problem.params = layer.params;
  return problem;
}

std::unique_ptr<Experts> make(const TestLayer& layer, const ExpertsProblem& problem,
                              std::size_t threads = 1, CpuOptions options = {},
                              const ExpertSource* source = nullptr) {
  const CpuEngine engine(std::make_shared<ThreadPool>(threads), options);
  ExpertSource own = layer.source();
  own.views_stay = true;
  auto result = engine.make(complete(layer, problem), source == nullptr ? own : *source);
  EXPECT_TRUE(result) << text(result.why());
  return result ? std::move(*result) : nullptr;
}

std::unique_ptr<Experts> make_reference(const TestLayer& layer, const ExpertsProblem& problem) {
  const reference::ReferenceEngine engine(std::make_shared<ThreadPool>(2));
  auto result = engine.make(complete(layer, problem), layer.source());
  EXPECT_TRUE(result) << text(result.why());
  return result ? std::move(*result) : nullptr;
}

std::vector<double> compute(Experts& experts, const ExpertsCall& call,
                            OutputForm form = OutputForm::summed) {
  const Prepared& in = call.in;
  const std::uint64_t rows = form == OutputForm::assignments ? in.x.rows * in.top_k : in.x.rows;
  std::vector<double> out(rows * in.x.columns, form == OutputForm::batches ? 0.0 : std::nan(""));
  const auto done =
      experts.compute(call, form, dense_rows(std::span(out), DType::f64, rows, in.x.columns));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}
std::vector<double> compute(Experts& experts, const TestTokens& tokens,
                            OutputForm form = OutputForm::summed) {
  const Prepared in = tokens.prepared();
  return compute(experts, {.in = in}, form);
}

double relative_rms(const std::vector<double>& expected, const std::vector<double>& found) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    error += (expected[i] - found[i]) * (expected[i] - found[i]);
    size += expected[i] * expected[i];
  }
  return std::isfinite(error) ? std::sqrt(error / size) : INFINITY;
}

// Most tokens of a skewed layer go through expert 1.
TestTokens skewed(std::uint64_t count, std::uint64_t hidden, std::uint64_t seed) {
  TestTokens tokens(count, hidden, 2, 5, seed);
  for (std::size_t i = 0; i < tokens.ids.size(); i += 2) tokens.ids[i] = 1;
  if (count > 3) {
    tokens.ids[0] = -1;
    tokens.ids[1] = 99;                 // an unassigned token
    tokens.ids[4] = tokens.ids[5] = 3;  // one expert twice
  }
  return tokens;
}

TEST(CpuEngine, AgreesWithPlainLoopsForEveryActivationAndShape) {
  struct Sizes {
    WeightFormat format;
    std::uint64_t hidden, intermediate;
  };
  const Sizes sizes[] = {{WeightFormat::mxfp4, 64, 32},
                         {WeightFormat::mxfp4, 96, 160},
                         {WeightFormat::nvfp4, 48, 80},
                         {WeightFormat::nvfp4, 160, 96}};
  for (const ActivationRow& activation : kActivations)
    for (const Sizes& size : sizes) {
      TestLayer layer(shape_of(size.format, size.hidden, size.intermediate, activation.activation),
                      activation.activation, 11);
      const TestTokens tokens = skewed(9, size.hidden, 12);
      const auto experts = make(layer, {.numerics = numerics("exact")});
      EXPECT_LT(relative_rms(tokens.expected(layer), compute(*experts, tokens)), 1e-4)
          << activation.name << " " << size.hidden << " x " << size.intermediate;
    }
}

TEST(CpuEngine, LimitsAndBetasOfActivationsAreTheirs) {
  for (const Activation activation : {Activation::silu, Activation::situ, Activation::swiglustep,
                                      Activation::swigluoai_uninterleave}) {
    TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 64, activation), activation, 13);
    layer.params = {
        .alpha = 1.3, .beta = 0.5, .limit = 1.25, .situ_beta = 2.0, .situ_linear_beta = 3.0};
    const TestTokens tokens(5, 64, 2, 5, 14);
    const auto experts = make(layer, {.numerics = numerics("native")});
    EXPECT_LT(relative_rms(tokens.expected(layer), compute(*experts, tokens)), 1e-4)
        << name(activation);
  }
}

TEST(CpuEngine, RoundsWhereTheReferenceRounds) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TestLayer layer(shape_of(format, 96, 96), Activation::silu, 21);
    const TestTokens tokens = skewed(17, 96, 22);
    for (const Numerics& row : kNumerics) {
      if (row.id == "fast") continue;
      const auto expected = compute(*make_reference(layer, {.numerics = row}), tokens);
      const auto experts = make(layer, {.numerics = row});
      const auto found = compute(*experts, tokens);
      // A sum near the middle between two bf16 numbers may fall to the other side.
      EXPECT_LT(relative_rms(expected, found), row.rounds_sum ? 1e-3 : 1e-4) << row.id;
      const bool goes_elsewhere = row.weights_in_bf16 && format == WeightFormat::nvfp4;
      EXPECT_EQ(experts->engine(), goes_elsewhere ? "reference" : "cpu") << row.id;
      for (const double value : found)
        ASSERT_TRUE(!row.rounds_sum || value == rounded_to_bf16(value)) << row.id;
    }
  }
}

TEST(CpuEngine, FastIsCoarserAndWithinItsTolerance) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 128, 96), Activation::silu, 23);
  const TestTokens tokens = skewed(30, 128, 24);
  const std::vector<double> exact = tokens.expected(layer);
  const auto experts = make(layer, {.numerics = numerics("fast")});
  const auto found = compute(*experts, tokens);
  EXPECT_GT(relative_rms(exact, found), 1e-3);
  EXPECT_LT(relative_rms(exact, found), 3e-2);
  EXPECT_LE(testing::distance(exact, found),
            tolerance(numerics("fast"), ActivationKey::none).of_largest);
  EXPECT_NE(experts->kernel().find("/fast"), std::string::npos) << experts->kernel();
}

struct Quantized {
  ActivationKey key;
  std::vector<float> input{}, hidden{};
};

TEST(CpuEngine, QuantizesActivationsAsTheReferenceDoes) {
  const Quantized cases[] = {
      {ActivationKey::mxfp8},
      {ActivationKey::mxfp4},
      {ActivationKey::fp8_block128},
      {ActivationKey::fp8_token},
      {ActivationKey::fp8_static_tensor, {0.01f}, {0.5f}},
      {ActivationKey::nvfp4, {512.0f}, {8.0f}},
      {ActivationKey::nvfp4, {512, 300, 200, 512, 400}, {8, 7, 6, 5, 4}},
  };
  const TestLayer layer(shape_of(WeightFormat::nvfp4, 160, 160), Activation::silu, 25);
  const TestTokens tokens = skewed(11, 160, 26);
  for (const Quantized& asked : cases)
    for (const char* id : {"native", "nvfp4_emulation"}) {
      ExpertsProblem problem{.numerics = numerics(id),
                             .quantizes = asked.key,
                             .input_scales = asked.input,
                             .hidden_scales = asked.hidden};
      problem.numerics.weights_in_bf16 = false;  // what would be the reference's own
      const auto expected = compute(*make_reference(layer, problem), tokens);
      const auto found = compute(*make(layer, problem), tokens);
      // A value between two codes may become the other one.
      EXPECT_LT(relative_rms(expected, found), 2e-2) << oracle::name(asked.key) << " " << id;
      std::size_t close = 0;
      for (std::size_t i = 0; i < found.size(); ++i)
        close += std::fabs(found[i] - expected[i]) < 1e-2 * std::fabs(expected[i]) + 1e-3;
      EXPECT_GT(close, found.size() * 9 / 10) << oracle::name(asked.key) << " " << id;
    }
}

TEST(CpuEngine, TakesQuantizedTokensWithTheirFactor) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 64), Activation::silu, 27);
  const TestTokens tokens(6, 64, 2, 5, 28);
  const ExpertsProblem problem{.numerics = numerics("native")};
  Prepared in = tokens.prepared();
  in.is_quantized = true;
  in.factor = 0.25f;
  const auto expected = compute(*make_reference(layer, problem), {.in = in});
  EXPECT_LT(relative_rms(expected, compute(*make(layer, problem), {.in = in})), 1e-4);
}

TEST(CpuEngine, KernelsThreadsAndBatchesDoNotChangeABit) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const char* id : {"exact", "fast", "marlin"}) {
      const TestLayer layer(shape_of(format, 160, 96), Activation::silu, 31);
      const TestTokens tokens = skewed(200, 160, 32);
      const ExpertsProblem problem{.numerics = numerics(id)};
      const auto expected = compute(*make(layer, problem), tokens);
      for (const std::size_t threads : {2, 3, 7})
        EXPECT_EQ(expected, compute(*make(layer, problem, threads), tokens)) << id << threads;
      for (const auto& kernel : kernels::cpu::gemm_kernels()) {
        if (!kernels::cpu::machine_features().contains_all(kernel.needs)) continue;
        const auto experts = make(layer, problem, 2, {.features = kernel.needs});
        EXPECT_EQ(expected, compute(*experts, tokens)) << id << " " << kernel.name;
      }
      const auto experts = make(layer, problem);
      const Prepared all = tokens.prepared();
      for (const std::uint64_t step : {1, 67}) {
        std::vector<double> parts;
        for (std::uint64_t t = 0; t < tokens.tokens; t += step) {
          const std::uint64_t count = std::min(step, tokens.tokens - t);
          Prepared in = all;
          in.x = all.x.from(t, count);
          in.ids = all.ids.subspan(t * 2, count * 2);
          in.weights = all.weights.subspan(t * 2, count * 2);
          const auto part = compute(*experts, {.in = in});
          parts.insert(parts.end(), part.begin(), part.end());
        }
        EXPECT_EQ(expected, parts) << id << " " << step;
      }
    }
}

// The values of many tokens are kept for some rows at a time, those of few for all.
TEST(CpuEngine, ManyTokensAreSummedAsFewAre) {
  for (const char* id : {"exact", "trtllm"}) {
    const TestLayer layer(shape_of(WeightFormat::mxfp4, 1120, 512), Activation::silu, 45);
    const TestTokens tokens = skewed(1100, 1120, 46);
    ASSERT_GT(tokens.ids.size() * 1120 * sizeof(float), kNearBytes);
    const ExpertsProblem problem{.numerics = numerics(id)};
    const auto together = compute(*make(layer, problem, 3), tokens);
    const auto experts = make(layer, problem);
    const Prepared all = tokens.prepared();
    for (const std::uint64_t t : {0, 517, 1099}) {
      Prepared in = all;
      in.x = all.x.from(t, 1);
      in.ids = all.ids.subspan(t * 2, 2);
      in.weights = all.weights.subspan(t * 2, 2);
      const auto alone = compute(*experts, {.in = in});
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                             together.begin() + static_cast<std::ptrdiff_t>(t * 1120)))
          << id << " " << t;
    }
  }
}

TEST(CpuEngine, LayersOfAnySizeShareTheMemoryOfTheirThreads) {
  const auto pool = std::make_shared<ThreadPool>(2);
  const TestLayer small(shape_of(WeightFormat::nvfp4, 96, 64), Activation::silu, 47);
  const TestLayer large(shape_of(WeightFormat::mxfp4, 512, 320), Activation::silu, 48);
  const ExpertsProblem problem{.numerics = numerics("exact")};
  const auto on_pool = [&](const TestLayer& layer) {
    auto result = CpuEngine(pool).make(complete(layer, problem), layer.source());
    EXPECT_TRUE(result) << text(result.why());
    return std::move(*result);
  };
  const auto few = on_pool(small), many = on_pool(large);
  for (const std::uint64_t count : {3, 40, 1, 200, 7}) {
    const TestTokens narrow = skewed(count, 96, count), wide = skewed(count, 512, count);
    EXPECT_EQ(compute(*few, narrow), compute(*make(small, problem), narrow)) << count;
    EXPECT_EQ(compute(*many, wide), compute(*make(large, problem), wide)) << count;
  }
  EXPECT_GT(Workspaces::of(pool)->take().h.panels.size(), 0u);
  EXPECT_EQ(Workspaces::of(pool)->take().h.panels.size(), 0u);  // there was but one
}

TEST(CpuEngine, WeightsPackedCutAndMappedGiveTheSameBits) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4})
    for (const Activation activation :
         {Activation::silu, Activation::swigluoai, Activation::relu2_no_mul}) {
      const std::uint64_t hidden = format == WeightFormat::mxfp4 ? 96 : 112;
      const std::uint64_t middle = format == WeightFormat::mxfp4 ? 160 : 80;
      const TestLayer layer(shape_of(format, hidden, middle, activation), activation, 33);
      const PackedLayer packed(layer, machine_tiles());
      const TestTokens tokens = skewed(40, hidden, 34);
      const ExpertsProblem problem{.numerics = numerics("exact")};
      const auto cut = compute(*make(layer, problem), tokens);
      const auto mapped = make(layer, problem, 2, {.home = WeightsHome::mapped});
      EXPECT_EQ(cut, compute(*mapped, tokens)) << name(activation);
      EXPECT_NE(mapped->kernel().find("mapped"), std::string::npos);
      const auto found = compute(*make(layer, problem, 2, {}, &packed.source), tokens);
      EXPECT_EQ(cut, found) << name(activation);
    }
}

TEST(CpuEngine, GivesAssignmentsWithoutWeightsAndZerosForUnassigned) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 64), Activation::silu, 35);
  const TestTokens tokens = skewed(20, 64, 36);
  for (const char* id : {"native", "marlin", "trtllm"}) {
    const ExpertsProblem problem{.numerics = numerics(id)};
    const auto expected = compute(*make_reference(layer, problem), tokens, OutputForm::assignments);
    const auto found = compute(*make(layer, problem, 2), tokens, OutputForm::assignments);
    EXPECT_LT(relative_rms(expected, found), 1e-3) << id;
    for (std::size_t i = 0; i < 2 * 64; ++i) EXPECT_EQ(found[i], 0.0);
  }
}

TEST(CpuEngine, ComputesBatchesAndLeavesEmptyRowsAlone) {
  const TestLayer layer(shape_of(WeightFormat::nvfp4, 64, 48), Activation::silu, 37);
  const TestTokens tokens(5 * 150, 64, 1, 5, 38);
  const std::vector<std::int32_t> counts{3, 0, 150, 1, 7};
  Prepared in{{.x = tokens.rows()}, TokenFormat::batched};
  in.counts = counts;
  in.capacity = 150;
  const ExpertsProblem problem{.numerics = numerics("native")};
  const auto expected = compute(*make_reference(layer, problem), {.in = in}, OutputForm::batches);
  const auto found = compute(*make(layer, problem, 3), {.in = in}, OutputForm::batches);
  EXPECT_LT(relative_rms(expected, found), 1e-4);
  for (std::size_t i = 3 * 64; i < 300 * 64; ++i) ASSERT_EQ(found[i], 0.0);
}

TEST(CpuEngine, FollowsExpertMapsAndWeightsOnTheInput) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 64), Activation::silu, 39);
  TestTokens tokens(30, 64, 1, 12, 40);
  const std::vector<std::int32_t> map{-1, 4, 3, -1, 0, 1, 2, 9};  // shorter than the ids
  const Prepared in = tokens.prepared();
  const ExpertsProblem problem{.numerics = numerics("trtllm")};
  for (const bool on_input : {false, true}) {
    const ExpertsCall call{.in = in, .expert_map = map, .weight_on_input = on_input};
    const auto expected = compute(*make_reference(layer, problem), call);
    EXPECT_LT(relative_rms(expected, compute(*make(layer, problem), call)), 1e-3);
  }
}

// Float32 pairs for every adapter and expert.
struct TestAdapters {
  std::vector<std::vector<float>> memory{};
  std::vector<LoraExpert> pairs{};

  TestAdapters(const checkpoint::MoeShape& shape, std::size_t adapters, std::uint64_t seed) {
    SplitMix64 random(seed);
    const auto matrix = [&](std::uint64_t rows, std::uint64_t columns) {
      auto& values = memory.emplace_back(rows * columns);
      for (float& value : values) value = 0.3f * (2.0f * random.unit() - 1.0f);
      return FloatMatrix{values.data(), rows, columns, columns};
    };
    for (std::size_t i = 0; i < adapters * shape.experts; ++i) {
      const std::uint64_t rank = i < shape.experts ? 3 : 11;
      LoraExpert result;
      if (shape.gated())
        result.gate = {matrix(rank, shape.hidden), matrix(shape.intermediate, rank)};
      if (i % 2 == 0) result.up = {matrix(rank, shape.hidden), matrix(shape.intermediate, rank)};
      if (i % 3 != 0) result.down = {matrix(rank, shape.intermediate), matrix(shape.hidden, rank)};
      pairs.push_back(result);
    }
  }
};

TEST(CpuEngine, AddsAdaptersAsTheReferenceDoes) {
  for (const Activation activation : {Activation::silu, Activation::gelu_no_mul})
    for (const char* id : {"native", "marlin", "trtllm", "unfused"}) {
      const TestLayer layer(shape_of(WeightFormat::mxfp4, 96, 96, activation), activation, 41);
      const TestTokens tokens = skewed(14, 96, 42);
      const TestAdapters adapters(layer.shape, 2, 43);
      std::vector<std::int32_t> chosen;
      for (int t = 0; t < 14; ++t) chosen.push_back(t % 3 - 1);
      Prepared in = tokens.prepared();
      in.adapters = chosen;
      const ExpertsCall call{.in = in, .lora = {adapters.pairs, layer.shape.experts}};
      const ExpertsProblem problem{.numerics = numerics(id)};
      const auto expected = compute(*make_reference(layer, problem), call);
      const auto experts = make(layer, problem, 2);
      EXPECT_LT(relative_rms(expected, compute(*experts, call)),
                problem.numerics.rounds_sum ? 3e-3 : 1e-4)
          << id << " " << name(activation);
      EXPECT_GT(relative_rms(expected, compute(*experts, tokens)), 1e-2) << "nothing was added";
    }
}

// Calls with adapters take separate steps where others take one.
TEST(CpuEngine, AdaptersThatNoTokenHasDoNotChangeABit) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    const TestLayer layer(shape_of(format, 1120, 96), Activation::silu, 61);
    const TestTokens tokens = skewed(70, 1120, 62);
    const TestAdapters adapters(layer.shape, 1, 63);
    const std::vector<std::int32_t> none(70, -1);
    Prepared in = tokens.prepared();
    in.adapters = none;
    const ExpertsCall call{.in = in, .lora = {adapters.pairs, layer.shape.experts}};
    for (const char* id : {"exact", "native"}) {
      const auto experts = make(layer, {.numerics = numerics(id)}, 2);
      EXPECT_EQ(compute(*experts, tokens), compute(*experts, call)) << id;
    }
  }
}

TEST(CpuEngine, TakesNoTokensManyTokensAndManyChoices) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 32, 32), Activation::silu, 45);
  const auto experts = make(layer, {.numerics = numerics("native")}, 2);
  EXPECT_TRUE(compute(*experts, TestTokens(0, 32, 2, 5, 46)).empty());
  const TestTokens many(2500, 32, 4, 5, 47);  // more than one pass
  EXPECT_LT(relative_rms(many.expected(layer), compute(*experts, many)), 1e-4);
  const TestTokens wide(3, 32, 11, 5, 48);  // more choices than experts
  EXPECT_LT(relative_rms(wide.expected(layer), compute(*experts, wide)), 1e-4);
}

TEST(CpuEngine, KeepsWhatIsNotANumberToItsToken) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 64), Activation::silu, 49);
  TestTokens tokens(4, 64, 1, 5, 50);
  tokens.ids.assign(4, 2);
  const auto experts = make(layer, {.numerics = numerics("native")});
  const auto before = compute(*experts, tokens);
  tokens.x[64 + 5] = 0x7FC0;
  const auto after = compute(*experts, tokens);
  for (std::size_t i = 0; i < after.size(); ++i) {
    if (i / 64 == 1)
      EXPECT_TRUE(std::isnan(after[i]));
    else
      EXPECT_EQ(before[i], after[i]);
  }
}

Error why_not(const TestLayer& layer, const ExpertSource& source, const char* id = "native") {
  const CpuEngine engine(std::make_shared<ThreadPool>(2));
  const auto result = engine.make(complete(layer, {.numerics = numerics(id)}), source);
  EXPECT_FALSE(result);
  return result ? Error{} : result.why();
}

TEST(CpuEngine, RefusesScalesThatAreNotNumbersAndSaysWhere) {
  for (const WeightFormat format : {WeightFormat::mxfp4, WeightFormat::nvfp4}) {
    TestLayer layer(shape_of(format, 64, 64), Activation::silu, 51);
    const std::uint64_t blocks = 64 / formats::block_size(format);
    const std::byte nan{format == WeightFormat::mxfp4 ? std::uint8_t{255} : std::uint8_t{0xFF}};
    const std::byte fine = layer.up[3].scales[7 * blocks + 1];
    layer.up[3].scales[7 * blocks + 1] = nan;
    const PackedLayer first(layer, machine_tiles());
    for (const ExpertSource& source : {layer.source(), first.source}) {
      const Error why = why_not(layer, source);
      EXPECT_EQ(why.id, "experts.scales");
      EXPECT_EQ(why.tensor, "expert 3, up row 7, block 1");
    }
    layer.up[3].scales[7 * blocks + 1] = fine;
    layer.down[4].scales[0] = nan;
    const PackedLayer second(layer, machine_tiles());
    EXPECT_EQ(why_not(layer, second.source).tensor, "expert 4, down row 0, block 0");
    EXPECT_EQ(why_not(layer, layer.source()).tensor, "expert 4, down row 0, block 0");
  }
  TestLayer layer(shape_of(WeightFormat::nvfp4, 64, 64), Activation::silu, 51);
  layer.down[1].global = INFINITY;
  EXPECT_EQ(why_not(layer, layer.source()).id, "experts.scales");
}

TEST(CpuEngine, RefusesTensorsThatDoNotFit) {
  const TestLayer layer(shape_of(WeightFormat::nvfp4, 64, 64), Activation::silu, 53);
  const PackedLayer packed(layer, machine_tiles());
  for (std::size_t i = 0; i < packed.source.packed.size(); ++i) {
    if (packed.source.packed[i].bytes.empty()) continue;
    ExpertSource shorter = packed.source;
    shorter.packed[i].bytes = shorter.packed[i].bytes.first(shorter.packed[i].bytes.size() - 1);
    EXPECT_EQ(why_not(layer, shorter).id, "experts.layout") << shorter.packed[i].name;
    ExpertSource without = packed.source;
    without.packed.erase(without.packed.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_EQ(why_not(layer, without).id, "experts.layout") << packed.source.packed[i].name;
  }
  const TestLayer wider(shape_of(WeightFormat::nvfp4, 96, 64), Activation::silu, 53);
  ExpertSource narrow = packed.source;
  narrow.shape = wider.shape;
  EXPECT_EQ(why_not(wider, narrow).id, "experts.layout");
  ExpertSource views = layer.source();
  views.shape = wider.shape;
  EXPECT_EQ(why_not(wider, views).id, "experts.layout");
}

TEST(CpuEngine, RefusesCallsAndProblemsThatNoEngineComputes) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 64), Activation::silu, 55);
  const CpuEngine engine(std::make_shared<ThreadPool>(1));
  ExpertsProblem wrong = complete(layer, {.numerics = numerics("native")});
  wrong.activation = Activation::relu2_no_mul;
  EXPECT_FALSE(engine.make(wrong, layer.source()));
  const auto experts = make(layer, {.numerics = numerics("native")});
  const TestTokens tokens(2, 64, 2, 5, 56);
  const Prepared in = tokens.prepared();
  std::vector<float> out(64);
  EXPECT_FALSE(experts->compute({.in = in}, OutputForm::summed,
                                dense_rows(std::span(out), DType::f32, 1, 64)));
}

}  // namespace engine_test
}  // namespace fp4moe::moe::cpu
