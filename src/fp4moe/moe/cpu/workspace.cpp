#include "fp4moe/moe/cpu/workspace.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "fp4moe/base/checked.hpp"

namespace fp4moe::moe::cpu {
namespace {

using kernels::cpu::kChunk;
using kernels::cpu::kGemmTokens;

Result<Done> grow(tensor::Buffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return Done{};
  buffer = {};  // first, so that both are never there at once
  Result<tensor::Buffer> memory = tensor::Buffer::allocate(bytes);
  if (!memory) return memory.why();
  buffer = std::move(*memory);
  return Done{};
}

}  // namespace

Result<Done> Workspace::make(const CpuWeights& weights, std::size_t count) {
  x.chunks = weights.hidden_chunks();
  h.chunks = weights.middle_chunks();
  threads.resize(count);
  const std::size_t chunks = std::max(x.chunks, h.chunks), columns = chunks * kChunk;
  constexpr std::size_t rows = kFirstRows;
  for (Scratch& scratch : threads) {
    const std::pair<tensor::Buffer*, std::size_t> wanted[] = {
        {&scratch.sums, kGemmTokens * rows * sizeof(float)},
        {&scratch.values, columns * sizeof(float)},
        {&scratch.rounded, columns * sizeof(std::int16_t)},
        {&scratch.ordered, columns * sizeof(std::int16_t)},
        {&scratch.steps, chunks * sizeof(float)},
        {&scratch.codes, weights.is_mapped() ? weights.code_bytes(rows) : 0},
        {&scratch.scales, weights.is_mapped() ? weights.scale_bytes(rows) : 0}};
    for (const auto& [buffer, bytes] : wanted)
      if (const auto done = grow(*buffer, bytes); !done) return done.why();
  }
  return Done{};
}

Result<Done> Workspace::place(const kernels::cpu::GemmKernel& kernel, std::size_t limbs,
                              Panels& to) {
  to.places.resize(pass.units.size());
  std::size_t bytes = 0, steps = 0;
  for (std::size_t u = 0; u < pass.units.size(); ++u) {
    const std::size_t tokens = pass.units[u].count;
    to.places[u] = {.panel = bytes, .step = steps};
    bytes += round_up(kernel.panel_bytes(limbs, tokens, to.chunks), tensor::Buffer::kAlignment);
    steps += kernels::cpu::padded_tokens(tokens) * to.chunks;
  }
  if (const auto done = grow(to.panels, bytes); !done) return done.why();
  return grow(to.half_steps, steps * sizeof(float));
}

Result<Done> Workspace::reserve(const kernels::cpu::GemmKernel& kernel, const Needs& needs) {
  if (const auto done = place(kernel, needs.limbs, x); !done) return done.why();
  if (const auto done = place(kernel, needs.limbs, h); !done) return done.why();
  const std::size_t assignments = pass.assignments.size();
  if (needs.keeps_middle)
    if (const auto done = grow(middle, assignments * h.chunks * kChunk * sizeof(float)); !done)
      return done.why();
  if (const auto done = grow(low, assignments * 3 * needs.rank * sizeof(float)); !done)
    return done.why();
  if (const auto done = grow(kept, assignments * needs.kept_rows * sizeof(float)); !done)
    return done.why();
  by_size.clear();
  for (const std::uint32_t expert : pass.by_size)
    for (std::uint32_t u = pass.first_units[expert]; u < pass.first_units[expert + 1]; ++u)
      by_size.push_back(u);
  tasks.clear();
  for (const std::uint32_t expert : pass.by_size)
    for (std::uint32_t chunk = 0; chunk < h.chunks; ++chunk)
      for (std::uint32_t u = pass.first_units[expert]; u < pass.first_units[expert + 1]; ++u)
        tasks.push_back({.unit = u, .chunk = chunk});
  return Done{};
}

std::shared_ptr<Workspaces> Workspaces::of(const std::shared_ptr<ThreadPool>& pool) {
  // Workspaces keep their pool alive, so its address is unique while they live.
  struct Registry {
    std::mutex mutex{};
    std::map<const ThreadPool*, std::weak_ptr<Workspaces>> known{};
  };
  static Registry& registry =
      *new Registry;  // never destroyed: threads may use it until the process ends
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Workspaces>& kept = registry.known[pool.get()];
  std::shared_ptr<Workspaces> found = kept.lock();
  if (!found) kept = found = std::make_shared<Workspaces>();
  return found;
}

Workspace Workspaces::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.reserve(++made_);  // so that giving back needs no memory
    return {};
  }
  Workspace space = std::move(free_.back());
  free_.pop_back();
  return space;
}

void Workspaces::give(Workspace space) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(space));
}

}  // namespace fp4moe::moe::cpu
