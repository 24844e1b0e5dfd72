// The exchanges, one row each.
#pragma once
#include <span>
#include <string_view>

#include "fp4moe/base/enum_set.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/exchange.hpp"
#include "fp4moe/oracle/parallel.hpp"

namespace fp4moe::moe::exchange {

enum class ExchangeKind : std::uint8_t { local, batched, gather, all_to_all, all_to_all_batched };

struct ExchangeRow {
  ExchangeKind kind;
  std::string_view name;
  TokenFormat format;
  bool needs_ranks;                      // a communicator
  EnumSet<oracle::Exchange> stands_for;  // those of the reference
  std::string_view what;                 // in a few words
};

std::span<const ExchangeRow> all_exchanges();
const ExchangeRow& row(ExchangeKind kind);
// Errors: exchange.name, listing what there is.
Result<ExchangeKind> exchange_from_name(std::string_view name);
// The one that does the work of the reference's; null when there is none.
const ExchangeRow* exchange_for(oracle::Exchange exchange);

}  // namespace fp4moe::moe::exchange
