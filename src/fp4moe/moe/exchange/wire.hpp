// The fields that travel with a token, and their layout in a message: field after field, each for all tokens.
//
//   [rows: activations][rows: ids][rows: weights][rows: adapter][rows: logits]
//
// Activations travel as they are, or as codes followed by their block scales; a scale that a whole
// tensor shares stays at home, where every rank has it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"

namespace fp4moe::moe::exchange {

// Bytes of the activations and the logits of a token, numbers of 4 bytes of the rest.
struct TokenShape {
  std::uint64_t row = 0;
  std::uint64_t ids = 0, weights = 0, adapters = 0;
  std::uint64_t logits = 0;

  std::uint64_t bytes() const { return row + 4 * (ids + weights + adapters) + logits; }
};

template <class Byte>
struct Fields {
  Byte *rows = nullptr, *ids = nullptr, *weights = nullptr, *adapters = nullptr, *logits = nullptr;

  Fields(const TokenShape& shape, Byte* begin, std::uint64_t tokens)
      : rows(begin),
        ids(rows + tokens * shape.row),
        weights(ids + tokens * 4 * shape.ids),
        adapters(weights + tokens * 4 * shape.weights),
        logits(adapters + tokens * 4 * shape.adapters) {}
};

// Activations of one type and width on their way.
class RowCodec {
 public:
  RowCodec() = default;
  RowCodec(const ConstRows& like, const RowQuantizer& how);

  bool is_quantized() const { return how_.key != ActivationKey::none; }
  float factor() const { return shared_factor(how_); }
  std::uint64_t packed_bytes() const;
  DType arrives_as() const { return is_quantized() ? DType::f32 : like_.dtype; }
  std::uint64_t arrived_bytes() const { return like_.columns * element_bytes(arrives_as()); }
  MutableRows arrived(tensor::Buffer& memory, std::uint64_t rows) const;

  // With a weight: times the weight in the type of x, each rounded to it; then quantized.
  void pack(const ConstRows& x, std::uint64_t row, const float* weight, std::byte* to);
  void unpack(const std::byte* from, const MutableRows& to, std::uint64_t row);

 private:
  void weigh(const ConstRows& x, std::uint64_t row, float weight, std::byte* to);

  ConstRows like_{};
  RowQuantizer how_{};
  std::vector<float> values_{};
  std::vector<double> wide_{};
  std::vector<std::byte> weighed_{};
};

// Checks the input of prepare. Errors: those of check_rows, exchange.ids, exchange.logits,
// exchange.adapters, exchange.weight_on_input, exchange.deferred, exchange.scale.
Result<Done> check_tokens(const Tokens& tokens, const PrepareOptions& options,
                          const ExchangeTraits& traits);
inline bool is_monolithic(const Tokens& tokens) { return tokens.logits.columns > 0; }

// The values that all ranks must share, for agree(): those of the call, and `group`, which never
// changes. Ranks without tokens have a type and a width, too.
std::string describe(const Tokens& tokens, const PrepareOptions& options,
                     const ExchangeTraits& traits, std::string_view group);

// Checks that the experts' output has the rows and columns that finalize needs. Errors: exchange.form,
// exchange.output and those of check_rows.
struct OutputShape {
  std::uint64_t tokens = 0;                         // of prepare: rows of out
  std::uint64_t rows = 0, assignments_per_row = 0;  // that the experts saw
};
Result<Done> check_output(const ExpertsOutput& output, const MutableRows& out,
                          const OutputShape& shape);

// Words between ranks at the beginning of a call: each rank's numbers, in rank order, once all
// descriptions are known to be equal (comm.disagree).
Result<std::vector<std::uint64_t>> meet(Communicator& ranks, const std::string& description,
                                        std::span<const std::uint64_t> mine);

}  // namespace fp4moe::moe::exchange
