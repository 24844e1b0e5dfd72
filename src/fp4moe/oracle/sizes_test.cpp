#include "fp4moe/oracle/sizes.hpp"

#include <limits>

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace sizes_test {

constexpr Rounding kRows[] = {
    {.kinds = {PlatformKind::xpu}, .intermediate = 128, .hidden = 128},
    {.kinds = {PlatformKind::rocm}, .gfx = "gfx950", .intermediate = 256, .hidden = 256},
    {.kinds = {PlatformKind::rocm},
     .activations = {Activation::silu},
     .intermediate = 32,
     .hidden = 64},
    {.kinds = {PlatformKind::cuda}, .intermediate = 64},
};
constexpr Backend kBackend{.name = "FAKE", .family = "fake", .rounding = kRows};

platform::Device device(PlatformKind kind, std::string_view gfx = {}) {
  return {.kind = kind, .gfx = std::string(gfx)};
}

Parallel spread(std::string_view name) {
  return {.dp_size = 2, .ep_size = 2, .use_ep = true, .all2all_backend = std::string(name)};
}

std::uint64_t hidden_for(std::string_view name, std::uint64_t hidden,
                         ScalarType type = ScalarType::bfloat16,
                         PolicyDate policy_date = PolicyDate::april_24) {
  const auto rounded = exchange_hidden(spread(name), policy_date, type, hidden);
  return rounded ? *rounded : 0;
}

TEST(Sizes, TheFirstMatchingRowRounds) {
  const Sizes odd{2880, 720};
  const auto round = [&](const platform::Device& on, std::optional<Activation> activation = {}) {
    return *round_sizes(kBackend, on, activation, odd);
  };

  EXPECT_EQ(round(device(PlatformKind::xpu)), (Sizes{2944, 768}));
  EXPECT_EQ(round(device(PlatformKind::rocm, "gfx950")), (Sizes{3072, 768}));
  EXPECT_EQ(round(device(PlatformKind::rocm, "gfx942"), Activation::silu), (Sizes{2880, 736}));
  EXPECT_EQ(round(device(PlatformKind::cuda)), (Sizes{2880, 768}));
}

TEST(Sizes, WithoutAMatchingRowSizesStay) {
  const Sizes odd{2880, 721};

  EXPECT_EQ(*round_sizes(kBackend, device(PlatformKind::rocm, "gfx942"), {}, odd), odd);
  EXPECT_EQ(*round_sizes(kBackend, device(PlatformKind::rocm, "gfx9501"), Activation::gelu, odd),
            odd);
  EXPECT_EQ(*round_sizes(Backend{}, device(PlatformKind::cuda), {}, odd), odd);
}

TEST(Sizes, ASizeThatDoesNotFitIsAnError) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

  const auto wide = round_sizes(kBackend, device(PlatformKind::cuda), {}, {1, kMax});
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.why().id, "sizes.overflow");
  EXPECT_FALSE(round_sizes(kBackend, device(PlatformKind::xpu), {}, {kMax, 1}));
  EXPECT_FALSE(exchange_hidden(spread("deepep_high_throughput"), PolicyDate::april_24,
                               ScalarType::bfloat16, kMax));
}

TEST(Sizes, HighThroughputExchangesMoveUnitsOf512Bytes) {
  EXPECT_EQ(hidden_for("deepep_high_throughput", 2880), 3072u);
  EXPECT_EQ(hidden_for("deepep_high_throughput", 2880, ScalarType::float32), 2944u);
  EXPECT_EQ(hidden_for("deepep_high_throughput", 3072), 3072u);
  EXPECT_EQ(hidden_for("deepep_v2", 2880, ScalarType::bfloat16, PolicyDate::august_22), 3072u);
  EXPECT_EQ(hidden_for("deepep_v2", 2880), 2880u);
}

TEST(Sizes, LowLatencyExchangesHaveAFewCompiledSizes) {
  EXPECT_EQ(hidden_for("deepep_low_latency", 1), 2048u);
  EXPECT_EQ(hidden_for("deepep_low_latency", 2880), 3072u);
  EXPECT_EQ(hidden_for("nixl_ep", 4097), 5120u);
  EXPECT_EQ(hidden_for("nixl_ep", 4097, ScalarType::bfloat16, PolicyDate::january_27), 4097u);
  EXPECT_EQ(hidden_for("deepep_low_latency", 8192), 8192u);
  EXPECT_EQ(hidden_for("allgather_reducescatter", 9000), 9000u);

  const auto refused = exchange_hidden(spread("deepep_low_latency"), PolicyDate::april_24,
                                       ScalarType::bfloat16, 9000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "sizes.exchange");
  EXPECT_EQ(refused.why().code, ErrorCode::no_backend);
  EXPECT_EQ(refused.why().message,
            "Hidden Size 9000 is greater than the maximum supported hidden size 8192");
}

TEST(Sizes, ConversionPadsByTheRowForTheHiddenSizeOrRefuses) {
  constexpr ConversionPadding kTiles[] = {
      {.hidden_is = 128, .hidden = 256, .gated = 16, .not_gated = 128, .gated_needs = 64},
      {.hidden_is = 64, .gated = 128, .not_gated = 32},
  };
  const Backend padding{.name = "PAD", .family = "fake", .conversion = {.padding = kTiles}};
  const auto convert = [&](bool gated, Sizes sizes) {
    return converted_sizes(padding, gated, sizes);
  };

  EXPECT_EQ(*convert(true, {128, 60}), (Sizes{256, 64}));
  EXPECT_EQ(*convert(false, {128, 60}), (Sizes{256, 128}));
  EXPECT_EQ(*convert(true, {192, 60}), (Sizes{192, 128}));
  EXPECT_EQ(*convert(false, {192, 60}), (Sizes{192, 64}));
  EXPECT_EQ(convert(true, {128, 80}).why().id, "sizes.conversion");
  EXPECT_EQ(convert(true, {128, 80}).why().code, ErrorCode::no_backend);
  EXPECT_EQ(convert(true, {100, 64}).why().id, "sizes.conversion");
  EXPECT_EQ(convert(false, {128, ~std::uint64_t{0}}).why().id, "sizes.overflow");
  EXPECT_EQ(*converted_sizes(kBackend, true, {100, 7}), (Sizes{100, 7}));
}

TEST(Sizes, TheExchangeRoundsBeforeTheBackend) {
  const auto sizes = [&](PlatformKind kind) {
    return *layer_sizes(kBackend, device(kind), {}, spread("deepep_low_latency"),
                        PolicyDate::april_24, ScalarType::bfloat16, {2049, 100});
  };

  EXPECT_EQ(sizes(PlatformKind::xpu), (Sizes{2560, 128}));
  EXPECT_EQ(sizes(PlatformKind::cuda), (Sizes{2560, 128}));
  EXPECT_FALSE(layer_sizes(kBackend, device(PlatformKind::cuda), {}, spread("nixl_ep"),
                           PolicyDate::april_24, ScalarType::bfloat16, {8193, 100}));
}

}  // namespace sizes_test
}  // namespace fp4moe::oracle
