#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/quantised_rows.hpp"
#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_activate_test {

struct Case {
  Layer layer{};
  bool has_bias = false;
  bool rounds_inputs = false;  // raw sums are eighths, so that everything is exact
  bool has_lora = false;
  bool is_quantised = false;  // x is, and has a factor
  std::uint32_t tokens = 20, top_k = 3;
};

constexpr std::uint32_t kRank = 5;
constexpr std::uint32_t kAdapters = 2;

// Low ranks of one projection of all adapters and experts.
struct LowRanks {
  std::uint32_t inputs = 0, outputs = 0;
  std::vector<float> a{}, b{};  // [pairs][rank][inputs], [pairs][outputs][rank]

  LowRanks(std::uint32_t in, std::uint32_t out, std::uint32_t pairs, std::uint64_t seed)
      : inputs(in),
        outputs(out),
        a(random_values(std::size_t{pairs} * kRank * in, seed, 0.3f)),
        b(random_values(std::size_t{pairs} * kRank * out, seed + 1, 0.3f)) {}

  DeviceLowRank of(std::size_t pair, const Memory& on_a, const Memory& on_b) const {
    return {on_a.as<float>() + pair * kRank * inputs, on_b.as<float>() + pair * kRank * outputs,
            kRank, inputs, kRank};
  }
  template <class Values>
  std::vector<double> down(std::size_t pair, const Values& values) const {
    std::vector<double> low(kRank);
    for (std::size_t r = 0; r < kRank; ++r)
      for (std::size_t c = 0; c < inputs; ++c)
        low[r] += static_cast<double>(a[(pair * kRank + r) * inputs + c]) *
                  static_cast<double>(values[c]);
    return low;
  }
  double up(std::size_t pair, std::size_t output, const std::vector<double>& low) const {
    double sum = 0;
    for (std::size_t r = 0; r < kRank; ++r)
      sum += static_cast<double>(b[(pair * outputs + output) * kRank + r]) * low[r];
    return sum;
  }
};

double rounded(double x) {
  return static_cast<double>(as_stored(Type::bf16, static_cast<float>(x)));
}

class Activate : public OnDevice {
 protected:
  // Everything that is random about a case.
  struct Data {
    PlainTables plain{};
    std::vector<std::int32_t> adapters{};
    std::vector<float> raw{}, bias{}, factors{}, scales{}, x{};
    LowRanks gate, up, down;
  };

  static Data make(const Case& c) {
    const Layer& l = c.layer;
    const std::uint32_t pairs = kAdapters * l.experts, width = l.w13.groups * kUnit;
    SplitMix64 random(8);
    std::vector<std::int32_t> experts(std::size_t{c.tokens} * c.top_k);
    for (std::int32_t& expert : experts)
      expert = static_cast<std::int32_t>(random.next() % (l.experts + 1)) - 1;
    Data made{.plain = plain_tables(experts, l.experts),
              .gate = {l.hidden, l.intermediate, pairs, 20},
              .up = {l.hidden, l.intermediate, pairs, 30},
              .down = {l.intermediate, l.hidden, pairs, 40}};
    for (std::uint32_t t = 0; t < c.tokens; ++t)
      made.adapters.push_back(static_cast<std::int32_t>(t % 3) - 1);
    made.raw = random_values(made.plain.slot_of_row.size() * width, 1, 4);
    made.bias = random_values(std::size_t{l.experts} * width, 2);
    made.x = random_values(std::size_t{c.tokens} * l.hidden, 3);
    if (c.rounds_inputs)
      for (float& value : made.raw) value = std::round(value * 8) / 8;
    for (std::uint32_t e = 0; e < l.experts * 2; ++e)
      made.factors.push_back(c.rounds_inputs ? 0.5f : 0.25f + 0.125f * static_cast<float>(e % 5));
    for (std::uint32_t e = 0; e < l.experts; ++e)
      made.scales.push_back(0.25f * static_cast<float>(1 + e % 3));
    return made;
  }

  // A row of h before it is quantised, and A_down h.
  static std::vector<double> expected_row(const Case& c, const Data& data, std::size_t row,
                                          std::vector<double>& low) {
    const Layer& l = c.layer;
    const auto expert = static_cast<std::size_t>(data.plain.expert_of_row[row]);
    const auto token = static_cast<std::size_t>(data.plain.slot_of_row[row]) / c.top_k;
    const std::size_t width = l.w13.groups * kUnit;
    const bool gated = l.is_gated != 0;
    const double input = c.is_quantised ? 0.5 : 1.0;
    const bool has_low = c.has_lora && data.adapters[token] >= 0;
    const std::size_t pair =
        has_low ? static_cast<std::size_t>(data.adapters[token]) * l.experts + expert : 0;
    std::vector<double> low_gate, low_up;
    if (has_low) {
      const std::vector<float> x(
          data.x.begin() + static_cast<std::ptrdiff_t>(token * l.hidden),
          data.x.begin() + static_cast<std::ptrdiff_t>((token + 1) * l.hidden));
      low_gate = data.gate.down(pair, x);
      low_up = data.up.down(pair, x);
      for (double& value : low_gate) value *= input;
      for (double& value : low_up) value *= input;
    }
    const auto finished = [&](std::size_t at, std::size_t turn) {
      const float factor = data.factors[gated ? expert * 2 + turn : expert];
      double sum =
          static_cast<double>(data.raw[row * width + at]) * static_cast<double>(factor) * input;
      if (l.first == First::steps) sum = rounded(sum);
      if (c.has_bias) sum += static_cast<double>(data.bias[expert * width + at]);
      return l.first == First::none ? sum : rounded(sum);
    };
    const auto added = [&](double value, const LowRanks& ranks, std::size_t column,
                           const std::vector<double>& inputs) {
      if (!has_low) return value;
      value += ranks.up(pair, column, inputs);
      return l.first == First::none ? value : rounded(value);
    };
    const moe::ActivationParams params{.alpha = static_cast<double>(l.alpha),
                                       .beta = static_cast<double>(l.beta),
                                       .limit = static_cast<double>(l.limit)};
    const auto act = static_cast<moe::Activation>(l.act);
    std::vector<double> h(l.intermediate);
    for (std::size_t i = 0; i < h.size(); ++i) {
      double gate = finished(gated ? i / 8 * 16 + i % 8 : i, 0);
      double up = gated ? finished(i / 8 * 16 + 8 + i % 8, 1) : 0;
      gate = added(gate, data.gate, i, low_gate);
      (gated ? up : gate) = added(gated ? up : gate, data.up, i, low_up);
      h[i] = moe::activate_gate(act, params, gate);
      const bool is_apart = l.act == Act::silu || l.act == Act::swigluoai_uninterleave;
      if (l.middle == Middle::gate_and_result && is_apart) h[i] = rounded(h[i]);
      if (gated) h[i] *= moe::up_factor(act, params, up);
      if (l.middle != Middle::none) h[i] = rounded(h[i]);
    }
    if (has_low) low = data.down.down(pair, h);
    return h;
  }

  struct Made {
    std::vector<std::uint16_t> tiles{};
    std::vector<float> low{};
  };
  Made activated(const Case& c, const Data& data) {
    const Layer& l = c.layer;
    const std::size_t rows = data.plain.slot_of_row.size();
    const Memory raw = upload(data.raw), bias = upload(data.bias), factors = upload(data.factors);
    const Memory scales = upload(data.scales), x = upload(data.x);
    const Memory tiles = upload(data.plain.tiles), slot_of_row = upload(data.plain.slot_of_row);
    const Memory expert_of_row = upload(data.plain.expert_of_row);
    const Memory tile_of_row = upload(data.plain.tile_of_row);
    const Memory tile_count =
        upload(std::vector<std::uint32_t>{static_cast<std::uint32_t>(data.plain.tiles.size())});
    const Memory gate_a = upload(data.gate.a), gate_b = upload(data.gate.b);
    const Memory up_a = upload(data.up.a), up_b = upload(data.up.b);
    const Memory down_a = upload(data.down.a), down_b = upload(data.down.b);
    std::vector<DeviceLoraExpert> pairs;
    for (std::size_t i = 0; i < std::size_t{kAdapters} * l.experts; ++i)
      pairs.push_back({data.gate.of(i, gate_a, gate_b), data.up.of(i, up_a, up_b),
                       data.down.of(i, down_a, down_b)});
    const Memory pairs_on_device = upload(pairs), adapters = upload(data.adapters);
    const Memory low = room<float>(rows * kRank);
    const Memory to = room<std::uint16_t>(rows * l.w2.units * kUnit);
    ActivateParams params;
    params.call.x = {x.data(), Type::f32, c.tokens, l.hidden};
    params.call.tokens = c.tokens;
    params.call.top_k = c.top_k;
    params.call.x_is_quantised = c.is_quantised ? 1 : 0;
    params.call.x_factor = 0.5f;
    params.layer = l;
    params.layer.w13.factor = factors.as<float>();
    params.layer.w13.bias = c.has_bias ? bias.as<float>() : nullptr;
    params.layer.hidden_scales = scales.as<float>();
    params.layer.hidden_scales_each = 1;
    params.sorted.tiles = tiles.as<Tile>();
    params.sorted.tile_count = tile_count.as<std::uint32_t>();
    params.sorted.slot_of_row = slot_of_row.as<std::int32_t>();
    params.sorted.expert_of_row = expert_of_row.as<std::int32_t>();
    params.sorted.tile_of_row = tile_of_row.as<std::int32_t>();
    params.raw = raw.as<float>();
    params.tiles = to.as<std::uint8_t>();
    if (c.has_lora)
      params.lora = {pairs_on_device.as<DeviceLoraExpert>(), adapters.as<std::int32_t>(), l.experts,
                     kRank, low.as<float>()};
    run("fp4moe_sm90_activate", params,
        {9, kActivateThreads, activate_shared(params.layer, params.lora)});
    return {download<std::uint16_t>(to, rows * l.w2.units * kUnit),
            download<float>(low, rows * kRank)};
  }

  // `step`: how far a value may be off, as a share of it; 0: not at all.
  void expect_activated(const Case& c, double step) {
    const Layer& l = c.layer;
    SCOPED_TRACE(fmt::format("activation {}, kind {}, intermediate {}, first {}, middle {}",
                             static_cast<int>(l.act), static_cast<int>(l.quantise), l.intermediate,
                             static_cast<int>(l.first), static_cast<int>(l.middle)));
    const Data data = make(c);
    const Made made = activated(c, data);
    std::size_t values = 0, off = 0;
    for (std::uint32_t row = 0; row < data.plain.slot_of_row.size(); ++row) {
      if (data.plain.slot_of_row[row] < 0) continue;
      std::vector<double> low;
      const std::vector<double> h = expected_row(c, data, row, low);
      for (std::size_t r = 0; r < low.size(); ++r)
        ASSERT_NEAR(made.low[row * kRank + r], low[r], step + 1e-4) << "row " << row;
      std::vector<float> wanted(h.begin(), h.end());
      const auto expert = static_cast<std::size_t>(data.plain.expert_of_row[row]);
      if (l.quantise != Quantise::none) {
        const moe::RowQuantiser how{static_cast<moe::ActivationKey>(l.quantise),
                                    data.scales[expert]};
        moe::quantise_dequantise(how, wanted);
        if (l.activations_in_bf16 != 0)
          for (float& value : wanted) value *= moe::shared_factor(how);
      }
      for (std::uint32_t i = 0; i < l.w2.units * kUnit; ++i) {
        const float found =
            formats::Bf16::decode(in_tile(made.tiles, tile_byte(data.plain, row, i, l.w2.units)));
        const float value = i < l.intermediate ? as_stored(Type::bf16, wanted[i]) : 0.0f;
        ++values;
        if (found == value) continue;
        ++off;
        ASSERT_NEAR(found, value, step * (std::abs(static_cast<double>(value)) + 1))
            << "row " << row << ", column " << i;
      }
    }
    EXPECT_GT(values, 0u);
    // Rounding elsewhere moves few values across a border.
    EXPECT_LE(off, step == 0 ? 0 : values / 50);
  }
};

Layer shape(std::uint32_t experts, std::uint32_t hidden, std::uint32_t intermediate,
            bool is_gated) {
  Layer made;
  made.experts = experts;
  made.hidden = hidden;
  made.intermediate = intermediate;
  made.is_gated = is_gated ? 1 : 0;
  made.w13.groups = ((is_gated ? 2 : 1) * intermediate + kUnit - 1) / kUnit;
  made.w13.units = (hidden + kUnit - 1) / kUnit;
  made.w2.groups = made.w13.units;
  made.w2.units = (intermediate + kUnit - 1) / kUnit;
  made.limit = std::numeric_limits<float>::infinity();
  return made;
}

constexpr double kBf16Step = 1.0 / 128;

TEST_F(Activate, ComputesEveryActivation) {
  for (std::uint32_t act = 0; act <= static_cast<std::uint32_t>(Act::gelu_tanh_no_mul); ++act)
    for (const std::uint32_t intermediate : {48u, 320u, 3104u}) {
      Layer layer = shape(3, 64, intermediate, act <= static_cast<std::uint32_t>(Act::situ));
      layer.act = static_cast<Act>(act);
      if (layer.act == Act::swigluoai) {
        layer.alpha = 1.702f;
        layer.beta = 1;
        layer.limit = 2.5f;
      }
      expect_activated({.layer = layer, .has_bias = act % 2 == 0}, kBf16Step);
    }
}

TEST_F(Activate, RoundsWhereTheNumericsSay) {
  for (const First first : {First::none, First::sum, First::steps})
    for (const Middle middle : {Middle::none, Middle::result, Middle::gate_and_result}) {
      Layer layer = shape(3, 64, 320, true);
      layer.first = first;
      layer.middle = middle;
      expect_activated({.layer = layer, .has_bias = true}, kBf16Step);
    }
}

TEST_F(Activate, QuantisesToTheBitsOfTheHost) {
  for (std::uint32_t kind = 0; kind <= static_cast<std::uint32_t>(Quantise::fp8_token); ++kind)
    for (const std::uint32_t intermediate : {96u, 320u, 3104u})
      for (const bool in_bf16 : {false, true}) {
        Layer layer = shape(3, 64, intermediate, false);
        layer.act = Act::relu2_no_mul;
        layer.quantise = static_cast<Quantise>(kind);
        layer.activations_in_bf16 = in_bf16 ? 1 : 0;
        expect_activated({.layer = layer, .rounds_inputs = true, .is_quantised = true}, 0);
      }
}

TEST_F(Activate, AddsLowRanksBehindTheRounding) {
  for (const bool is_gated : {true, false})
    for (const First first : {First::none, First::sum}) {
      Layer layer = shape(3, 80, 320, is_gated);
      layer.act = is_gated ? Act::silu : Act::silu_no_mul;
      layer.first = first;
      expect_activated({.layer = layer, .has_bias = true, .has_lora = true}, kBf16Step);
      expect_activated({.layer = layer, .has_lora = true, .is_quantised = true}, kBf16Step);
    }
}

TEST_F(Activate, HasNothingToDoWithoutTokens) {
  const Memory tile_count = upload(std::vector<std::uint32_t>{0});
  ActivateParams params;
  params.layer = shape(3, 64, 64, true);
  params.sorted.tile_count = tile_count.as<std::uint32_t>();
  run("fp4moe_sm90_activate", params, {4, kActivateThreads});
}

}  // namespace kernels_activate_test
}  // namespace fp4moe::kernels::cuda::sm90
