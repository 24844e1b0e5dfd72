// All tokens to all ranks, in rank order; every rank computes what its experts add to every token;
// each rank gets the sum of that for its own tokens.
//
//   rank 0   a b ──┐                 ┌─ a b c d e   rank 0's experts ─┐ sums    ┌─ a b
//   rank 1   c   ──┼─ all-gather ────┼─ a b c d e   rank 1's experts ─┼─────────┼─ c
//   rank 2   d e ──┘                 └─ a b c d e   rank 2's experts ─┘         └─ d e
#include <algorithm>
#include <cstring>
#include <numeric>

#include "fp4moe/moe/exchange/makers.hpp"
#include "fp4moe/moe/exchange/ranked.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "fp4moe/moe/exchange/wire.hpp"

namespace fp4moe::moe::exchange {
namespace {

class Gather final : public RankedExchange {
 public:
  Gather(const ExchangeOptions& options, Owners owners)
      : RankedExchange(*options.ranks),
        group_(describe_group(options)),
        owners_(std::move(owners)),
        threads_(options.pool) {}

  ExchangeTraits traits() const override {
    return {.name = "gather", .dispatchers = ranks_.size()};
  }

 private:
  Result<Prepared> dispatch(const Tokens& tokens, const PrepareOptions& options) override {
    if (const auto fine = check_tokens(tokens, options, traits()); !fine) return fine.why();
    const std::uint64_t mine[] = {tokens.x.rows, tokens.adapters.empty() ? 0u : 1u};
    const auto numbers = meet(ranks_, describe(tokens, options, traits(), group_), mine);
    if (!numbers) return numbers.why();
    tokens_.clear();
    bool any_adapters = false;
    for (std::size_t i = 0; i < numbers->size(); i += std::size(mine)) {
      tokens_.push_back((*numbers)[i]);
      any_adapters = any_adapters || (*numbers)[i + 1] != 0;
    }

    top_k_ = is_monolithic(tokens) ? 0 : tokens.top_k;
    RowCodec codec(tokens.x, options.quantizer);
    const TokenShape shape{.row = codec.packed_bytes(),
                           .ids = top_k_,
                           .weights = options.weight_on_input ? 0 : top_k_,
                           .adapters = any_adapters ? 1u : 0u,
                           .logits = tokens.logits.columns * element_bytes(tokens.logits.dtype)};
    parcel_.step = "gather tokens";
    parcel_.send_bytes = {tokens.x.rows * shape.bytes()};
    parcel_.receive_bytes.clear();
    for (const std::uint64_t count : tokens_)
      parcel_.receive_bytes.push_back(count * shape.bytes());
    if (const auto done = reserve(parcel_.send, parcel_.send_bytes[0]); !done) return done.why();
    pack(tokens, options, shape, codec);
    if (const auto done = ranks_.all_gather(parcel_); !done) return done.why();
    return unpack(tokens, shape, codec);
  }

  void pack(const Tokens& tokens, const PrepareOptions& options, const TokenShape& shape,
            RowCodec& codec) {
    const std::uint64_t rows = tokens.x.rows;
    const Fields<std::byte> to(shape, parcel_.send.data(), rows);
    for (std::uint64_t row = 0; row < rows; ++row) {
      codec.pack(tokens.x, row, options.weight_on_input ? &tokens.weights[row] : nullptr,
                 to.rows + row * shape.row);
      if (shape.logits > 0)
        std::memcpy(to.logits + row * shape.logits, tokens.logits.row(row), shape.logits);
    }
    if (shape.ids > 0 && rows > 0) std::memcpy(to.ids, tokens.ids.data(), rows * 4 * shape.ids);
    if (shape.weights > 0 && rows > 0)
      std::memcpy(to.weights, tokens.weights.data(), rows * 4 * shape.weights);
    const std::int32_t none = -1;
    for (std::uint64_t row = 0; shape.adapters > 0 && row < rows; ++row)
      std::memcpy(to.adapters + 4 * row, tokens.adapters.empty() ? &none : &tokens.adapters[row],
                  4);
  }

  Result<Prepared> unpack(const Tokens& tokens, const TokenShape& shape, RowCodec& codec) {
    rows_ = std::accumulate(tokens_.begin(), tokens_.end(), std::uint64_t{0});
    if (const auto done = reserve(x_, rows_ * codec.arrived_bytes()); !done) return done.why();
    if (const auto done = reserve(logits_, rows_ * shape.logits); !done) return done.why();
    const MutableRows x = codec.arrived(x_, rows_);
    ids_.resize(rows_ * shape.ids);
    weights_.assign(rows_ * top_k_, 1.0f);
    adapters_.resize(rows_ * shape.adapters);
    std::uint64_t begin = 0;
    for (std::uint64_t rank = 0; rank < ranks_.size(); begin += tokens_[rank++]) {
      const std::uint64_t count = tokens_[rank];
      if (count == 0) continue;
      const Fields<const std::byte> from(shape, parcel_.received_from(rank).data(), count);
      for (std::uint64_t row = 0; row < count; ++row)
        codec.unpack(from.rows + row * shape.row, x, begin + row);
      if (shape.ids > 0) std::memcpy(&ids_[begin * shape.ids], from.ids, count * 4 * shape.ids);
      if (shape.weights > 0)
        std::memcpy(&weights_[begin * shape.weights], from.weights, count * 4 * shape.weights);
      if (shape.adapters > 0) std::memcpy(&adapters_[begin], from.adapters, count * 4);
      if (shape.logits > 0)
        std::memcpy(logits_.data() + begin * shape.logits, from.logits, count * shape.logits);
    }
    Prepared prepared{
        {.x = x, .top_k = top_k_, .ids = ids_, .weights = weights_, .adapters = adapters_}};
    prepared.is_quantized = codec.is_quantized();
    prepared.factor = codec.factor();
    if (shape.logits > 0)
      prepared.logits = {logits_.data(), tokens.logits.dtype, rows_, tokens.logits.columns,
                         shape.logits};
    return prepared;
  }

  Result<Done> combine(const ExpertsOutput& output, const MutableRows& out) override {
    if (output.form == OutputForm::batches ||
        (output.form == OutputForm::assignments && top_k_ == 0))
      return wrong_form(traits().name, output.form,
                        top_k_ == 0 ? "summed rows" : "summed rows or rows of assignments");
    if (const auto fine = check_output(output, out, {tokens_[ranks_.rank()], rows_, top_k_}); !fine)
      return fine.why();
    ConstRows partial = output.rows;
    if (output.form == OutputForm::assignments && rows_ > 0) {
      const std::uint64_t row_bytes = out.columns * element_bytes(out.dtype);
      if (const auto done = reserve(sums_, rows_ * row_bytes); !done) return done.why();
      const MutableRows sums{sums_.data(), out.dtype, rows_, out.columns, row_bytes};
      const auto summed =
          sum_assignments({.rows = output.rows,
                           .top_k = top_k_,
                           .ids = ids_,
                           .weights = output.is_weighted ? std::span<const float>{} : weights_,
                           .owners = &owners_,
                           .pool = threads_.get()},
                          sums);
      if (!summed) return summed.why();
      partial = sums;
    }
    return reduce_scatter(ranks_, parcel_, partial, tokens_, out);
  }

  std::string group_;
  Owners owners_;
  Threads threads_;
  std::vector<std::uint64_t> tokens_{};  // of each rank
  std::uint64_t rows_ = 0;               // their sum
  std::uint64_t top_k_ = 0;
  Parcel parcel_{};
  tensor::Buffer x_{}, logits_{}, sums_{};
  std::vector<std::int32_t> ids_{}, adapters_{};
  std::vector<float> weights_{};
};

}  // namespace

std::unique_ptr<Exchange> make_gather(const ExchangeOptions& options, Owners owners) {
  return std::make_unique<Gather>(options, std::move(owners));
}

}  // namespace fp4moe::moe::exchange
