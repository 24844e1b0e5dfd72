#include "fp4moe/moe/exchange/table.hpp"

#include <algorithm>
#include <iterator>

namespace fp4moe::moe::exchange {
namespace {

using Theirs = oracle::Exchange;

// clang-format off
constexpr ExchangeRow kExchanges[] = {
    {"local",              TokenFormat::standard, false, {Theirs::none},
     "every rank has its tokens; nothing travels"},
    {"batched",            TokenFormat::batched,  false, {},
     "a batch per expert, made in the process"},
    {"gather",             TokenFormat::standard, true,  {Theirs::gather},
     "all tokens to all ranks, sums back"},
    {"all_to_all",         TokenFormat::standard, true,  {Theirs::deepep_ht, Theirs::deepep_v2, Theirs::mori, Theirs::flashinfer_two_sided, Theirs::flashinfer_one_sided, Theirs::moonep, Theirs::passthrough},
     "a token once to each rank that needs it, sums back"},
    {"all_to_all_batched", TokenFormat::batched,  true,  {Theirs::deepep_ll, Theirs::pplx, Theirs::nixl},
     "a token once to each expert's batch, weighed where it came from"},
};
// clang-format on

}  // namespace

std::span<const ExchangeRow> all_exchanges() { return kExchanges; }

const ExchangeRow* find_exchange(std::string_view name) {
  const auto* row = std::ranges::find(kExchanges, name, &ExchangeRow::name);
  return row == std::end(kExchanges) ? nullptr : row;
}

const ExchangeRow* exchange_for(oracle::Exchange exchange) {
  const auto* row = std::ranges::find_if(
      kExchanges, [&](const ExchangeRow& one) { return one.stands_for.contains(exchange); });
  return row == std::end(kExchanges) ? nullptr : row;
}

}  // namespace fp4moe::moe::exchange
