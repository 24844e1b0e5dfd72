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
    {"cpu", "our kernels for this machine's instruction set",
     [](std::shared_ptr<ThreadPool> pool,
        const EngineOptions& options) -> std::unique_ptr<moe::Engine> {
       using moe::cpu::WeightsHome;
       return std::make_unique<moe::cpu::CpuEngine>(
           std::move(pool), moe::cpu::CpuOptions{.home = options.mapped ? WeightsHome::mapped
                                                                        : WeightsHome::packed});
     },
     is_always_built, always},
    {"cuda", "our kernels for NVIDIA GPUs",
     [](std::shared_ptr<ThreadPool> pool, const EngineOptions&) -> std::unique_ptr<moe::Engine> {
       return std::make_unique<moe::cuda::CudaEngine>(std::move(pool));
     },
     kernels::cuda::is_built, check_cuda},
    {"reference", "portable, float64 sums, every backend's rounding points",
     [](std::shared_ptr<ThreadPool> pool, const EngineOptions&) -> std::unique_ptr<moe::Engine> {
       return std::make_unique<moe::reference::ReferenceEngine>(std::move(pool));
     },
     is_always_built, always},
};

std::string_view automatic(const EngineOptions& options) {
  return options.on_gpu && !options.mapped && check_cuda() ? "cuda" : "cpu";
}

}  // namespace

std::span<const EngineRow> engines() { return kEngines; }

Result<std::unique_ptr<moe::Engine>> make_engine(std::string_view name,
                                                 std::shared_ptr<ThreadPool> pool,
                                                 const EngineOptions& options) {
  const std::string_view wanted = name == "auto" || name.empty() ? automatic(options) : name;
  const auto* found = std::ranges::find_if(
      kEngines, [&](const EngineRow& row) { return is_same_word(row.name, wanted); });
  if (found != std::end(kEngines)) {
    if (const auto fine = found->check(); !fine) return fine.why();
    return found->make(std::move(pool), options);
  }
  std::vector<std::string_view> known{"auto"};
  for (const EngineRow& row : kEngines)
    if (row.is_built()) known.push_back(row.name);
  return usage("engine.unknown", "there is no such engine")
      .expects(fmt::format("one of {}", fmt::join(known, ", ")), "'" + printable(name) + "'")
      .try_this(did_you_mean(name, known));
}

}  // namespace fp4moe::runtime
