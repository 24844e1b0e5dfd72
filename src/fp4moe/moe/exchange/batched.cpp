// Batches without travel: tokens of each expert of this rank, one expert after the other, packed to
// the front of its batch in ascending order. A token that lists an expert twice is there once, and
// counts with both weights.
#include <algorithm>

#include <fmt/format.h>

#include "fp4moe/moe/exchange/batches.hpp"
#include "fp4moe/moe/exchange/makers.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "fp4moe/moe/exchange/wire.hpp"

namespace fp4moe::moe::exchange {
namespace {

class Batched final : public Exchange {
 public:
  Batched(const ExchangeOptions& options, Owners owners)
      : capacity_(options.max_tokens), owners_(std::move(owners)) {}

  ExchangeTraits traits() const override {
    return {.name = "batched",
            .format = TokenFormat::batched,
            .max_tokens_per_rank = capacity_,
            .takes_unquantized = false,
            .routes = false};
  }

  Result<Prepared> prepare(const Tokens& tokens, const PrepareOptions& options) override {
    is_open_ = false;
    if (const auto fine = check_tokens(tokens, options, traits()); !fine) return fine.why();
    if (const auto fine = assign(tokens, options); !fine) return fine.why();
    RowCodec codec(tokens.x, options.quantizer);
    const auto open = batches_.open(owners_.here, capacity_, 1, codec, !tokens.adapters.empty());
    if (!open) return open.why();
    packed_.resize(codec.packed_bytes());
    for (std::uint64_t expert = 0; expert < owners_.here; ++expert)
      for (const Member& member : members_[expert]) {
        codec.pack(tokens.x, member.token,
                   options.weight_on_input ? &tokens.weights[member.token] : nullptr,
                   packed_.data());
        const std::uint64_t row = batches_.add(expert, packed_.data(), codec);
        if (std::int32_t* const adapter = batches_.adapter(row))
          *adapter = tokens.adapters[member.token];
      }
    tokens_ = tokens.x.rows;
    is_open_ = true;
    return batches_.prepared(codec);
  }

  Result<Done> finalize(const ExpertsOutput& output, const MutableRows& out) override {
    if (!is_open_) return no_prepare(traits().name);
    if (output.form == OutputForm::assignments)
      return wrong_form(traits().name, output.form, "batches or summed rows");
    const bool is_summed = output.form == OutputForm::summed;
    const std::uint64_t rows = is_summed ? tokens_ : batches_.rows();
    if (const auto fine = check_output(output, out, {tokens_, rows, 1}); !fine) return fine.why();
    is_open_ = false;
    if (is_summed) {
      copy_rows(output.rows, out);
      return Done{};
    }
    RowSum sum;
    for (std::uint64_t row = 0; row < out.rows; ++row) sum.write({}, out, row);
    for (std::uint64_t expert = 0; expert < owners_.here; ++expert)
      for (std::uint64_t i = 0; i < members_[expert].size(); ++i) {
        const Member& member = members_[expert][i];
        sum.add({.from = output.rows,
                 .row = expert * capacity_ + i,
                 .weight = output.is_weighted ? nullptr : &member.weight},
                out, member.token);
      }
    return Done{};
  }

  void abandon(const Error&) override { is_open_ = false; }

 private:
  struct Member {
    std::uint64_t token = 0;
    float weight = 1.0f;
  };

  // The tokens of each expert.
  Result<Done> assign(const Tokens& tokens, const PrepareOptions& options) {
    members_.assign(owners_.here, {});
    const std::uint64_t k = tokens.top_k;
    for (std::uint64_t token = 0; token < tokens.x.rows; ++token) {
      distinct_choices(owners_, tokens.ids.subspan(token * k, k),
                       tokens.weights.subspan(token * k, k), choices_);
      for (const Choice& choice : choices_)
        if (choice.place.rank == owners_.me)
          members_[choice.place.local].push_back(
              {token, options.weight_on_input ? 1.0f : choice.weight});
    }
    const auto fullest = std::ranges::max_element(members_, {}, &std::vector<Member>::size);
    if (fullest != members_.end() && fullest->size() > capacity_)
      return error(
                 ErrorCode::exhausted, "exchange.capacity",
                 fmt::format("the batch of local expert {} overflows", fullest - members_.begin()))
          .expects(fmt::format("at most {} tokens", capacity_), fmt::format("{}", fullest->size()))
          .try_this("Raise the maximum number of tokens per rank, or compute fewer at a time");
    return Done{};
  }

  std::uint64_t capacity_;
  Owners owners_;
  bool is_open_ = false;
  std::uint64_t tokens_ = 0;
  std::vector<std::vector<Member>> members_{};  // of each local expert
  std::vector<Choice> choices_{};
  Batches batches_{};
  std::vector<std::byte> packed_{};
};

}  // namespace

std::unique_ptr<Exchange> make_batched(const ExchangeOptions& options, Owners owners) {
  return std::make_unique<Batched>(options, std::move(owners));
}

}  // namespace fp4moe::moe::exchange
