#include "fp4moe/runtime/engines.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/moe/cpu/engine.hpp"
#include "fp4moe/moe/cuda/engine.hpp"
#include "fp4moe/moe/reference/engine.hpp"

namespace fp4moe::runtime {
namespace {

Result<Done> always() { return Done{}; }
bool is_always_built() { return true; }

// The engine takes the first device.
Result<Done> check_cuda() {
  const auto found = kernels::cuda::devices();
  if (!found) return found.why();
  const auto family = kernels::cuda::choose_family(found->front());
  if (!family) return family.why();
  return Done{};
}

constexpr EngineRow kEngines[] = {
    {EngineKind::cpu, "cpu", "our kernels for this machine's instruction set",
     [](std::shared_ptr<ThreadPool> pool,
        const EngineOptions& options) -> std::unique_ptr<moe::Engine> {
       return std::make_unique<moe::cpu::CpuEngine>(std::move(pool),
                                                    moe::cpu::CpuOptions{.home = options.weights});
     },
     is_always_built, always},
    {EngineKind::cuda, "cuda", "our kernels for NVIDIA GPUs",
     [](std::shared_ptr<ThreadPool> pool, const EngineOptions&) -> std::unique_ptr<moe::Engine> {
       return std::make_unique<moe::cuda::CudaEngine>(std::move(pool));
     },
     kernels::cuda::is_built, check_cuda},
    {EngineKind::reference, "reference", "portable, float64 sums, every backend's rounding points",
     [](std::shared_ptr<ThreadPool> pool, const EngineOptions&) -> std::unique_ptr<moe::Engine> {
       return std::make_unique<moe::reference::ReferenceEngine>(std::move(pool));
     },
     is_always_built, always},
};

EngineKind automatic(const EngineOptions& options) {
  const bool may_be_gpu = options.on_gpu && options.weights == moe::WeightsHome::packed;
  return may_be_gpu && check_cuda() ? EngineKind::cuda : EngineKind::cpu;
}

constexpr std::string_view kAutomatic = "auto";

const EngineRow& row(EngineKind kind) {
  return *std::ranges::find(kEngines, kind, &EngineRow::kind);
}

}  // namespace

std::span<const EngineRow> engines() { return kEngines; }

std::string_view name(EngineKind kind) {
  return kind == EngineKind::automatic ? kAutomatic : row(kind).name;
}

Result<EngineKind> engine_from_name(std::string_view name) {
  if (name.empty() || is_same_word(name, kAutomatic)) return EngineKind::automatic;
  std::vector<std::string_view> known{kAutomatic};
  for (const EngineRow& one : kEngines) {
    if (is_same_word(one.name, name)) return one.kind;
    if (one.is_built()) known.push_back(one.name);
  }
  return usage("engine.unknown", "there is no such engine")
      .expects(fmt::format("one of {}", fmt::join(known, ", ")), "'" + printable(name) + "'")
      .try_this(did_you_mean(name, known));
}

Result<std::unique_ptr<moe::Engine>> make_engine(EngineKind kind, std::shared_ptr<ThreadPool> pool,
                                                 const EngineOptions& options) {
  const EngineRow& engine = row(kind == EngineKind::automatic ? automatic(options) : kind);
  if (const auto fine = engine.check(); !fine) return fine.why();
  return engine.make(std::move(pool), options);
}

}  // namespace fp4moe::runtime
