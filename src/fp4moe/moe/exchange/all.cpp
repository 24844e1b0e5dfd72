#include "fp4moe/moe/exchange/all.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "fp4moe/moe/exchange/makers.hpp"

namespace fp4moe::moe::exchange {
namespace {

using Maker = std::unique_ptr<Exchange> (*)(const ExchangeOptions&, Owners);

// In the order of ExchangeKind.
constexpr Maker kMakers[] = {make_local, make_batched, make_gather, make_all_to_all,
                             make_all_to_all_batched};

constexpr std::array<std::string_view, 3> kForms{"summed rows", "rows of assignments", "batches"};

Result<Done> check_options(const ExchangeRow& row, const ExchangeOptions& options) {
  if (row.needs_ranks && options.ranks == nullptr)
    return usage("exchange.ranks", fmt::format("'{}' sends tokens between ranks", row.name))
        .expects("a communicator", "none");
  if (options.experts == 0 || options.experts > std::numeric_limits<std::int32_t>::max())
    return usage("exchange.experts", "invalid number of experts")
        .expects("1 to 2147483647 experts", fmt::format("{}", options.experts));
  if (row.format == TokenFormat::batched && options.max_tokens == 0)
    return usage("exchange.max_tokens", "missing max_tokens")
        .expects("at least 1 token per rank", "0");
  return Done{};
}

}  // namespace

Result<std::unique_ptr<Exchange>> make_exchange(ExchangeKind kind, const ExchangeOptions& options) {
  const ExchangeRow& exchange = row(kind);
  if (const auto fine = check_options(exchange, options); !fine) return fine.why();
  const checkpoint::Rank me = options.ranks != nullptr && exchange.needs_ranks
                                  ? checkpoint::Rank{options.ranks->rank(), options.ranks->size()}
                                  : options.expert_parallel;
  auto owners = Owners::make(options.experts, me, options.placement);
  if (!owners) return owners.why();
  return kMakers[static_cast<std::size_t>(kind)](options, *std::move(owners));
}

std::string describe_group(const ExchangeOptions& options) {
  return fmt::format("{} experts; placement {}", options.experts,
                     options.placement == checkpoint::Placement::linear ? "linear" : "round_robin");
}

Error no_prepare(std::string_view exchange) {
  return usage("exchange.order", fmt::format("{}: finalize has nothing to finish", exchange))
      .expects("prepare before finalize", "none");
}

Error wrong_form(std::string_view exchange, OutputForm form, std::string_view expected) {
  return usage("exchange.form", fmt::format("{} does not take this output of experts", exchange))
      .expects(expected, kForms[static_cast<std::size_t>(form)]);
}

void distinct_choices(const Owners& owners, std::span<const std::int32_t> ids,
                      std::span<const float> weights, std::vector<Choice>& choices) {
  choices.clear();
  for (std::size_t assignment = 0; assignment < ids.size(); ++assignment) {
    const auto place = owners.find(ids[assignment]);
    if (!place) continue;
    const auto same = std::ranges::find_if(choices, [&](const Choice& choice) {
      return choice.place.rank == place->rank && choice.place.local == place->local;
    });
    if (same == choices.end())
      choices.push_back({*place, weights[assignment]});
    else
      same->weight += weights[assignment];
  }
}

}  // namespace fp4moe::moe::exchange
