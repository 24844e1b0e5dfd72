#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_combine_test {

struct Case {
  Form form = Form::summed;
  Type out = Type::bf16;
  std::uint32_t tokens = 20, top_k = 4, experts = 5, hidden = 320;
  std::uint32_t stride = 0;  // of the output; 0: hidden
  Second second = Second::none;
  WeightKind weight = WeightKind::none;
  bool has_bias = false, is_rounded = false, rounds_sum = false, on_input = false;
  bool has_lora = false, is_nvfp4 = false;
  Quantise quantise = Quantise::none;
  std::uint32_t told = 1, early = 0;  // blocks of the product that tell; groups
};

constexpr std::uint32_t kRank = 3;

float to_bf16_and_back(float x) { return as_stored(Type::bf16, x); }

class Combine : public OnDevice {
 protected:
  struct Data {
    PlainTables plain{};
    std::vector<float> rows{}, bias{}, factors{}, globals{}, scales{}, weights{}, low{}, b{};
    std::vector<std::int32_t> adapters{};
  };

  static std::uint32_t units(const Case& c) { return (c.hidden + kUnit - 1) / kUnit; }
  static std::uint32_t out_rows(const Case& c) {
    if (c.form == Form::batches) return c.experts * c.tokens;
    return c.form == Form::summed ? c.tokens : c.tokens * c.top_k;
  }

  static Data make(const Case& c) {
    SplitMix64 random(8);
    const bool is_batched = c.form == Form::batches;
    std::vector<std::int32_t> experts(is_batched ? c.experts * c.tokens : c.tokens * c.top_k);
    for (std::size_t slot = 0; slot < experts.size(); ++slot) {
      experts[slot] = static_cast<std::int32_t>(random.next() % (c.experts + 1)) - 1;
      if (slot / c.top_k == 2) experts[slot] = -1;  // a token without any
      if (is_batched)
        experts[slot] = slot % c.tokens <= slot / c.tokens * 3
                            ? static_cast<std::int32_t>(slot / c.tokens)
                            : -1;
    }
    Data made{.plain = plain_tables(experts, c.experts)};
    const std::size_t width = std::size_t{units(c)} * kUnit, rows = made.plain.slot_of_row.size();
    made.rows = random_values(rows * width, 1, 3);
    for (std::size_t row = 0; row < rows; ++row)  // padding holds anything
      for (std::size_t i = 0; made.plain.slot_of_row[row] < 0 && i < width; ++i)
        made.rows[row * width + i] = std::numeric_limits<float>::quiet_NaN();
    if (c.is_rounded)
      for (float& value : made.rows) value = to_bf16_and_back(value);
    made.bias = random_values(c.experts * width, 2);
    made.weights = random_values(experts.size(), 3, 0.8f);
    made.low = random_values(rows * kRank, 4);
    made.b = random_values(std::size_t{2} * c.experts * c.hidden * kRank, 5, 0.5f);
    for (std::uint32_t e = 0; e < c.experts; ++e) {
      made.globals.push_back(0.3f + 0.1f * static_cast<float>(e));
      made.factors.push_back(c.is_nvfp4 ? 4.0f * made.globals[e] : 0.5f);
      made.scales.push_back(0.25f * static_cast<float>(1 + e));
    }
    for (std::uint32_t t = 0; t < (is_batched ? experts.size() : c.tokens); ++t)
      made.adapters.push_back(static_cast<std::int32_t>(t % 3) - 1);
    return made;
  }

  // What a slot adds, in the steps of the CPU engine.
  static double expected_slot(const Case& c, const Data& data, std::size_t slot,
                              std::size_t column) {
    const auto row = static_cast<std::size_t>(data.plain.row_of_slot[slot]);
    const auto expert = static_cast<std::size_t>(data.plain.expert_of_row[row]);
    const std::size_t width = std::size_t{units(c)} * kUnit;
    const bool is_weighted = c.form == Form::summed && !c.on_input;
    const bool folds =
        c.weight == WeightKind::bf16_with_global && is_weighted && c.is_nvfp4 && !c.has_bias;
    const float own = is_weighted ? data.weights[slot] : 1.0f;
    float weight = own;
    if (is_weighted && c.weight != WeightKind::none)
      weight = to_bf16_and_back(own * (folds ? data.globals[expert] : 1.0f));
    const float hidden = c.quantise == Quantise::nvfp4        ? 1.0f / data.scales[expert]
                         : c.quantise == Quantise::fp8_static ? data.scales[expert]
                                                              : 1.0f;
    float sum = data.rows[row * width + column];
    if (!c.is_rounded) {
      sum *= (folds ? 4.0f : data.factors[expert]) * hidden;
      if (c.second == Second::steps) sum = to_bf16_and_back(sum);
      if (c.has_bias) sum += data.bias[expert * width + column];
      if (c.second == Second::steps) sum = to_bf16_and_back(sum);
    }
    if (c.second != Second::unweighted) sum *= weight;
    if (c.second != Second::none) sum = to_bf16_and_back(sum);
    const std::size_t token = c.form == Form::batches ? slot : slot / c.top_k;
    if (c.has_lora && data.adapters[token] >= 0) {
      const std::size_t pair = static_cast<std::size_t>(data.adapters[token]) * c.experts + expert;
      float low = 0;
      for (std::size_t r = 0; r < kRank; ++r)
        low += data.b[(pair * c.hidden + column) * kRank + r] * data.low[row * kRank + r];
      sum += (c.second == Second::unweighted ? 1.0f : own) * low;
      if (c.second != Second::none) sum = to_bf16_and_back(sum);
    }
    return static_cast<double>(c.second == Second::unweighted ? sum * weight : sum);
  }

  std::vector<std::byte> combined(const Case& c, const Data& data, std::uint32_t stride) {
    const std::uint32_t rows = out_rows(c);
    const Memory values = upload(stored(c.is_rounded ? Type::bf16 : Type::f32, data.rows));
    const Memory bias = upload(data.bias), factors = upload(data.factors);
    const Memory globals = upload(data.globals), scales = upload(data.scales);
    const Memory weights = upload(data.weights), low = upload(data.low), b = upload(data.b);
    const Memory row_of_slot = upload(data.plain.row_of_slot);
    const Memory expert_of_row = upload(data.plain.expert_of_row);
    const Memory adapters = upload(data.adapters), counts = room<std::int32_t>(c.experts);
    std::vector<DeviceLoraExpert> pairs(std::size_t{2} * c.experts);
    for (std::size_t i = 0; i < pairs.size(); ++i)
      pairs[i].down = {nullptr, b.as<float>() + i * c.hidden * kRank, kRank, 0, kRank};
    const Memory pairs_on_device = upload(pairs);
    const std::size_t bytes = std::size_t{rows} * stride * (c.out == Type::f32 ? 4 : 2);
    const Memory out = room<std::byte>(bytes);
    CombineParams params;
    params.call.tokens = c.tokens;
    params.call.top_k = c.top_k;
    params.call.weights = weights.as<float>();
    params.call.counts = c.form == Form::batches ? counts.as<std::int32_t>() : nullptr;
    params.call.capacity = c.tokens;
    params.call.weight_on_input = c.on_input ? 1 : 0;
    params.call.form = c.form;
    params.call.out = {out.data(), c.out, rows, stride};
    params.layer.w2.groups = units(c);
    params.layer.w2.factor = factors.as<float>();
    params.layer.w2.bias = c.has_bias ? bias.as<float>() : nullptr;
    params.layer.experts = c.experts;
    params.layer.hidden = c.hidden;
    params.layer.is_nvfp4 = c.is_nvfp4 ? 1 : 0;
    params.layer.second = c.second;
    params.layer.weight = c.weight;
    params.layer.rounds_sum = c.rounds_sum ? 1 : 0;
    params.layer.quantise = c.quantise;
    params.layer.hidden_scales = scales.as<float>();
    params.layer.hidden_scales_each = 1;
    params.layer.down_global = globals.as<float>();
    // Tiles, counters of products, groups that are done, slots of experts, and a number behind.
    constexpr std::uint32_t kTiles = 300;
    std::vector<std::uint32_t> numbers(4 + kTiles + (c.experts - 1) * kApart + 2, 7);
    numbers[0] = kTiles;
    const Memory counters = upload(numbers);
    params.sorted.tile_count = counters.as<std::uint32_t>();
    params.sorted.work = params.sorted.tile_count + 1;
    params.sorted.done = params.sorted.tile_count + 4;
    params.sorted.totals = params.sorted.done + kTiles;
    params.sorted.row_of_slot = row_of_slot.as<std::int32_t>();
    params.sorted.expert_of_row = expert_of_row.as<std::int32_t>();
    params.rows = values.data();
    if (c.has_lora)
      params.lora = {pairs_on_device.as<DeviceLoraExpert>(), adapters.as<std::int32_t>(), c.experts,
                     kRank, low.as<float>()};
    // As a product leaves them whose early columns are done.
    std::vector<std::uint32_t> heard(kFinished);
    heard[kTold] = c.told + (c.early << kToldBits);
    const Memory finished = upload(heard);
    params.sorted.finished = finished.as<std::uint32_t>();
    params.told = c.told;
    run(c.is_rounded ? "fp4moe_sm90_combine_rounded" : "fp4moe_sm90_combine", params,
        {combine_blocks(params.layer, rows, combine_wide(c.is_rounded, c.top_k), 1),
         kCombineThreads});
    heard[kTold] = 0;
    EXPECT_EQ(download<std::uint32_t>(finished, heard.size()), heard);
    std::fill(numbers.begin() + 1, numbers.begin() + 4 + kTiles, 0);
    for (std::uint32_t e = 0; e < c.experts; ++e) numbers[4 + kTiles + e * kApart] = 0;
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
    const auto made = combined(c, data, stride);
    const std::size_t choices = c.form == Form::summed ? c.top_k : 1;
    const bool rounds = c.second != Second::none || c.rounds_sum || c.out != Type::f32;
    std::size_t values = 0, off = 0;
    for (std::size_t row = 0; row < out_rows(c); ++row)
      for (std::size_t column = 0; column < c.hidden; ++column) {
        double wanted = 0, size = 0;
        bool is_read = c.form != Form::batches;
        for (std::size_t slot = row * choices; slot < (row + 1) * choices; ++slot) {
          if (data.plain.row_of_slot[slot] < 0) continue;
          const double part = expected_slot(c, data, slot, column);
          wanted += part;
          size += std::abs(part);
          is_read = true;
        }
        if (!is_read) continue;
        if (c.rounds_sum && c.form == Form::summed)
          wanted = static_cast<double>(to_bf16_and_back(static_cast<float>(wanted)));
        wanted = static_cast<double>(as_stored(c.out, static_cast<float>(wanted)));
        const auto found = static_cast<double>(load_stored(c.out, made, row * stride + column));
        ++values;
        if (std::abs(found - wanted) > 1e-6 * (size + 1)) ++off;
        ASSERT_NEAR(found, wanted, (rounds ? 0.01 : 1e-6) * (size + 1))
            << "row " << row << ", column " << column;
      }
    EXPECT_GT(values, 0u);
    EXPECT_LE(off, rounds ? values / 100 : 0);
  }
};

TEST_F(Combine, SumsTheRowsOfATokensSlots) {
  for (const std::uint32_t tokens : {1u, 3u, 17u, 100u})
    for (const std::uint32_t top_k : {1u, 3u, 4u, 8u})
      for (const bool is_rounded : {false, true})
        expect_combined({.out = Type::f32,
                         .tokens = tokens,
                         .top_k = top_k,
                         .hidden = tokens == 17 ? 2896u : 176u,
                         .has_bias = true,
                         .is_rounded = is_rounded});
}

// All of them in any case, whatever was early.
TEST_F(Combine, TakesEarlyColumnsFirst) {
  for (const std::uint32_t early : {0u, 1u, 4u, 7u, 9u, 45u, 46u})
    for (const std::uint32_t top_k : {1u, 4u, 5u})
      for (const bool is_rounded : {false, true})
        expect_combined({.out = Type::f32,
                         .tokens = top_k == 5 ? 100u : 7u,
                         .top_k = top_k,
                         .hidden = 2896,
                         .is_rounded = is_rounded,
                         .told = 1 + early,
                         .early = early});
}

TEST_F(Combine, WritesAllTypesAlignedOrNot) {
  for (const Type out : {Type::bf16, Type::f16, Type::f32})
    for (const std::uint32_t stride : {0u, 321u, 328u})
      expect_combined({.out = out, .stride = stride});
}

TEST_F(Combine, RoundsWhereTheNumericsSay) {
  for (const Second second : {Second::none, Second::weighted, Second::unweighted, Second::steps})
    for (const WeightKind weight :
         {WeightKind::none, WeightKind::bf16, WeightKind::bf16_with_global})
      for (const bool has_bias : {false, true})
        for (const bool is_nvfp4 : {false, true})
          expect_combined({.out = Type::f32,
                           .second = second,
                           .weight = weight,
                           .has_bias = has_bias,
                           .rounds_sum = has_bias,
                           .is_nvfp4 = is_nvfp4});
}

TEST_F(Combine, LeavesSlotsAndBatchesWithoutWeights) {
  for (const Form form : {Form::slots, Form::batches})
    for (const Second second : {Second::none, Second::unweighted})
      for (const bool has_lora : {false, true})
        expect_combined({.form = form,
                         .out = Type::f32,
                         .top_k = form == Form::slots ? 3u : 1u,
                         .second = second,
                         .weight = WeightKind::bf16_with_global,
                         .has_bias = true,
                         .has_lora = has_lora});
}

TEST_F(Combine, LeavesOutWeightsThatAreInTheInput) {
  expect_combined({.out = Type::f32, .has_bias = true, .on_input = true});
}

TEST_F(Combine, TakesTheFactorOfQuantisedActivations) {
  for (const Quantise kind : {Quantise::nvfp4, Quantise::fp8_static, Quantise::mxfp8})
    expect_combined({.out = Type::f32, .quantise = kind});
}

TEST_F(Combine, AddsLowRanksBehindTheRounding) {
  for (const Second second : {Second::none, Second::weighted, Second::unweighted, Second::steps})
    expect_combined({.out = Type::f32, .second = second, .has_bias = true, .has_lora = true});
}

}  // namespace kernels_combine_test
}  // namespace fp4moe::kernels::cuda::sm90
