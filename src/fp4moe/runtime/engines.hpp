// The engines of this build, one row each.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::runtime {

// `automatic`: cuda for a layer that was chosen for a GPU such as this machine has, else cpu.
enum class EngineKind : std::uint8_t { automatic, cpu, cuda, reference };

struct EngineOptions {
  moe::WeightsHome weights = moe::WeightsHome::packed;
  bool on_gpu =
      false;  // the layer was chosen for an NVIDIA GPU: `automatic` takes one that is here
};

struct EngineRow {
  EngineKind kind;
  std::string_view name;
  std::string_view what;  // in a few words
  std::unique_ptr<moe::Engine> (*make)(std::shared_ptr<ThreadPool> pool,
                                       const EngineOptions& options);
  bool (*is_built)();
  // Checks that it computes on this machine. Errors: cuda.*.
  Result<Done> (*check)();
};

std::span<const EngineRow> engines();
std::string_view name(EngineKind kind);
// "auto" and "" are automatic. Errors: engine.unknown, listing what there is.
Result<EngineKind> engine_from_name(std::string_view name);
// Errors: those of its check.
Result<std::unique_ptr<moe::Engine>> make_engine(EngineKind kind, std::shared_ptr<ThreadPool> pool,
                                                 const EngineOptions& options = {});

}  // namespace fp4moe::runtime
