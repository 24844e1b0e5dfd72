#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_combine_test {

struct Case {
  OutputForm form = OutputForm::summed;
  ElementType out = ElementType::bf16;
  std::uint32_t tokens = 20, top_k = 4, experts = 5, hidden = 320;
  std::uint32_t stride = 0;  // of the output; 0: hidden
  SecondRounding second = SecondRounding::none;
  WeightRounding weight = WeightRounding::none;
  bool has_bias = false, is_bf16 = false, is_sum_rounded = false, on_input = false;
  bool has_lora = false, is_nvfp4 = false;
  Quantization quantization = Quantization::none;
  std::uint32_t table_writers = 1, early = 0;  // blocks of the GEMM that write tables; M blocks
};

constexpr std::uint32_t kRank = 3;

float to_bf16_and_back(float x) { return as_stored(ElementType::bf16, x); }

class Combine : public OnDevice {
 protected:
  struct Data {
    HostTables plain{};
    std::vector<float> rows{}, bias{}, factors{}, globals{}, scales{}, weights{}, low{}, b{};
    std::vector<std::int32_t> adapters{};
  };

  static std::uint32_t units(const Case& c) { return (c.hidden + kBlockK - 1) / kBlockK; }
  static std::uint32_t out_rows(const Case& c) {
    if (c.form == OutputForm::batches) return c.experts * c.tokens;
    return c.form == OutputForm::summed ? c.tokens : c.tokens * c.top_k;
  }

  static Data make(const Case& c) {
    SplitMix64 random(8);
    const bool is_batched = c.form == OutputForm::batches;
    std::vector<std::int32_t> experts(is_batched ? c.experts * c.tokens : c.tokens * c.top_k);
    for (std::size_t assignment = 0; assignment < experts.size(); ++assignment) {
      experts[assignment] = static_cast<std::int32_t>(random.next() % (c.experts + 1)) - 1;
      if (assignment / c.top_k == 2) experts[assignment] = -1;  // a token without any
      if (is_batched)
        experts[assignment] = assignment % c.tokens <= assignment / c.tokens * 3
                                  ? static_cast<std::int32_t>(assignment / c.tokens)
                                  : -1;
    }
    Data result{.plain = host_tables(experts, c.experts)};
    const std::size_t width = std::size_t{units(c)} * kBlockK,
                      rows = result.plain.assignment_of_row.size();
    result.rows = random_values(rows * width, 1, 3);
    for (std::size_t row = 0; row < rows; ++row)  // padding holds anything
      for (std::size_t i = 0; result.plain.assignment_of_row[row] < 0 && i < width; ++i)
        result.rows[row * width + i] = std::numeric_limits<float>::quiet_NaN();
    if (c.is_bf16)
      for (float& value : result.rows) value = to_bf16_and_back(value);
    result.bias = random_values(c.experts * width, 2);
    result.weights = random_values(experts.size(), 3, 0.8f);
    result.low = random_values(rows * kRank, 4);
    result.b = random_values(std::size_t{2} * c.experts * c.hidden * kRank, 5, 0.5f);
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      result.globals.push_back(0.3f + 0.1f * static_cast<float>(e));
      result.factors.push_back(c.is_nvfp4 ? 4.0f * result.globals[e] : 0.5f);
      result.scales.push_back(0.25f * static_cast<float>(1 + e));
    }
    for (std::uint32_t t = 0; t < (is_batched ? experts.size() : c.tokens); ++t)
      result.adapters.push_back(static_cast<std::int32_t>(t % 3) - 1);
    return result;
  }

  // The contribution of an assignment, in the steps of the CPU engine.
  static double expected_assignment(const Case& c, const Data& data, std::size_t assignment,
                                    std::size_t column) {
    const auto row = static_cast<std::size_t>(data.plain.row_of_assignment[assignment]);
    const auto expert = static_cast<std::size_t>(data.plain.expert_of_row[row]);
    const std::size_t width = std::size_t{units(c)} * kBlockK;
    const bool is_weighted = c.form == OutputForm::summed && !c.on_input;
    const bool folds =
        c.weight == WeightRounding::bf16_with_global && is_weighted && c.is_nvfp4 && !c.has_bias;
    const float own = is_weighted ? data.weights[assignment] : 1.0f;
    float weight = own;
    if (is_weighted && c.weight != WeightRounding::none)
      weight = to_bf16_and_back(own * (folds ? data.globals[expert] : 1.0f));
    const float hidden = c.quantization == Quantization::nvfp4 ? 1.0f / data.scales[expert]
                         : c.quantization == Quantization::fp8_static_tensor ? data.scales[expert]
                                                                             : 1.0f;
    float sum = data.rows[row * width + column];
    if (!c.is_bf16) {
      sum *= (folds ? 4.0f : data.factors[expert]) * hidden;
      if (c.second == SecondRounding::steps) sum = to_bf16_and_back(sum);
      if (c.has_bias) sum += data.bias[expert * width + column];
      if (c.second == SecondRounding::steps) sum = to_bf16_and_back(sum);
    }
    if (c.second != SecondRounding::unweighted) sum *= weight;
    if (c.second != SecondRounding::none) sum = to_bf16_and_back(sum);
    const std::size_t token = c.form == OutputForm::batches ? assignment : assignment / c.top_k;
    if (c.has_lora && data.adapters[token] >= 0) {
      const std::size_t pair = static_cast<std::size_t>(data.adapters[token]) * c.experts + expert;
      float low = 0;
      for (std::size_t r = 0; r < kRank; ++r)
        low += data.b[(pair * c.hidden + column) * kRank + r] * data.low[row * kRank + r];
      sum += (c.second == SecondRounding::unweighted ? 1.0f : own) * low;
      if (c.second != SecondRounding::none) sum = to_bf16_and_back(sum);
    }
    return static_cast<double>(c.second == SecondRounding::unweighted ? sum * weight : sum);
  }

  std::vector<std::byte> combined(const Case& c, const Data& data, std::uint32_t stride) {
    const std::uint32_t rows = out_rows(c);
    const Memory values =
        upload(stored(c.is_bf16 ? ElementType::bf16 : ElementType::f32, data.rows));
    const Memory bias = upload(data.bias), factors = upload(data.factors);
    const Memory globals = upload(data.globals), scales = upload(data.scales);
    const Memory weights = upload(data.weights), low = upload(data.low), b = upload(data.b);
    const Memory row_of_assignment = upload(data.plain.row_of_assignment);
    const Memory expert_of_row = upload(data.plain.expert_of_row);
    const Memory adapters = upload(data.adapters), counts = buffer<std::int32_t>(c.experts);
    std::vector<DeviceLoraExpert> pairs(std::size_t{2} * c.experts);
    for (std::size_t i = 0; i < pairs.size(); ++i)
      pairs[i].down = {nullptr, b.as<float>() + i * c.hidden * kRank, kRank, 0, kRank};
    const Memory pairs_on_device = upload(pairs);
    const std::size_t bytes = std::size_t{rows} * stride * (c.out == ElementType::f32 ? 4 : 2);
    const Memory out = buffer<std::byte>(bytes);
    CombineParams params;
    params.call.tokens = c.tokens;
    params.call.top_k = c.top_k;
    params.call.weights = weights.as<float>();
    params.call.counts = c.form == OutputForm::batches ? counts.as<std::int32_t>() : nullptr;
    params.call.capacity = c.tokens;
    params.call.weight_on_input = c.on_input ? 1 : 0;
    params.call.form = c.form;
    params.call.out = {out.data(), c.out, rows, stride};
    params.layer.w2.m_blocks = units(c);
    params.layer.w2.factor = factors.as<float>();
    params.layer.w2.bias = c.has_bias ? bias.as<float>() : nullptr;
    params.layer.experts = c.experts;
    params.layer.hidden = c.hidden;
    params.layer.is_nvfp4 = c.is_nvfp4 ? 1 : 0;
    params.layer.second = c.second;
    params.layer.weight = c.weight;
    params.layer.is_sum_rounded = c.is_sum_rounded ? 1 : 0;
    params.layer.quantization = c.quantization;
    params.layer.hidden_scales = scales.as<float>();
    params.layer.hidden_scales_each = 1;
    params.layer.down_global = globals.as<float>();
    // tile_count, work_counters, tile_progress, expert_counts, and a number that must not change.
    constexpr std::uint32_t kTiles = 300;
    std::vector<std::uint32_t> numbers(4 + kTiles + (c.experts - 1) * kCounterStride + 2, 7);
    numbers[0] = kTiles;
    const Memory counters = upload(numbers);
    params.tables.tile_count = counters.as<std::uint32_t>();
    params.tables.work_counters = params.tables.tile_count + 1;
    params.tables.tile_progress = params.tables.tile_count + 4;
    params.tables.expert_counts = params.tables.tile_progress + kTiles;
    params.tables.row_of_assignment = row_of_assignment.as<std::int32_t>();
    params.tables.expert_of_row = expert_of_row.as<std::int32_t>();
    params.rows = values.data();
    if (c.has_lora)
      params.lora = {pairs_on_device.as<DeviceLoraExpert>(), adapters.as<std::int32_t>(), c.experts,
                     kRank, low.as<float>()};
    // As a grouped GEMM leaves them when its early columns are complete.
    std::vector<std::uint32_t> signals(kCombineSignals);
    signals[kTablesReady] = c.table_writers + (c.early << kTablesReadyBits);
    const Memory finished = upload(signals);
    params.tables.combine_signals = finished.as<std::uint32_t>();
    params.table_writers = c.table_writers;
    run(c.is_bf16 ? "fp4moe_sm90_combine_bf16" : "fp4moe_sm90_combine_f32", params,
        {combine_blocks(params.layer, rows, combine_segments(c.is_bf16, c.top_k), 1),
         kCombineThreads});
    signals[kTablesReady] = 0;
    EXPECT_EQ(download<std::uint32_t>(finished, signals.size()), signals);
    std::fill(numbers.begin() + 1, numbers.begin() + 4 + kTiles, 0);
    for (std::uint32_t e = 0; e < c.experts; ++e) numbers[4 + kTiles + e * kCounterStride] = 0;
    EXPECT_EQ(download<std::uint32_t>(counters, numbers.size()), numbers);
    return download<std::byte>(out, bytes);
  }

  void expect_combined(const Case& c) {
    SCOPED_TRACE(
        fmt::format("form {}, out {}, {} tokens, {} choices, hidden {}, second {}, weight {}",
                    static_cast<int>(c.form), static_cast<int>(c.out), c.tokens, c.top_k, c.hidden,
                    static_cast<int>(c.second), static_cast<int>(c.weight)));
    const Data data = make(c);
    const std::uint32_t stride = c.stride == 0 ? c.hidden : c.stride;
    const auto result = combined(c, data, stride);
    const std::size_t choices = c.form == OutputForm::summed ? c.top_k : 1;
    const bool rounds =
        c.second != SecondRounding::none || c.is_sum_rounded || c.out != ElementType::f32;
    std::size_t values = 0, off = 0;
    for (std::size_t row = 0; row < out_rows(c); ++row)
      for (std::size_t column = 0; column < c.hidden; ++column) {
        double wanted = 0, size = 0;
        bool is_read = c.form != OutputForm::batches;
        for (std::size_t assignment = row * choices; assignment < (row + 1) * choices;
             ++assignment) {
          if (data.plain.row_of_assignment[assignment] < 0) continue;
          const double part = expected_assignment(c, data, assignment, column);
          wanted += part;
          size += std::abs(part);
          is_read = true;
        }
        if (!is_read) continue;
        if (c.is_sum_rounded && c.form == OutputForm::summed)
          wanted = static_cast<double>(to_bf16_and_back(static_cast<float>(wanted)));
        wanted = static_cast<double>(as_stored(c.out, static_cast<float>(wanted)));
        const auto found = static_cast<double>(load_stored(c.out, result, row * stride + column));
        ++values;
        if (std::abs(found - wanted) > 1e-6 * (size + 1)) ++off;
        ASSERT_NEAR(found, wanted, (rounds ? 0.01 : 1e-6) * (size + 1))
            << "row " << row << ", column " << column;
      }
    EXPECT_GT(values, 0u);
    EXPECT_LE(off, rounds ? values / 100 : 0);
  }
};

TEST_F(Combine, SumsTheRowsOfATokensAssignments) {
  for (const std::uint32_t tokens : {1u, 3u, 17u, 100u})
    for (const std::uint32_t top_k : {1u, 3u, 4u, 8u})
      for (const bool is_bf16 : {false, true})
        expect_combined({.out = ElementType::f32,
                         .tokens = tokens,
                         .top_k = top_k,
                         .hidden = tokens == 17 ? 2896u : 176u,
                         .has_bias = true,
                         .is_bf16 = is_bf16});
}

// All of them in any case, whatever was early.
TEST_F(Combine, TakesEarlyColumnsFirst) {
  for (const std::uint32_t early : {0u, 1u, 4u, 7u, 9u, 45u, 46u})
    for (const std::uint32_t top_k : {1u, 4u, 5u})
      for (const bool is_bf16 : {false, true})
        expect_combined({.out = ElementType::f32,
                         .tokens = top_k == 5 ? 100u : 7u,
                         .top_k = top_k,
                         .hidden = 2896,
                         .is_bf16 = is_bf16,
                         .table_writers = 1 + early,
                         .early = early});
}

TEST_F(Combine, WritesAllTypesAlignedOrNot) {
  for (const ElementType out : {ElementType::bf16, ElementType::f16, ElementType::f32})
    for (const std::uint32_t stride : {0u, 321u, 328u})
      expect_combined({.out = out, .stride = stride});
}

TEST_F(Combine, RoundsWhereTheNumericsSay) {
  for (const SecondRounding second : {SecondRounding::none, SecondRounding::weighted,
                                      SecondRounding::unweighted, SecondRounding::steps})
    for (const WeightRounding weight :
         {WeightRounding::none, WeightRounding::bf16, WeightRounding::bf16_with_global})
      for (const bool has_bias : {false, true})
        for (const bool is_nvfp4 : {false, true})
          expect_combined({.out = ElementType::f32,
                           .second = second,
                           .weight = weight,
                           .has_bias = has_bias,
                           .is_sum_rounded = has_bias,
                           .is_nvfp4 = is_nvfp4});
}

TEST_F(Combine, LeavesAssignmentsAndBatchesWithoutWeights) {
  for (const OutputForm form : {OutputForm::assignments, OutputForm::batches})
    for (const SecondRounding second : {SecondRounding::none, SecondRounding::unweighted})
      for (const bool has_lora : {false, true})
        expect_combined({.form = form,
                         .out = ElementType::f32,
                         .top_k = form == OutputForm::assignments ? 3u : 1u,
                         .second = second,
                         .weight = WeightRounding::bf16_with_global,
                         .has_bias = true,
                         .has_lora = has_lora});
}

TEST_F(Combine, LeavesOutWeightsThatAreInTheInput) {
  expect_combined({.out = ElementType::f32, .has_bias = true, .on_input = true});
}

TEST_F(Combine, TakesTheFactorOfQuantizedActivations) {
  for (const Quantization kind :
       {Quantization::nvfp4, Quantization::fp8_static_tensor, Quantization::mxfp8})
    expect_combined({.out = ElementType::f32, .quantization = kind});
}

TEST_F(Combine, AddsLowRanksBehindTheRounding) {
  for (const SecondRounding second : {SecondRounding::none, SecondRounding::weighted,
                                      SecondRounding::unweighted, SecondRounding::steps})
    expect_combined(
        {.out = ElementType::f32, .second = second, .has_bias = true, .has_lora = true});
}

}  // namespace kernels_combine_test
}  // namespace fp4moe::kernels::cuda::sm90
