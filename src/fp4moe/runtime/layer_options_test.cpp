#include "fp4moe/runtime/layer_options.hpp"

#include <gtest/gtest.h>

namespace fp4moe::runtime {
namespace layer_options_test {

TEST(LayerOptions, AreReadFromWords) {
  LayerOptions options;
  ASSERT_TRUE(read_words({.engine = "reference",
                          .weights = "mapped",
                          .numerics = "marlin",
                          .activations = "fp8_block",
                          .exchange = "all_to_all"},
                         options));
  EXPECT_EQ(options.engine, EngineKind::reference);
  EXPECT_EQ(options.weights, moe::WeightsHome::mapped);
  EXPECT_EQ(options.numerics, moe::NumericsKind::marlin);
  EXPECT_EQ(options.exchange, moe::exchange::ExchangeKind::all_to_all);
  EXPECT_EQ(options.quantizes, oracle::ActivationKey::fp8_block128);
  ASSERT_TRUE(read_words({}, options));  // empty words change nothing
  EXPECT_EQ(options.engine, EngineKind::reference);
  ASSERT_TRUE(read_words({.engine = "auto", .weights = "auto"}, options));
  EXPECT_EQ(options.engine, EngineKind::automatic);
  EXPECT_EQ(options.weights, moe::WeightsHome::packed);
}

TEST(LayerOptions, RefuseUnknownWordsByListingWhatThereIs) {
  const auto refused = [](const OptionWords& words, std::string_view id) {
    LayerOptions options;
    const Result<Done> read = read_words(words, options);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.why().id, id);
    EXPECT_FALSE(read.why().expected.empty());
  };
  refused({.engine = "steam"}, "engine.unknown");
  refused({.weights = "painted"}, "layer.weights");
  refused({.numerics = "vague"}, "numerics.unknown");
  refused({.activations = "fp9"}, "layer.activations");
  refused({.numerics = "exact", .activations = "fp8_token"}, "layer.activations");
  refused({.exchange = "pigeon"}, "exchange.name");
}

// Every word of a table is its own kind's, and says so.
TEST(LayerOptions, WordsAndKindsAreOneToOne) {
  for (const EngineRow& row : engines()) {
    EXPECT_EQ(*engine_from_name(row.name), row.kind);
    EXPECT_EQ(name(row.kind), row.name);
  }
  EXPECT_EQ(name(EngineKind::automatic), "auto");
  for (const moe::exchange::ExchangeRow& row : moe::exchange::all_exchanges()) {
    EXPECT_EQ(*moe::exchange::exchange_from_name(row.name), row.kind);
    EXPECT_EQ(moe::exchange::row(row.kind).name, row.name);
  }
  for (const ActivationsWord& row : kActivationsWords)
    EXPECT_EQ(*activations_from_word(row.word), row.key);
  for (const moe::Numerics& numerics : moe::kNumerics)
    EXPECT_EQ(&moe::row(*moe::numerics_from_name(numerics.id)), &numerics);
}

}  // namespace layer_options_test
}  // namespace fp4moe::runtime
