#include "fp4moe/runtime/engines.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/moe/cpu/engine.hpp"
#include "fp4moe/moe/reference/engine.hpp"

namespace fp4moe::runtime {
namespace {

constexpr EngineRow kEngines[] = {
    {"cpu", "our kernels for this machine's instruction set",
     [](std::shared_ptr<ThreadPool> pool,
        const EngineOptions& options) -> std::unique_ptr<moe::Engine> {
       using moe::cpu::WeightsHome;
       return std::make_unique<moe::cpu::CpuEngine>(
           std::move(pool), moe::cpu::CpuOptions{.home = options.mapped ? WeightsHome::mapped
                                                                        : WeightsHome::packed});
     }},
    {"reference", "portable, float64 sums, every backend's rounding points",
     [](std::shared_ptr<ThreadPool> pool, const EngineOptions&) -> std::unique_ptr<moe::Engine> {
       return std::make_unique<moe::reference::ReferenceEngine>(std::move(pool));
     }},
};

}  // namespace

std::span<const EngineRow> engines() { return kEngines; }

Result<std::unique_ptr<moe::Engine>> make_engine(std::string_view name,
                                                 std::shared_ptr<ThreadPool> pool,
                                                 const EngineOptions& options) {
  if (name == "auto" || name.empty()) return kEngines[0].make(std::move(pool), options);
  std::string all;
  for (const EngineRow& row : kEngines) {
    if (row.name == name) return row.make(std::move(pool), options);
    all += fmt::format("{}, ", row.name);
  }
  return error(ErrorCode::lacking, "engine.unknown", "this build has no such engine")
      .expects(fmt::format("one of {}auto", all), "'" + printable(name) + "'");
}

}  // namespace fp4moe::runtime
