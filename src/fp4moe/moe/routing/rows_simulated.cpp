#include <algorithm>
#include <cmath>
#include <numbers>

#include "fp4moe/base/random.hpp"
#include "fp4moe/moe/routing/rows.hpp"

namespace fp4moe::moe::routing {
namespace {

double unit(std::uint64_t z) { return static_cast<double>(z >> 11) * 0x1p-53; }

double next_normal(SplitMix64& stream) {
  const double radius = std::sqrt(-2 * std::log(1 - unit(stream.next())));
  return radius * std::cos(2 * std::numbers::pi * unit(stream.next()));
}

void choose_uniformly(SplitMix64& stream, std::size_t experts, std::span<std::int32_t> ids) {
  std::uint64_t noise[kMaxExperts];
  bool is_taken[kMaxExperts] = {};
  for (std::size_t e = 0; e < experts; ++e) noise[e] = stream.next();
  for (std::int32_t& id : ids) {
    std::size_t best = experts;
    for (std::size_t e = 0; e < experts; ++e)
      if (!is_taken[e] && (best == experts || noise[e] > noise[best])) best = e;
    is_taken[best] = true;
    id = static_cast<std::int32_t>(best);
  }
}

}  // namespace

void simulate_row(const SimulatedRow& asked, std::span<std::int32_t> ids,
                  std::span<float> weights) noexcept {
  SplitMix64 stream(asked.seed + (asked.token << 32));
  if (asked.simulation == Simulation::uniform_random) {
    choose_uniformly(stream, asked.experts, ids);
    std::ranges::fill(weights, 1.0f);
    return;
  }
  const auto experts = static_cast<double>(asked.experts);
  for (std::int32_t& id : ids) {
    const double place = std::floor(experts / (1 + std::exp(-next_normal(stream))));
    id = static_cast<std::int32_t>(std::clamp(place, 0.0, experts - 1));
  }
  double sum = 0;
  double normals[kMaxExperts] = {};
  for (std::size_t j = 0; j < weights.size(); ++j)
    sum += normals[j] = std::abs(next_normal(stream));
  for (std::size_t j = 0; j < weights.size(); ++j)
    weights[j] = static_cast<float>(normals[j] / sum);
}

}  // namespace fp4moe::moe::routing
