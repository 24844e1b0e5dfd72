#include "fp4moe/moe/reference/engine.hpp"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fp4moe/moe/reference/panel.hpp"
#include "support/tiny_layer.hpp"

namespace fp4moe::moe::reference {
namespace engine_test {

using checkpoint::RowOrder;
using formats::WeightFormat;
using testing::distance;
using testing::TestLayer;
using testing::TestTokens;

checkpoint::MoeShape shape_of(WeightFormat format, std::uint64_t hidden, std::uint64_t intermediate,
                              RowOrder order = RowOrder::halves) {
  return {.format = format,
          .experts = 5,
          .hidden = hidden,
          .intermediate = intermediate,
          .order = order,
          .has_bias = format == WeightFormat::mxfp4};
}

const Numerics& numerics(std::string_view id) { return **require_numerics(id); }

std::unique_ptr<ReferenceExperts> make(const TestLayer& layer, ExpertsProblem problem,
                                       std::size_t threads = 1) {
  problem.shape = layer.shape;
  problem.activation = layer.activation;
  problem.params = layer.params;
  const ReferenceEngine engine(std::make_shared<ThreadPool>(threads));
  auto result = engine.make_reference(problem, layer.source());
  EXPECT_TRUE(result) << text(result.why());
  return result ? std::move(*result) : nullptr;
}

std::vector<double> compute(Experts& experts, const TestTokens& tokens,
                            OutputForm form = OutputForm::summed) {
  const Prepared in = tokens.prepared();
  const std::uint64_t rows =
      form == OutputForm::assignments ? tokens.tokens * tokens.top_k : tokens.tokens;
  std::vector<double> out(rows * tokens.hidden, std::nan(""));
  const auto done = experts.compute({.in = in}, form,
                                    dense_rows(std::span(out), DType::f64, rows, tokens.hidden));
  EXPECT_TRUE(done) << text(done.why());
  return out;
}

struct Case {
  WeightFormat format;
  Activation activation;
  std::uint64_t hidden, intermediate;
};

class EveryShape : public ::testing::TestWithParam<Case> {};

TEST_P(EveryShape, AgreesWithPlainLoopsOnAnyThreads) {
  const Case& asked = GetParam();
  const RowOrder order = !is_gated(asked.activation) ? RowOrder::single
                         : row(asked.activation).columns == GateColumns::alternating
                             ? RowOrder::interleaved
                             : RowOrder::halves;
  const TestLayer layer(shape_of(asked.format, asked.hidden, asked.intermediate, order),
                        asked.activation, 11);
  for (const std::uint64_t count : {1u, 3u, 9u, 300u}) {
    const TestTokens tokens(count, asked.hidden, 2, 5, 12 + count);
    if (count == 300 && asked.hidden > 64) continue;  // more than one block of assignments, once
    const auto one = make(layer, {.numerics = numerics("exact")}, 1);
    const auto many = make(layer, {.numerics = numerics("exact")}, 3);
    const std::vector<double> found = compute(*one, tokens);
    EXPECT_LT(distance(tokens.expected(layer), found), 1e-13) << count;
    EXPECT_EQ(found, compute(*many, tokens)) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EveryShape,
                         ::testing::Values(Case{WeightFormat::mxfp4, Activation::swigluoai, 64, 32},
                                           Case{WeightFormat::mxfp4, Activation::silu, 32, 96},
                                           Case{WeightFormat::nvfp4, Activation::gelu_tanh, 48, 16},
                                           Case{WeightFormat::nvfp4, Activation::relu2_no_mul, 16,
                                                80},
                                           Case{WeightFormat::mxfp4, Activation::situ, 160, 64}),
                         [](const auto& chosen) {
                           return std::string(formats::name(chosen.param.format)) + "_" +
                                  std::string(name(chosen.param.activation));
                         });

TEST(Reference, RowsDoNotDependOnTheirNeighbors) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 32), Activation::silu, 5);
  const TestTokens tokens(130, 64, 2, 5, 6);
  for (const Numerics& row : kNumerics) {
    const auto experts = make(layer, {.numerics = row});
    const std::vector<double> whole = compute(*experts, tokens);
    TestTokens last = tokens;
    last.tokens = 1;
    last.x.erase(last.x.begin(), last.x.end() - 64);
    last.ids.erase(last.ids.begin(), last.ids.end() - 2);
    last.weights.erase(last.weights.begin(), last.weights.end() - 2);
    const std::vector<double> alone = compute(*experts, last);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.end() - 64)) << row.id;
  }
}

TEST(Reference, EveryRowOfNumericsStaysWithinItsTolerance) {
  const TestLayer layer(shape_of(WeightFormat::nvfp4, 96, 48), Activation::silu, 7);
  const TestTokens tokens(17, 96, 3, 5, 8);
  const std::vector<double> exact = tokens.expected(layer);
  for (const Numerics& row : kNumerics) {
    const std::vector<double> found = compute(*make(layer, {.numerics = row}), tokens);
    EXPECT_LE(distance(exact, found), tolerance(row, ActivationKey::none).of_largest) << row.id;
    if (row.id == "exact" || row.id == "native" || row.id == "fast") continue;
    EXPECT_GT(distance(exact, found), 1e-5) << row.id << " rounds nowhere";
    for (const double value : found) EXPECT_EQ(value, rounded_to_bf16(value)) << row.id;
  }
}

TEST(Reference, QuantizedActivationsAreCoarserTheFewerBitsTheyHave) {
  const TestLayer layer(shape_of(WeightFormat::nvfp4, 128, 128), Activation::silu, 9);
  const TestTokens tokens(8, 128, 2, 5, 10);
  const std::vector<double> exact = tokens.expected(layer);
  const auto error_with = [&](ActivationKey key, std::vector<float> input,
                              std::vector<float> hidden) {
    const auto experts = make(layer, {.numerics = numerics("grouped"),
                                      .quantizes = key,
                                      .input_scales = std::move(input),
                                      .hidden_scales = std::move(hidden)});
    const double error = distance(exact, compute(*experts, tokens));
    EXPECT_LE(error, tolerance(numerics("grouped"), key).of_largest) << oracle::name(key);
    return error;
  };
  const double none = error_with(ActivationKey::none, {}, {});
  const double mxfp8 = error_with(ActivationKey::mxfp8, {}, {});
  const double block = error_with(ActivationKey::fp8_block128, {}, {});
  const double token = error_with(ActivationKey::fp8_token, {}, {});
  const double fixed = error_with(ActivationKey::fp8_static_tensor, {0.01f}, {0.5f});
  const double nvfp4 = error_with(ActivationKey::nvfp4, {512.0f}, {8.0f});
  const double mxfp4 = error_with(ActivationKey::mxfp4, {}, {});
  for (const double eight : {mxfp8, block, token, fixed}) {
    EXPECT_GT(eight, none);
    EXPECT_LT(eight, nvfp4);
  }
  EXPECT_GT(mxfp4, mxfp8);
  // The same scale for each expert is the same as one for all.
  EXPECT_EQ(nvfp4, error_with(ActivationKey::nvfp4, std::vector<float>(5, 512.0f),
                              std::vector<float>(5, 8.0f)));
}

TEST(Reference, AssignmentsAndBatchesHoldUnweightedRows) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 32), Activation::silu, 13);
  TestTokens tokens(6, 64, 2, 5, 14);
  tokens.ids[3] = -1;
  const auto experts = make(layer, {.numerics = numerics("exact")});
  const std::vector<double> assignments = compute(*experts, tokens, OutputForm::assignments);
  std::vector<double> sum(tokens.tokens * 64, 0.0);
  for (std::size_t i = 0; i < assignments.size(); ++i)
    sum[i / 64 / 2 * 64 + i % 64] += double{tokens.weights[i / 64]} * assignments[i];
  EXPECT_LT(distance(tokens.expected(layer), sum), 1e-13);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(assignments[3 * 64 + i], 0.0);

  // The same rows as batches: expert 1 gets tokens 0 and 4, expert 3 token 2.
  std::vector<std::uint16_t> x(5 * 4 * 64, 0x7FC0);  // NaN where nothing is
  const std::pair<std::size_t, std::size_t> places[] = {{1 * 4 + 0, 0}, {1 * 4 + 1, 4}, {3 * 4, 2}};
  for (const auto& [to, from] : places)
    std::copy_n(tokens.x.begin() + static_cast<std::ptrdiff_t>(from * 64), 64,
                x.begin() + static_cast<std::ptrdiff_t>(to * 64));
  const std::vector<std::int32_t> counts{0, 2, 0, 1, 0};
  Prepared in{{.x = dense_rows(std::span(std::as_const(x)), DType::bf16, 20, 64)},
              TokenFormat::batched};
  in.counts = counts;
  in.capacity = 4;
  std::vector<double> out(20 * 64, std::nan(""));
  const auto done = experts->compute({.in = in}, OutputForm::batches,
                                     dense_rows(std::span(out), DType::f64, 20, 64));
  ASSERT_TRUE(done) << text(done.why());
  for (const auto& [to, from] : places) {
    std::vector<double> row(64);
    for (std::size_t i = 0; i < 64; ++i)
      row[i] = double{formats::Bf16::decode(tokens.x[from * 64 + i])};
    const std::vector<double> expected = layer.expert(to / 4, row.data());
    const std::vector<double> found(out.begin() + static_cast<std::ptrdiff_t>(to * 64),
                                    out.begin() + static_cast<std::ptrdiff_t>(to * 64 + 64));
    EXPECT_LT(distance(expected, found), 1e-13);
  }
  EXPECT_TRUE(std::isnan(out[0])) << "unassigned rows are not computed";
}

TEST(Reference, AdaptersAddTheirLowRankProducts) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 32), Activation::silu, 15);
  const TestTokens tokens(4, 64, 2, 5, 16);
  SplitMix64 random(17);
  std::vector<float> numbers(4096);
  for (float& number : numbers) number = TestLayer::exact_bf16(random.unit() - 0.5f);
  const std::uint64_t rank = 3;
  std::vector<LoraExpert> pairs(10);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto matrix = [&](std::uint64_t rows, std::uint64_t columns, std::size_t at) {
      return FloatMatrix{numbers.data() + (at + 7 * i) % 1024, rows, columns, columns};
    };
    pairs[i].gate = {matrix(rank, 64, 0), matrix(32, rank, 100)};
    pairs[i].up = {matrix(rank, 64, 200), matrix(32, rank, 300)};
    if (i != 3) pairs[i].down = {matrix(rank, 32, 400), matrix(64, rank, 500)};
  }
  const std::vector<std::int32_t> chosen{0, -1, 1, 1};
  Prepared in = tokens.prepared();
  in.adapters = chosen;
  const auto experts = make(layer, {.numerics = numerics("exact")});
  std::vector<double> found(4 * 64);
  const LoraView lora{pairs, 5};
  const auto done = experts->compute({.in = in, .lora = lora}, OutputForm::summed,
                                     dense_rows(std::span(found), DType::f64, 4, 64));
  ASSERT_TRUE(done) << text(done.why());

  // W + B A as plain matrices.
  const auto product = [](const LowRank& pair, const std::vector<double>& x) {
    std::vector<double> out(pair.b.rows, 0.0);
    for (std::uint64_t r = 0; r < pair.a.rows; ++r) {
      double low = 0;
      for (std::size_t i = 0; i < x.size(); ++i) low += double{pair.a.row(r)[i]} * x[i];
      for (std::uint64_t o = 0; o < out.size(); ++o) out[o] += double{pair.b.row(o)[r]} * low;
    }
    return out;
  };
  std::vector<double> expected(4 * 64, 0.0);
  for (std::size_t t = 0; t < 4; ++t)
    for (std::size_t j = 0; j < 2; ++j) {
      const auto e = static_cast<std::size_t>(tokens.ids[t * 2 + j]);
      std::vector<double> x(64), middle(32);
      for (std::size_t i = 0; i < 64; ++i)
        x[i] = double{formats::Bf16::decode(tokens.x[t * 64 + i])};
      std::vector<double> gates(32, 0.0), ups(32, 0.0), y(64, 0.0);
      if (chosen[t] >= 0) {
        const LoraExpert& pair = pairs[static_cast<std::size_t>(chosen[t]) * 5 + e];
        gates = product(pair.gate, x);
        ups = product(pair.up, x);
      }
      for (std::size_t i = 0; i < 32; ++i) {
        for (std::size_t c = 0; c < 64; ++c) {
          gates[i] += layer.gate[e].at(layer.shape.format, i, c) * x[c];
          ups[i] += layer.up[e].at(layer.shape.format, i, c) * x[c];
        }
        gates[i] += double{layer.gate[e].bias[i]};
        ups[i] += double{layer.up[e].bias[i]};
        middle[i] = activate(layer.activation, layer.params, gates[i], ups[i]);
      }
      if (chosen[t] >= 0 && static_cast<std::size_t>(chosen[t]) * 5 + e != 3)
        y = product(pairs[static_cast<std::size_t>(chosen[t]) * 5 + e].down, middle);
      for (std::size_t o = 0; o < 64; ++o) {
        for (std::size_t c = 0; c < 32; ++c)
          y[o] += layer.down[e].at(layer.shape.format, o, c) * middle[c];
        y[o] += double{layer.down[e].bias[o]};
        expected[t * 64 + o] += double{tokens.weights[t * 2 + j]} * y[o];
      }
    }
  EXPECT_LT(distance(expected, found), 1e-13);
}

TEST(Reference, ATraceShowsTheStagesOfItsAssignment) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 32), Activation::silu, 19);
  const TestTokens tokens(3, 64, 2, 5, 20);
  const auto experts = make(layer, {.numerics = numerics("exact")});
  Trace trace{.assignment = 4};
  experts->watch(&trace);
  const std::vector<double> out = compute(*experts, tokens);
  ASSERT_TRUE(trace.is_seen);
  EXPECT_EQ(trace.first.size(), 64u);
  EXPECT_EQ(trace.middle.size(), 32u);
  for (std::size_t i = 0; i < 32; ++i)
    EXPECT_EQ(trace.middle[i],
              activate(layer.activation, layer.params, trace.first[i], trace.first[32 + i]));
  Trace other{.assignment = 5};
  experts->watch(&other);
  compute(*experts, tokens);
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(out[2 * 64 + i], trace.second[i] + other.second[i]);
}

TEST(Reference, APanelHoldsZerosPastTheLastRow) {
  const TestLayer layer(shape_of(WeightFormat::nvfp4, 16, 16), Activation::silu, 21);
  const testing::TestMatrix& m = layer.down[0];
  std::vector<double> panel(kPanelRows * m.k, std::nan(""));
  const Fp4Matrix matrix{WeightFormat::nvfp4, m.codes.data(), m.scales.data(), 11, m.k, {}};
  dequantize_panel(matrix, 8, panel);
  for (std::uint64_t k = 0; k < m.k; ++k)
    for (std::size_t r = 0; r < kPanelRows; ++r)
      EXPECT_EQ(panel[k * kPanelRows + r] * (r < 3 ? double{m.global} : 1.0),
                r < 3 ? m.at(WeightFormat::nvfp4, 8 + r, k) : 0.0);
}

TEST(Reference, RefusesWhatDoesNotFit) {
  const TestLayer layer(shape_of(WeightFormat::mxfp4, 64, 32), Activation::silu, 23);
  const ReferenceEngine engine(std::make_shared<ThreadPool>(1));
  ExpertsProblem problem{
      .shape = layer.shape, .activation = Activation::relu2_no_mul, .numerics = numerics("exact")};
  EXPECT_EQ(engine.make(problem, layer.source()).why().id, "experts.activation");
  problem.activation = Activation::silu;
  problem.quantizes = ActivationKey::nvfp4;
  EXPECT_EQ(engine.make(problem, layer.source()).why().id, "experts.scales");
  problem.input_scales = {1.0f};
  problem.hidden_scales = {-1.0f};
  EXPECT_EQ(engine.make(problem, layer.source()).why().id, "experts.scales");
  problem.shape.hidden = 48;
  EXPECT_EQ(engine.make(problem, layer.source()).why().id, "experts.blocks");

  const auto experts = make(layer, {.numerics = numerics("exact")});
  const TestTokens tokens(2, 64, 2, 5, 24);
  std::vector<double> out(2 * 64);
  const auto refusal = [&](const Prepared& in, OutputForm form, std::uint64_t rows) {
    const auto done =
        experts->compute({.in = in}, form, dense_rows(std::span(out), DType::f64, rows, 64));
    return done ? std::string("ok") : done.why().id;
  };
  Prepared in = tokens.prepared();
  EXPECT_EQ(refusal(in, OutputForm::summed, 2), "ok");
  EXPECT_EQ(refusal(in, OutputForm::batches, 2), "experts.format");
  EXPECT_EQ(refusal(in, OutputForm::summed, 1), "experts.output");
  in.ids = in.ids.first(3);
  EXPECT_EQ(refusal(in, OutputForm::summed, 2), "experts.ids");
  in = tokens.prepared();
  in.x.dtype = DType::u8;
  EXPECT_EQ(refusal(in, OutputForm::summed, 2), "rows.type");
  in = tokens.prepared();
  in.x.columns = 63;
  EXPECT_EQ(refusal(in, OutputForm::summed, 2), "rows.columns");
  in = tokens.prepared();
  in.x.stride = 8;
  EXPECT_EQ(refusal(in, OutputForm::summed, 2), "rows.stride");
  in = tokens.prepared();
  in.x.data = nullptr;
  EXPECT_EQ(refusal(in, OutputForm::summed, 2), "rows.memory");
  const std::vector<std::int32_t> counts{0, 9, 0, 0, 0};
  in = Prepared{{.x = tokens.rows()}, TokenFormat::batched};
  in.counts = counts;
  in.capacity = 4;
  EXPECT_EQ(refusal(in, OutputForm::batches, 2), "experts.counts");
}

}  // namespace engine_test
}  // namespace fp4moe::moe::reference
