#include "fp4moe/runtime/pool.hpp"

#include <unistd.h>

#include "fp4moe/base/parallel.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::runtime {

std::shared_ptr<ThreadPool> make_pool(std::size_t threads, ThreadPool::Team team) {
  const Result<platform::Settings> settings = platform::read_settings();
  const bool pins = settings && settings->pins.value_or(false);
  return std::make_shared<ThreadPool>(
      threads == 0 ? available_threads() : threads,
      ThreadPool::Options{.pins = pins, .team = pins ? nullptr : team});
}

std::shared_ptr<ThreadPool> Pools::get(std::size_t threads, ThreadPool::Team team) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<ThreadPool>& kept = pools_[{getpid(), threads, team}];
  std::shared_ptr<ThreadPool> pool = kept.lock();
  if (!pool) kept = pool = make_pool(threads, team);
  return pool;
}

}  // namespace fp4moe::runtime
