#include "fp4moe/moe/exchange/table.hpp"

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::moe::exchange {
namespace {

using Theirs = oracle::Exchange;

// clang-format off
constexpr ExchangeRow kExchanges[] = {
    {ExchangeKind::local, "local",              TokenFormat::standard, false, {Theirs::none},
     "every rank has its tokens; nothing travels"},
    {ExchangeKind::batched, "batched",            TokenFormat::batched,  false, {},
     "a batch per expert, made in the process"},
    {ExchangeKind::gather, "gather",             TokenFormat::standard, true,  {Theirs::gather},
     "all tokens to all ranks, sums back"},
    {ExchangeKind::all_to_all, "all_to_all",         TokenFormat::standard, true,  {Theirs::deepep_ht, Theirs::deepep_v2, Theirs::mori, Theirs::flashinfer_two_sided, Theirs::flashinfer_one_sided, Theirs::moonep, Theirs::passthrough},
     "a token once to each rank that needs it, sums back"},
    {ExchangeKind::all_to_all_batched, "all_to_all_batched", TokenFormat::batched,  true,  {Theirs::deepep_ll, Theirs::pplx, Theirs::nixl},
     "a token once to each expert's batch, weighed where it came from"},
};
// clang-format on

}  // namespace

std::span<const ExchangeRow> all_exchanges() { return kExchanges; }

const ExchangeRow& row(ExchangeKind kind) {
  return *std::ranges::find(kExchanges, kind, &ExchangeRow::kind);
}

Result<ExchangeKind> exchange_from_name(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ExchangeRow& one : kExchanges) {
    if (one.name == name) return one.kind;
    names.push_back(one.name);
  }
  const std::string_view near = nearest(name, names);
  return usage("exchange.name", "no such exchange is known")
      .expects(fmt::format("one of {}", fmt::join(names, ", ")),
               fmt::format("'{}'", printable(name)))
      .try_this(near.empty() ? "" : fmt::format("Did you mean {}?", near));
}

const ExchangeRow* exchange_for(oracle::Exchange exchange) {
  const auto* row = std::ranges::find_if(
      kExchanges, [&](const ExchangeRow& one) { return one.stands_for.contains(exchange); });
  return row == std::end(kExchanges) ? nullptr : row;
}

}  // namespace fp4moe::moe::exchange
