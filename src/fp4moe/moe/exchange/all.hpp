// The exchanges, one row each. To add one: a file like gather.cpp, its maker in makers.hpp, a row
// here.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/oracle/parallel.hpp"

namespace fp4moe::moe::exchange {

struct ExchangeOptions {
  Communicator* ranks = nullptr;       // outlives the exchange
  std::uint64_t experts = 0;           // physical, of all ranks together
  checkpoint::Rank expert_parallel{};  // without a communicator: whose experts are here
  checkpoint::Placement placement = checkpoint::Placement::linear;
  ThreadPool* pool = nullptr;    // outlives the exchange; null: the caller's thread does all
  std::uint64_t max_tokens = 0;  // per rank; batches are made for so many
};

struct ExchangeRow {
  std::string_view name;
  TokenFormat format;
  bool needs_ranks;                      // a communicator
  EnumSet<oracle::Exchange> stands_for;  // those of the reference
  std::string_view what;                 // in a few words
};

std::span<const ExchangeRow> all_exchanges();
const ExchangeRow* find_exchange(std::string_view name);  // null when there is none
// The one that does the work of the reference's; null when there is none.
const ExchangeRow* exchange_for(oracle::Exchange exchange);

// Errors: exchange.name, exchange.ranks (a communicator is needed), exchange.experts (none, or more
// than ids can name), exchange.max_tokens (batches of nothing), those of checkpoint::local_experts.
Result<std::unique_ptr<Exchange>> make_exchange(std::string_view name,
                                                const ExchangeOptions& options);

}  // namespace fp4moe::moe::exchange
