#include "fp4moe/moe/exchange/owners.hpp"

#include "fp4moe/moe/expert_map.hpp"

namespace fp4moe::moe::exchange {

Result<Owners> Owners::make(std::uint64_t experts, checkpoint::Rank me,
                            checkpoint::Placement placement) {
  Owners owners{.me = me.rank};
  // Asked first, so that a wrong number of ranks is found before anything is made of it.
  auto map = expert_map(experts, me, placement);
  if (!map) return map.why();
  owners.map = *std::move(map);
  owners.places.resize(experts);
  for (std::uint64_t rank = 0; rank < me.size; ++rank) {
    const auto held = checkpoint::local_experts(experts, {rank, me.size}, placement);
    if (!held) return held.why();
    if (rank == me.rank) owners.here = held->size();
    for (std::uint64_t local = 0; local < held->size(); ++local)
      owners.places[(*held)[local]] = {rank, local};
  }
  return owners;
}

std::optional<Owners::ExpertOwner> Owners::find(std::int32_t expert) const {
  if (expert < 0 || static_cast<std::uint64_t>(expert) >= places.size()) return std::nullopt;
  return places[static_cast<std::uint64_t>(expert)];
}

bool Owners::is_here(std::int32_t expert) const {
  const auto place = find(expert);
  return place && place->rank == me;
}

}  // namespace fp4moe::moe::exchange
