#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/moe/activation.hpp"
#include "fp4moe/moe/quantized_rows.hpp"
#include "kernels.hpp"

namespace fp4moe::kernels::cuda::sm90 {
namespace kernels_activate_test {

struct Case {
  LayerParams layer{};
  bool has_bias = false;
  bool rounds_inputs = false;  // raw sums are eighths, so that everything is exact
  bool has_lora = false;
  bool is_quantized = false;  // x is, and has a factor
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
  return static_cast<double>(as_stored(ElementType::bf16, static_cast<float>(x)));
}

class Activate : public OnDevice {
 protected:
  // Everything that is random about a case.
  struct Data {
    HostTables plain{};
    std::vector<std::int32_t> adapters{};
    std::vector<float> raw{}, bias{}, factors{}, scales{}, x{};
    LowRanks gate, up, down;
  };

  static Data make(const Case& c) {
    const LayerParams& l = c.layer;
    const std::uint32_t pairs = kAdapters * l.experts, width = l.w13.m_blocks * kBlockM;
    SplitMix64 random(8);
    std::vector<std::int32_t> experts(std::size_t{c.tokens} * c.top_k);
    for (std::int32_t& expert : experts)
      expert = static_cast<std::int32_t>(random.next() % (l.experts + 1)) - 1;
    Data result{.plain = host_tables(experts, l.experts),
                .gate = {l.hidden, l.intermediate, pairs, 20},
                .up = {l.hidden, l.intermediate, pairs, 30},
                .down = {l.intermediate, l.hidden, pairs, 40}};
    for (std::uint32_t t = 0; t < c.tokens; ++t)
      result.adapters.push_back(static_cast<std::int32_t>(t % 3) - 1);
    result.raw = random_values(result.plain.assignment_of_row.size() * width, 1, 4);
    result.bias = random_values(std::size_t{l.experts} * width, 2);
    result.x = random_values(std::size_t{c.tokens} * l.hidden, 3);
    if (c.rounds_inputs)
      for (float& value : result.raw) value = std::round(value * 8) / 8;
    for (std::uint32_t e = 0; e < l.experts * 2; ++e)
      result.factors.push_back(c.rounds_inputs ? 0.5f : 0.25f + 0.125f * static_cast<float>(e % 5));
    for (std::uint32_t e = 0; e < l.experts; ++e)
      result.scales.push_back(0.25f * static_cast<float>(1 + e % 3));
    return result;
  }

  // A row of h before it is quantized, and A_down h.
  static std::vector<double> expected_row(const Case& c, const Data& data, std::size_t row,
                                          std::vector<double>& low) {
    const LayerParams& l = c.layer;
    const auto expert = static_cast<std::size_t>(data.plain.expert_of_row[row]);
    const auto token = static_cast<std::size_t>(data.plain.assignment_of_row[row]) / c.top_k;
    const std::size_t width = l.w13.m_blocks * kBlockM;
    const bool gated = l.is_gated != 0;
    const double input = c.is_quantized ? 0.5 : 1.0;
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
      if (l.first == FirstRounding::steps) sum = rounded(sum);
      if (c.has_bias) sum += static_cast<double>(data.bias[expert * width + at]);
      return l.first == FirstRounding::none ? sum : rounded(sum);
    };
    const auto added = [&](double value, const LowRanks& ranks, std::size_t column,
                           const std::vector<double>& inputs) {
      if (!has_low) return value;
      value += ranks.up(pair, column, inputs);
      return l.first == FirstRounding::none ? value : rounded(value);
    };
    const moe::ActivationParams params{.alpha = static_cast<double>(l.alpha),
                                       .beta = static_cast<double>(l.beta),
                                       .limit = static_cast<double>(l.limit)};
    std::vector<double> h(l.intermediate);
    for (std::size_t i = 0; i < h.size(); ++i) {
      double gate = finished(gated ? i / 8 * 16 + i % 8 : i, 0);
      double up = gated ? finished(i / 8 * 16 + 8 + i % 8, 1) : 0;
      gate = added(gate, data.gate, i, low_gate);
      (gated ? up : gate) = added(gated ? up : gate, data.up, i, low_up);
      h[i] = moe::activate_gate(l.act, params, gate);
      const bool is_apart =
          l.act == Activation::silu || l.act == Activation::swigluoai_uninterleave;
      if (l.middle == MiddleRounding::gate_and_result && is_apart) h[i] = rounded(h[i]);
      if (gated) h[i] *= moe::up_factor(l.act, params, up);
      if (l.middle != MiddleRounding::none) h[i] = rounded(h[i]);
    }
    if (has_low) low = data.down.down(pair, h);
    return h;
  }

  struct Made {
    std::vector<std::uint16_t> tiles{};
    std::vector<float> low{};
  };
  Made activated(const Case& c, const Data& data) {
    const LayerParams& l = c.layer;
    const std::size_t rows = data.plain.assignment_of_row.size();
    const Memory raw = upload(data.raw), bias = upload(data.bias), factors = upload(data.factors);
    const Memory scales = upload(data.scales), x = upload(data.x);
    const Memory tiles = upload(data.plain.tiles),
                 assignment_of_row = upload(data.plain.assignment_of_row);
    const Memory expert_of_row = upload(data.plain.expert_of_row);
    const Memory tile_of_row_group = upload(data.plain.tile_of_row_group);
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
    const Memory low = buffer<float>(rows * kRank);
    const Memory to = buffer<std::uint16_t>(rows * l.w2.k_blocks * kBlockK);
    ActivateParams params;
    params.call.x = {x.data(), ElementType::f32, c.tokens, l.hidden};
    params.call.tokens = c.tokens;
    params.call.top_k = c.top_k;
    params.call.x_is_quantized = c.is_quantized ? 1 : 0;
    params.call.x_factor = 0.5f;
    params.layer = l;
    params.layer.w13.factor = factors.as<float>();
    params.layer.w13.bias = c.has_bias ? bias.as<float>() : nullptr;
    params.layer.hidden_scales = scales.as<float>();
    params.layer.hidden_scales_each = 1;
    params.tables.tiles = tiles.as<TokenTile>();
    params.tables.tile_count = tile_count.as<std::uint32_t>();
    params.tables.assignment_of_row = assignment_of_row.as<std::int32_t>();
    params.tables.expert_of_row = expert_of_row.as<std::int32_t>();
    params.tables.tile_of_row_group = tile_of_row_group.as<std::int32_t>();
    params.raw = raw.as<float>();
    params.tiles = to.as<std::uint8_t>();
    if (c.has_lora)
      params.lora = {pairs_on_device.as<DeviceLoraExpert>(), adapters.as<std::int32_t>(), l.experts,
                     kRank, low.as<float>()};
    run("fp4moe_sm90_activate", params,
        {9, kActivateThreads, activate_shared_bytes(params.layer, params.lora)});
    return {download<std::uint16_t>(to, rows * l.w2.k_blocks * kBlockK),
            download<float>(low, rows * kRank)};
  }

  // `step`: how far a value may be off, as a share of it; 0: not at all.
  void expect_activated(const Case& c, double step) {
    const LayerParams& l = c.layer;
    SCOPED_TRACE(fmt::format("activation {}, kind {}, intermediate {}, first {}, middle {}",
                             static_cast<int>(l.act), static_cast<int>(l.quantization),
                             l.intermediate, static_cast<int>(l.first),
                             static_cast<int>(l.middle)));
    const Data data = make(c);
    const Made result = activated(c, data);
    std::size_t values = 0, off = 0;
    for (std::uint32_t row = 0; row < data.plain.assignment_of_row.size(); ++row) {
      if (data.plain.assignment_of_row[row] < 0) continue;
      std::vector<double> low;
      const std::vector<double> h = expected_row(c, data, row, low);
      for (std::size_t r = 0; r < low.size(); ++r)
        ASSERT_NEAR(result.low[row * kRank + r], low[r], step + 1e-4) << "row " << row;
      std::vector<float> wanted(h.begin(), h.end());
      const auto expert = static_cast<std::size_t>(data.plain.expert_of_row[row]);
      if (l.quantization != Quantization::none) {
        const moe::RowQuantizer how{static_cast<moe::ActivationKey>(l.quantization),
                                    data.scales[expert]};
        moe::quantize_dequantize(how, wanted);
        if (l.activations_in_bf16 != 0)
          for (float& value : wanted) value *= moe::shared_factor(how);
      }
      for (std::uint32_t i = 0; i < l.w2.k_blocks * kBlockK; ++i) {
        const float found = formats::Bf16::decode(
            in_tile(result.tiles, tile_byte(data.plain, row, i, l.w2.k_blocks)));
        const float value = i < l.intermediate ? as_stored(ElementType::bf16, wanted[i]) : 0.0f;
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

LayerParams shape(std::uint32_t experts, std::uint32_t hidden, std::uint32_t intermediate,
                  bool is_gated) {
  LayerParams result;
  result.experts = experts;
  result.hidden = hidden;
  result.intermediate = intermediate;
  result.is_gated = is_gated ? 1 : 0;
  result.w13.m_blocks = ((is_gated ? 2 : 1) * intermediate + kBlockK - 1) / kBlockK;
  result.w13.k_blocks = (hidden + kBlockK - 1) / kBlockK;
  result.w2.m_blocks = result.w13.k_blocks;
  result.w2.k_blocks = (intermediate + kBlockK - 1) / kBlockK;
  result.limit = std::numeric_limits<float>::infinity();
  return result;
}

constexpr double kBf16Step = 1.0 / 128;

TEST_F(Activate, ComputesEveryActivation) {
  for (std::uint32_t act = 0; act <= static_cast<std::uint32_t>(Activation::gelu_tanh_no_mul);
       ++act)
    for (const std::uint32_t intermediate : {48u, 320u, 3104u}) {
      LayerParams layer =
          shape(3, 64, intermediate, act <= static_cast<std::uint32_t>(Activation::situ));
      layer.act = static_cast<Activation>(act);
      if (layer.act == Activation::swigluoai) {
        layer.alpha = 1.702f;
        layer.beta = 1;
        layer.limit = 2.5f;
      }
      expect_activated({.layer = layer, .has_bias = act % 2 == 0}, kBf16Step);
    }
}

TEST_F(Activate, RoundsWhereTheNumericsSay) {
  for (const FirstRounding first : {FirstRounding::none, FirstRounding::sum, FirstRounding::steps})
    for (const MiddleRounding middle :
         {MiddleRounding::none, MiddleRounding::result, MiddleRounding::gate_and_result}) {
      LayerParams layer = shape(3, 64, 320, true);
      layer.first = first;
      layer.middle = middle;
      expect_activated({.layer = layer, .has_bias = true}, kBf16Step);
    }
}

TEST_F(Activate, QuantizesToTheBitsOfTheHost) {
  for (std::uint32_t kind = 0; kind <= static_cast<std::uint32_t>(Quantization::fp8_token); ++kind)
    for (const std::uint32_t intermediate : {96u, 320u, 3104u})
      for (const bool in_bf16 : {false, true}) {
        LayerParams layer = shape(3, 64, intermediate, false);
        layer.act = Activation::relu2_no_mul;
        layer.quantization = static_cast<Quantization>(kind);
        layer.activations_in_bf16 = in_bf16 ? 1 : 0;
        expect_activated({.layer = layer, .rounds_inputs = true, .is_quantized = true}, 0);
      }
}

TEST_F(Activate, AddsLowRanksBehindTheRounding) {
  for (const bool is_gated : {true, false})
    for (const FirstRounding first : {FirstRounding::none, FirstRounding::sum}) {
      LayerParams layer = shape(3, 80, 320, is_gated);
      layer.act = is_gated ? Activation::silu : Activation::silu_no_mul;
      layer.first = first;
      expect_activated({.layer = layer, .has_bias = true, .has_lora = true}, kBf16Step);
      expect_activated({.layer = layer, .has_lora = true, .is_quantized = true}, kBf16Step);
    }
}

TEST_F(Activate, HasNothingToDoWithoutTokens) {
  const Memory tile_count = upload(std::vector<std::uint32_t>{0});
  ActivateParams params;
  params.layer = shape(3, 64, 64, true);
  params.tables.tile_count = tile_count.as<std::uint32_t>();
  run("fp4moe_sm90_activate", params, {4, kActivateThreads});
}

}  // namespace kernels_activate_test
}  // namespace fp4moe::kernels::cuda::sm90
