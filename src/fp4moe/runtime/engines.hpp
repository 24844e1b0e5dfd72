// The engines of this build, one row each.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::runtime {

struct EngineOptions {
  bool mapped = false;  // weights are read from the mapped checkpoint at every use
  bool on_gpu = false;  // the layer was chosen for an NVIDIA GPU: "auto" takes one that is here
};

struct EngineRow {
  std::string_view name;
  std::string_view what;  // in a few words
  std::unique_ptr<moe::Engine> (*make)(std::shared_ptr<ThreadPool> pool,
                                       const EngineOptions& options);
  bool (*is_built)();
  // Whether it computes on this machine. Errors: cuda.*.
  Result<Done> (*check)();
};

std::span<const EngineRow> engines();
// "auto" is `cuda` for a layer that was chosen for a GPU such as this machine has, else `cpu`.
// Errors: engine.unknown, listing what there is; those of its check.
Result<std::unique_ptr<moe::Engine>> make_engine(std::string_view name,
                                                 std::shared_ptr<ThreadPool> pool,
                                                 const EngineOptions& options = {});

}  // namespace fp4moe::runtime
