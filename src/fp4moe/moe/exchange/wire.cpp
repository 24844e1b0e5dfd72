#include "fp4moe/moe/exchange/wire.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::moe::exchange {
namespace {

// FNV-1a: tells different descriptions apart, nothing more.
std::uint64_t hash_text(std::string_view words) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : words) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

Result<Done> check_choices(const Tokens& tokens, const PrepareOptions& options) {
  const std::uint64_t rows = tokens.x.rows;
  const auto assignments = checked_multiply(rows, tokens.top_k);
  if (!assignments || tokens.ids.size() != *assignments || tokens.weights.size() != *assignments)
    return usage("exchange.ids", "ids and weights do not fit the tokens")
        .expects(fmt::format("{} x {} of each", rows, tokens.top_k),
                 fmt::format("{} ids and {} weights", tokens.ids.size(), tokens.weights.size()));
  if (options.weight_on_input && tokens.top_k != 1)
    return usage("exchange.weight_on_input", "weights on the input need top_k 1")
        .expects("top_k 1", fmt::format("top_k {}", tokens.top_k));
  return Done{};
}

Result<Done> check_logits(const Tokens& tokens, const PrepareOptions& options,
                          const ExchangeTraits& traits) {
  if (!traits.routes)
    return usage("exchange.logits", fmt::format("{} carries no logits", traits.name))
        .expects("ids and weights", "logits of a kernel that routes by itself")
        .try_this("Use a modular kernel, or the exchange 'gather'");
  if (options.weight_on_input)
    return usage("exchange.weight_on_input", "a kernel that routes by itself weighs by itself")
        .expects("ids and weights", "logits");
  if (tokens.logits.rows != tokens.x.rows)
    return usage("exchange.logits", "wrong number of rows of logits")
        .expects(fmt::format("{} rows", tokens.x.rows), fmt::format("{}", tokens.logits.rows));
  return check_rows(tokens.logits, "logits", tokens.logits.columns);
}

}  // namespace

RowCodec::RowCodec(const ConstRows& like, const RowQuantizer& how)
    : like_{.dtype = like.dtype, .columns = like.columns}, how_(how) {}

std::uint64_t RowCodec::packed_bytes() const {
  return is_quantized() ? encoded_bytes(how_.key, like_.columns)
                        : like_.columns * element_bytes(like_.dtype);
}

MutableRows RowCodec::arrived(tensor::Buffer& memory, std::uint64_t rows) const {
  return {memory.data(), arrives_as(), rows, like_.columns, arrived_bytes()};
}

void RowCodec::weigh(const ConstRows& x, std::uint64_t row, float weight, std::byte* to) {
  const MutableRows target{to, x.dtype, 1, x.columns, x.columns * element_bytes(x.dtype)};
  float rounded = weight;
  alignas(8) std::array<std::byte, 8> one{};
  const MutableRows single{one.data(), x.dtype, 1, 1, one.size()};
  write_row(std::span<const float>(&weight, 1), single, 0);
  read_row(single, 0, std::span<float>(&rounded, 1));
  if (x.dtype == DType::f64) {
    wide_.resize(x.columns);
    read_row(x, row, wide_);
    for (double& value : wide_) value *= rounded;
    return write_row(std::span<const double>(wide_), target, 0);
  }
  values_.resize(x.columns);
  read_row(x, row, values_);
  for (float& value : values_) value *= rounded;
  write_row(std::span<const float>(values_), target, 0);
}

void RowCodec::pack(const ConstRows& x, std::uint64_t row, const float* weight, std::byte* to) {
  const std::uint64_t bytes = x.columns * element_bytes(x.dtype);
  if (!is_quantized()) {
    if (weight != nullptr) return weigh(x, row, *weight, to);
    std::memcpy(to, x.row(row), bytes);
    return;
  }
  ConstRows source = x.from(row, 1);
  if (weight != nullptr) {
    weighed_.resize(bytes);
    weigh(x, row, *weight, weighed_.data());
    source.data = weighed_.data();
  }
  values_.resize(x.columns);
  read_row(source, 0, values_);
  encode_row(how_, values_, {to, packed_bytes()});
}

void RowCodec::unpack(const std::byte* from, const MutableRows& to, std::uint64_t row) {
  if (!is_quantized()) {
    std::memcpy(to.row(row), from, packed_bytes());
    return;
  }
  values_.resize(like_.columns);
  decode_row(how_, {from, packed_bytes()}, values_);
  std::memcpy(to.row(row), values_.data(), arrived_bytes());
}

Result<Done> check_tokens(const Tokens& tokens, const PrepareOptions& options,
                          const ExchangeTraits& traits) {
  if (auto fine = check_rows(tokens.x, "activations", tokens.x.columns); !fine) return fine;
  if (auto fine = is_monolithic(tokens) ? check_logits(tokens, options, traits)
                                        : check_choices(tokens, options);
      !fine)
    return fine;
  if (!tokens.adapters.empty() && tokens.adapters.size() != tokens.x.rows)
    return usage("exchange.adapters", "wrong number of adapters")
        .expects(fmt::format("none or {}", tokens.x.rows),
                 fmt::format("{}", tokens.adapters.size()));
  if (options.deferred && !traits.takes_unquantized)
    return usage("exchange.deferred",
                 fmt::format("{} does not support defer_input_quant", traits.name))
        .expects("experts that take quantized batches", "experts that quantize by themselves");
  const float scale = options.quantizer.global_scale;
  if (options.quantizer.key != ActivationKey::none && !(std::isfinite(scale) && scale > 0.0f))
    return usage("exchange.scale", "the scale of all activations is not a scale")
        .expects("a positive, finite number", fmt::format("{}", scale));
  return Done{};
}

std::string describe(const Tokens& tokens, const PrepareOptions& options,
                     const ExchangeTraits& traits, std::string_view group) {
  const RowQuantizer& how = options.quantizer;
  std::string words = fmt::format(
      "exchange {}; {}; hidden size {}; activations {}; quantizer {}; scale {}; weight on input {}",
      traits.name, group, tokens.x.columns, tensor::name(tokens.x.dtype), oracle::name(how.key),
      how.key == ActivationKey::none ? 1.0f : how.global_scale, options.weight_on_input);
  if (is_monolithic(tokens))
    words += fmt::format("; logits of {} experts in {}", tokens.logits.columns,
                         tensor::name(tokens.logits.dtype));
  else
    words += fmt::format("; top_k {}", tokens.top_k);
  if (traits.max_tokens_per_rank)
    words += fmt::format("; at most {} tokens per rank", *traits.max_tokens_per_rank);
  return words;
}

Result<Done> check_output(const ExpertsOutput& output, const MutableRows& out,
                          const OutputShape& shape) {
  if (out.rows != shape.tokens)
    return usage("exchange.output", "the result has not one row per token")
        .expects(fmt::format("{} rows", shape.tokens), fmt::format("{}", out.rows));
  if (auto fine = check_rows(out, "results", out.columns); !fine) return fine;
  if (shape.rows == 0) return Done{};  // the experts were not asked
  const std::uint64_t rows =
      output.form == OutputForm::assignments ? shape.rows * shape.assignments_per_row : shape.rows;
  if (output.rows.rows != rows || output.rows.columns < out.columns)
    return usage("exchange.output", "the experts' output has the wrong shape")
        .expects(fmt::format("{} x {} or wider", rows, out.columns),
                 fmt::format("{} x {}", output.rows.rows, output.rows.columns));
  return check_rows(output.rows, "the experts' output", output.rows.columns);
}

Result<std::vector<std::uint64_t>> meet(Communicator& ranks, const std::string& description,
                                        std::span<const std::uint64_t> mine) {
  std::vector<std::uint64_t> words{hash_text(description)};
  words.insert(words.end(), mine.begin(), mine.end());
  const auto all = all_gather_values<std::uint64_t>(ranks, "meet", words);
  if (!all) return all.why();
  std::vector<std::uint64_t> numbers;
  bool alike = true;
  for (std::uint64_t rank = 0; rank < ranks.size(); ++rank) {
    const auto theirs = std::span(*all).subspan(rank * words.size(), words.size());
    alike = alike && theirs[0] == words[0];
    numbers.insert(numbers.end(), theirs.begin() + 1, theirs.end());
  }
  // Every rank has seen the same words, so all of them ask, or none.
  if (!alike)
    if (const auto same = ranks.agree(description); !same) return same.why();
  return numbers;
}

}  // namespace fp4moe::moe::exchange
