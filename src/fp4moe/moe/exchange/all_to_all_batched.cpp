// A token travels to each of its experts and lies in that expert's batch: tokens of rank 0 first,
// each rank's in ascending order. What an expert made of it comes back unweighted; the token's own
// rank multiplies by its weights and sums, in the order in which the token lists its experts.
//
//   batch of expert e   [ rank 0: a c | rank 1: d | rank 2: f g h | unused ... ]   capacity rows
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "fp4moe/moe/exchange/batches.hpp"
#include "fp4moe/moe/exchange/makers.hpp"
#include "fp4moe/moe/exchange/ranked.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "fp4moe/moe/exchange/wire.hpp"

namespace fp4moe::moe::exchange {
namespace {

class AllToAllBatched final : public RankedExchange {
 public:
  AllToAllBatched(const ExchangeOptions& options, Owners owners)
      : RankedExchange(*options.ranks),
        group_(describe_group(options)),
        max_tokens_(options.max_tokens),
        owners_(std::move(owners)) {}

  ExchangeTraits traits() const override {
    return {.name = "all_to_all_batched",
            .format = TokenFormat::batched,
            .max_tokens_per_rank = max_tokens_,
            .dispatchers = ranks_.size(),
            .output_is_reduced = true,
            .takes_unquantized = false,
            .routes = false};
  }

 private:
  struct Sent {
    std::uint64_t token = 0;
    std::uint64_t local = 0;  // the expert, as its rank numbers it
  };
  struct Return {  // where what an expert made of a token comes back
    std::uint64_t rank = 0, row = 0;
    float weight = 1.0f;
  };

  Result<Prepared> dispatch(const Tokens& tokens, const PrepareOptions& options) override {
    if (const auto fine = check_tokens(tokens, options, traits()); !fine) return fine.why();
    if (tokens.x.rows > max_tokens_)
      return error(ErrorCode::exhausted, "exchange.capacity", "a rank has too many tokens")
          .expects(fmt::format("at most {}", max_tokens_), fmt::format("{}", tokens.x.rows))
          .try_this("Raise the maximum number of tokens per rank, or compute fewer at a time");
    assign(tokens, options);
    const auto shared =
        share_counts(tokens, describe(tokens, options, traits(), group_), sent_, counts_);
    if (!shared) return shared.why();

    RowCodec codec(tokens.x, options.quantizer);
    const TokenShape shape{
        .row = codec.packed_bytes(), .ids = 1, .adapters = counts_.has_adapters ? 1u : 0u};
    parcel_.step = "dispatch to batches";
    if (const auto done = size_parcel(parcel_, counts_.sent, counts_.received, shape.bytes());
        !done)
      return done.why();
    pack(tokens, options, shape, codec);
    if (const auto done = ranks_.all_to_all(parcel_); !done) return done.why();
    return unpack(shape, codec);
  }

  // The destination of each row, and the place where its result comes back.
  void assign(const Tokens& tokens, const PrepareOptions& options) {
    tokens_ = tokens.x.rows;
    sent_.assign(ranks_.size(), {});
    returns_.clear();
    returns_end_.clear();
    const std::uint64_t k = tokens.top_k;
    for (std::uint64_t token = 0; token < tokens_; ++token) {
      distinct_choices(owners_, tokens.ids.subspan(token * k, k),
                       tokens.weights.subspan(token * k, k), choices_);
      for (const Choice& choice : choices_) {
        auto& list = sent_[choice.place.rank];
        returns_.push_back(
            {choice.place.rank, list.size(), options.weight_on_input ? 1.0f : choice.weight});
        list.push_back({token, choice.place.local});
      }
      returns_end_.push_back(returns_.size());
    }
  }

  void pack(const Tokens& tokens, const PrepareOptions& options, const TokenShape& shape,
            RowCodec& codec) {
    const std::int32_t none = -1;
    std::vector<const std::byte*> packed(tokens_, nullptr);
    std::byte* begin = parcel_.send.data();
    for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank) {
      const Fields<std::byte> to(shape, begin, sent_[rank].size());
      begin += parcel_.send_bytes[rank];
      for (std::uint64_t i = 0; i < sent_[rank].size(); ++i) {
        const Sent& one = sent_[rank][i];
        std::byte* row = to.rows + i * shape.row;
        if (packed[one.token] != nullptr)
          std::memcpy(row, packed[one.token], shape.row);
        else
          codec.pack(tokens.x, one.token,
                     options.weight_on_input ? &tokens.weights[one.token] : nullptr, row);
        packed[one.token] = row;
        const auto local = static_cast<std::int32_t>(one.local);
        std::memcpy(to.ids + 4 * i, &local, 4);
        if (shape.adapters > 0)
          std::memcpy(to.adapters + 4 * i,
                      tokens.adapters.empty() ? &none : &tokens.adapters[one.token], 4);
      }
    }
  }

  Result<Prepared> unpack(const TokenShape& shape, RowCodec& codec) {
    const auto open =
        batches_.open(owners_.here, max_tokens_, ranks_.size(), codec, shape.adapters > 0);
    if (!open) return open.why();
    places_.clear();
    for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank) {
      const Fields<const std::byte> from(shape, parcel_.received_from(rank).data(),
                                         counts_.received[rank]);
      for (std::uint64_t i = 0; i < counts_.received[rank]; ++i) {
        std::int32_t local = 0;
        std::memcpy(&local, from.ids + 4 * i, 4);
        const auto expert = static_cast<std::uint64_t>(local);
        if (local < 0 || expert >= owners_.here || batches_.is_full(expert))
          return error(ErrorCode::mismatch, "exchange.peer",
                       fmt::format("rank {} sends tokens to a batch that is not there", rank))
              .expects(fmt::format("one of {} experts, at most {} tokens", owners_.here,
                                   batches_.capacity()),
                       fmt::format("local expert {}", local));
        places_.push_back(batches_.add(expert, from.rows + i * shape.row, codec));
        if (std::int32_t* const adapter = batches_.adapter(places_.back()))
          std::memcpy(adapter, from.adapters + 4 * i, 4);
      }
    }
    return batches_.prepared(codec);
  }

  Result<Done> combine(const ExpertsOutput& output, const MutableRows& out) override {
    if (!places_.empty() && (output.form != OutputForm::batches || output.is_weighted))
      return wrong_form(traits().name, output.form,
                        "unweighted batches (the experts delegate weighing)");
    const std::uint64_t rows = places_.empty() ? 0 : batches_.rows();
    if (const auto fine = check_output(output, out, {tokens_, rows, 1}); !fine) return fine.why();
    const std::uint64_t row_bytes = out.columns * element_bytes(out.dtype);
    parcel_.step = "combine batches";
    if (const auto done = size_parcel(parcel_, counts_.received, counts_.sent, row_bytes); !done)
      return done.why();
    const MutableRows back{parcel_.send.data(), out.dtype, places_.size(), out.columns, row_bytes};
    for (std::uint64_t i = 0; i < places_.size(); ++i)
      copy_rows(output.rows.from(places_[i], 1),
                {back.row(i), out.dtype, 1, out.columns, row_bytes});
    if (const auto done = ranks_.all_to_all(parcel_); !done) return done.why();

    std::vector<ConstRows> from;
    for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank)
      from.push_back({parcel_.received_from(rank).data(), out.dtype, sent_[rank].size(),
                      out.columns, row_bytes});
    std::vector<Term> terms;
    RowSum sum;
    std::uint64_t next = 0;
    for (std::uint64_t token = 0; token < tokens_; ++token) {
      terms.clear();
      for (; next < returns_end_[token]; ++next)
        terms.push_back({.from = from[returns_[next].rank],
                         .row = returns_[next].row,
                         .weight = &returns_[next].weight,
                         .rounds_product = false});
      sum.write(terms, out, token);
    }
    return Done{};
  }

  std::string group_;
  std::uint64_t max_tokens_;
  Owners owners_;
  std::uint64_t tokens_ = 0;
  std::vector<Choice> choices_{};
  std::vector<std::vector<Sent>> sent_{};  // to each rank
  RowCounts counts_{};
  std::vector<Return> returns_{};             // of each token in turn
  std::vector<std::uint64_t> returns_end_{};  // behind the last of a token
  std::vector<std::uint64_t> places_{};       // of the received rows in the batches
  Parcel parcel_{};
  Batches batches_{};
};

}  // namespace

std::unique_ptr<Exchange> make_all_to_all_batched(const ExchangeOptions& options, Owners owners) {
  return std::make_unique<AllToAllBatched>(options, std::move(owners));
}

}  // namespace fp4moe::moe::exchange
