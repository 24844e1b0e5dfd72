// The common part of exchanges between ranks: a call is opened by prepare and closed by finalize,
// and whatever goes wrong in either is told to the other ranks.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/moe/exchange/makers.hpp"
#include "fp4moe/moe/exchange/wire.hpp"

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

  // Rows that travel in a call: how many to each rank and from it.
  struct RowCounts {
    std::vector<std::uint64_t> sent{}, received{};
    bool has_adapters = false;  // on any rank
  };
  // `sent` lists the rows for each rank; the others tell how many they have for this one. Errors:
  // those of meet().
  template <class Row>
  Result<Done> share_counts(const Tokens& tokens, const std::string& description,
                            const std::vector<std::vector<Row>>& sent, RowCounts& counts) {
    std::vector<std::uint64_t> mine{tokens.adapters.empty() ? 0u : 1u};
    for (const auto& list : sent) mine.push_back(list.size());
    const auto numbers = meet(ranks_, description, mine);
    if (!numbers) return numbers.why();
    counts = {.sent = {mine.begin() + 1, mine.end()}};
    for (std::uint64_t rank = 0; rank < ranks_.size(); ++rank) {
      counts.has_adapters = counts.has_adapters || (*numbers)[rank * mine.size()] != 0;
      counts.received.push_back((*numbers)[rank * mine.size() + 1 + ranks_.rank()]);
    }
    return Done{};
  }

  // Sizes of `sent` rows to each rank and `received` rows from it, and memory for the former.
  static Result<Done> size_parcel(Parcel& parcel, std::span<const std::uint64_t> sent,
                                  std::span<const std::uint64_t> received,
                                  std::uint64_t row_bytes) {
    parcel.send_bytes.clear();
    parcel.receive_bytes.clear();
    std::uint64_t bytes = 0;
    for (const std::uint64_t rows : sent) {
      parcel.send_bytes.push_back(rows * row_bytes);
      bytes += rows * row_bytes;
    }
    for (const std::uint64_t rows : received) parcel.receive_bytes.push_back(rows * row_bytes);
    return reserve(parcel.send, bytes);
  }

  Communicator& ranks_;

 private:
  bool is_open_ = false;
};

}  // namespace fp4moe::moe::exchange
