// The common part of exchanges between ranks: a call is opened by prepare and closed by finalize,
// and whatever goes wrong in either is told to the other ranks.
#pragma once
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/moe/exchange/makers.hpp"

namespace fp4moe::moe::exchange {

class RankedExchange : public Exchange {
 public:
  Result<Prepared> prepare(const Tokens& tokens, const PrepareOptions& options) final {
    auto prepared = dispatch(tokens, options);
    is_open_ = static_cast<bool>(prepared);
    if (!prepared) ranks_.abort(prepared.why());
    return prepared;
  }

  Result<Done> finalize(const ExpertsOutput& output, const MutableRows& out) final {
    if (!is_open_) return no_prepare(traits().name);
    is_open_ = false;
    auto done = combine(output, out);
    if (!done) ranks_.abort(done.why());
    return done;
  }

  void abandon(const Error& why) final {
    is_open_ = false;
    ranks_.abort(why);
  }

 protected:
  explicit RankedExchange(Communicator& ranks) : ranks_(ranks) {}
  virtual Result<Prepared> dispatch(const Tokens& tokens, const PrepareOptions& options) = 0;
  virtual Result<Done> combine(const ExpertsOutput& output, const MutableRows& out) = 0;

  Communicator& ranks_;

 private:
  bool is_open_ = false;
};

}  // namespace fp4moe::moe::exchange
