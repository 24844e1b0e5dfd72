// Makes exchanges. To add one: a file like gather.cpp, its maker in makers.hpp, a row in table.cpp.
#pragma once
#include <cstdint>
#include <memory>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/checkpoint/slice.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/moe/exchange/communicator.hpp"
#include "fp4moe/moe/exchange/table.hpp"

namespace fp4moe::moe::exchange {

struct ExchangeOptions {
  Communicator* ranks = nullptr;       // outlives the exchange
  std::uint64_t experts = 0;           // physical, of all ranks together
  checkpoint::Rank expert_parallel{};  // without a communicator: the rank whose experts are here
  checkpoint::Placement placement = checkpoint::Placement::linear;
  ThreadPool* pool = nullptr;    // outlives the exchange; null: the caller's thread does all
  std::uint64_t max_tokens = 0;  // per rank; batches are made for so many
};

// Errors: exchange.ranks (a communicator is needed), exchange.experts (none, or more
// than ids can name), exchange.max_tokens (batches of nothing), those of checkpoint::local_experts.
Result<std::unique_ptr<Exchange>> make_exchange(ExchangeKind kind, const ExchangeOptions& options);

}  // namespace fp4moe::moe::exchange
