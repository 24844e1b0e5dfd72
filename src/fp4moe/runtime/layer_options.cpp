#include "fp4moe/runtime/layer_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::runtime {
namespace {

Result<moe::WeightsHome> weights_from_name(std::string_view name) {
  if (name == "auto" || name == "packed") return moe::WeightsHome::packed;
  if (name == "mapped") return moe::WeightsHome::mapped;
  return usage("layer.weights", "unknown way to keep weights")
      .expects("auto, packed or mapped", "'" + printable(name) + "'");
}

// The meaning of a word, if one is given.
template <class Value, class Meaning, class FromName>
Result<Done> read_word(std::string_view word, FromName from_name, Meaning& meaning) {
  if (word.empty()) return Done{};
  const Result<Value> found = from_name(word);
  if (!found) return found.why();
  meaning = *found;
  return Done{};
}

}  // namespace

Result<oracle::ActivationKey> activations_from_word(std::string_view word) {
  std::vector<std::string_view> words;
  for (const ActivationsWord& row : kActivationsWords) {
    if (row.word == word) return row.key;
    words.push_back(row.word);
  }
  return usage("layer.activations", "unknown type of quantized activations")
      .expects(fmt::format("one of {}", fmt::join(words, ", ")), "'" + printable(word) + "'");
}

Result<Done> read_words(const OptionWords& words, LayerOptions& options) {
  using moe::exchange::ExchangeKind;
  if (auto read = read_word<EngineKind>(words.engine, engine_from_name, options.engine); !read)
    return read;
  if (auto read = read_word<moe::WeightsHome>(words.weights, weights_from_name, options.weights);
      !read)
    return read;
  if (auto read =
          read_word<moe::NumericsKind>(words.numerics, moe::numerics_from_name, options.numerics);
      !read)
    return read;
  if (auto read = read_word<oracle::ActivationKey>(words.activations, activations_from_word,
                                                   options.quantizes);
      !read)
    return read;
  if (options.numerics == moe::NumericsKind::exact &&
      options.quantizes.value_or(oracle::ActivationKey::none) != oracle::ActivationKey::none)
    return usage("layer.activations", "exact numerics do not quantize activations")
        .expects("activations none, or numerics of a backend",
                 fmt::format("{} with exact", printable(words.activations)));
  return read_word<ExchangeKind>(words.exchange, moe::exchange::exchange_from_name,
                                 options.exchange);
}

}  // namespace fp4moe::runtime
