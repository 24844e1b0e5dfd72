// A token travels once to each rank that holds one of its experts, with the ids of that rank's
// experts (-1 for the others); each rank sums what its experts add, and sends one row back; the
// token's own rank sums those, from rank 0 up.
//
//   meet        how many tokens go from where to where
//   dispatch    rows, ids, weights ──►                           who sent what is kept
//   experts     sums over this rank's experts
//   combine     ◄── one row per token and rank, summed in rank order
#include <algorithm>
#include <cstring>

#include "fp4moe/moe/exchange/makers.hpp"
#include "fp4moe/moe/exchange/ranked.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "fp4moe/moe/exchange/wire.hpp"

namespace fp4moe::moe::exchange {
namespace {

class AllToAll final : public RankedExchange {
 public:
  AllToAll(const ExchangeOptions& options, Owners owners)
      : RankedExchange(*options.ranks),
        group_(describe_group(options)),
        owners_(std::move(owners)),
        threads_(options.pool) {}

  ExchangeTraits traits() const override {
    return {.name = "all_to_all",
            .dispatchers = ranks_.size(),
            .output_is_reduced = true,
            .routes = false};
  }

 private:
  Result<Prepared> dispatch(const Tokens& tokens, const PrepareOptions& options) override {
    if (const auto fine = check_tokens(tokens, options, traits()); !fine) return fine.why();
    tokens_ = tokens.x.rows;
    top_k_ = tokens.top_k;
    find_targets(tokens);
    const auto shared =
        share_counts(tokens, describe(tokens, options, traits(), group_), sent_, counts_);
    if (!shared) return shared.why();

    RowCodec codec(tokens.x, options.quantizer);
    const TokenShape shape{.row = codec.packed_bytes(),
                           .ids = top_k_,
                           .weights = options.weight_on_input ? 0 : top_k_,
                           .adapters = counts_.has_adapters ? 1u : 0u};
    parcel_.step = "dispatch";
    if (const auto done = size_parcel(parcel_, counts_.sent, counts_.received, shape.bytes());
        !done)
      return done.why();
    pack(tokens, options, shape, codec);
    if (const auto done = ranks_.all_to_all(parcel_); !done) return done.why();
    return unpack(shape, codec);
  }

  // Lists the tokens that go to each rank, in ascending order.
  void find_targets(const Tokens& tokens) {
    sent_.assign(ranks_.size(), {});
    for (std::uint64_t token = 0; token < tokens_; ++token)
      for (const std::int32_t id : tokens.ids.subspan(token * top_k_, top_k_)) {
        const auto place = owners_.find(id);
        if (!place) continue;
        auto& list = sent_[place->rank];
        if (list.empty() || list.back() != token) list.push_back(token);
      }
  }

  void pack(const Tokens& tokens, const PrepareOptions& options, const TokenShape& shape,
            RowCodec& codec) {
    const std::int32_t none = -1;
    const float zero = 0.0f;
    // A token is quantized once, however many ranks it goes to.
    std::vector<const std::byte*> packed(tokens_, nullptr);
    std::byte* begin = parcel_.send.data();
    for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank) {
      const Fields<std::byte> to(shape, begin, sent_[rank].size());
      begin += parcel_.send_bytes[rank];
      for (std::uint64_t i = 0; i < sent_[rank].size(); ++i) {
        const std::uint64_t token = sent_[rank][i];
        std::byte* row = to.rows + i * shape.row;
        if (packed[token] != nullptr)
          std::memcpy(row, packed[token], shape.row);
        else
          codec.pack(tokens.x, token, options.weight_on_input ? &tokens.weights[token] : nullptr,
                     row);
        packed[token] = row;
        for (std::uint64_t j = 0; j < top_k_; ++j) {
          const std::uint64_t assignment = token * top_k_ + j, at = 4 * (i * top_k_ + j);
          const auto place = owners_.find(tokens.ids[assignment]);
          const bool is_theirs = place && place->rank == rank;
          std::memcpy(to.ids + at, is_theirs ? &tokens.ids[assignment] : &none, 4);
          if (shape.weights > 0)
            std::memcpy(to.weights + at, is_theirs ? &tokens.weights[assignment] : &zero, 4);
        }
        if (shape.adapters > 0)
          std::memcpy(to.adapters + 4 * i,
                      tokens.adapters.empty() ? &none : &tokens.adapters[token], 4);
      }
    }
  }

  Result<Prepared> unpack(const TokenShape& shape, RowCodec& codec) {
    rows_ = 0;
    for (const std::uint64_t count : counts_.received) rows_ += count;
    if (const auto done = reserve(x_, rows_ * codec.arrived_bytes()); !done) return done.why();
    const MutableRows x = codec.arrived(x_, rows_);
    ids_.resize(rows_ * top_k_);
    weights_.assign(rows_ * top_k_, 1.0f);
    adapters_.resize(rows_ * shape.adapters);
    std::uint64_t begin = 0;
    for (std::uint64_t rank = 0; rank < ranks_.size(); begin += counts_.received[rank++]) {
      const std::uint64_t count = counts_.received[rank];
      if (count == 0) continue;
      const Fields<const std::byte> from(shape, parcel_.received_from(rank).data(), count);
      for (std::uint64_t row = 0; row < count; ++row)
        codec.unpack(from.rows + row * shape.row, x, begin + row);
      std::memcpy(&ids_[begin * top_k_], from.ids, count * 4 * top_k_);
      if (shape.weights > 0)
        std::memcpy(&weights_[begin * top_k_], from.weights, count * 4 * top_k_);
      if (shape.adapters > 0) std::memcpy(&adapters_[begin], from.adapters, count * 4);
    }
    Prepared prepared{
        {.x = x, .top_k = top_k_, .ids = ids_, .weights = weights_, .adapters = adapters_}};
    prepared.is_quantized = codec.is_quantized();
    prepared.factor = codec.factor();
    return prepared;
  }

  Result<Done> combine(const ExpertsOutput& output, const MutableRows& out) override {
    if (output.form == OutputForm::batches)
      return wrong_form(traits().name, output.form, "summed rows or rows of assignments");
    if (const auto fine = check_output(output, out, {tokens_, rows_, top_k_}); !fine)
      return fine.why();
    const std::uint64_t row_bytes = out.columns * element_bytes(out.dtype);
    parcel_.step = "combine";
    if (const auto done = size_parcel(parcel_, counts_.received, counts_.sent, row_bytes); !done)
      return done.why();
    const MutableRows back{parcel_.send.data(), out.dtype, rows_, out.columns, row_bytes};
    Result<Done> summed = Done{};
    if (output.form == OutputForm::summed)
      copy_rows(output.rows, back);
    else
      summed = sum_assignments({.rows = output.rows,
                                .top_k = top_k_,
                                .ids = ids_,
                                .weights = output.is_weighted ? std::span<const float>{} : weights_,
                                .owners = &owners_,
                                .pool = threads_.get()},
                               back);
    if (!summed) return summed;
    if (const auto done = ranks_.all_to_all(parcel_); !done) return done.why();
    sum_returned(out);
    return Done{};
  }

  void sum_returned(const MutableRows& out) const {
    const std::uint64_t row_bytes = out.columns * element_bytes(out.dtype);
    std::vector<ConstRows> from;
    for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank)
      from.push_back({parcel_.received_from(rank).data(), out.dtype, sent_[rank].size(),
                      out.columns, row_bytes});
    // Lists ascend, so the next row of a rank is that of the next token that went there.
    std::vector<std::uint64_t> next(ranks_.size(), 0);
    std::vector<Term> terms;
    RowSum sum;
    for (std::uint64_t token = 0; token < tokens_; ++token) {
      terms.clear();
      for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank)
        if (next[rank] < sent_[rank].size() && sent_[rank][next[rank]] == token)
          terms.push_back({.from = from[rank], .row = next[rank]++});
      sum.write(terms, out, token);
    }
  }

  std::string group_;
  Owners owners_;
  Threads threads_;
  std::uint64_t tokens_ = 0, top_k_ = 0;
  std::vector<std::vector<std::uint64_t>> sent_{};  // tokens that went to each rank
  RowCounts counts_{};
  std::uint64_t rows_ = 0;  // that came from all ranks
  Parcel parcel_{};
  tensor::Buffer x_{};
  std::vector<std::int32_t> ids_{}, adapters_{};
  std::vector<float> weights_{};
};

}  // namespace

std::unique_ptr<Exchange> make_all_to_all(const ExchangeOptions& options, Owners owners) {
  return std::make_unique<AllToAll>(options, std::move(owners));
}

}  // namespace fp4moe::moe::exchange
