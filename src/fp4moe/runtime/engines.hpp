// The engines of this build, one row each.
#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "fp4moe/base/result.hpp"
#include "fp4moe/base/thread_pool.hpp"
#include "fp4moe/moe/experts.hpp"

namespace fp4moe::runtime {

// Weights in a layout, packed once, or read from the mapped checkpoint at every use.
struct EngineOptions {
  bool mapped = false;
};

struct EngineRow {
  std::string_view name;
  std::string_view what;  // in a few words
  std::unique_ptr<moe::Engine> (*make)(std::shared_ptr<ThreadPool> pool,
                                       const EngineOptions& options);
};

std::span<const EngineRow> engines();
// "auto" is the first row. Errors: engine.unknown, listing what there is.
Result<std::unique_ptr<moe::Engine>> make_engine(std::string_view name,
                                                 std::shared_ptr<ThreadPool> pool,
                                                 const EngineOptions& options = {});

}  // namespace fp4moe::runtime
