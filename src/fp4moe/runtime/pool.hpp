// Threads for layers. Whether they are pinned is the environment's to say.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include <sys/types.h>

#include "fp4moe/base/thread_pool.hpp"

namespace fp4moe::runtime {

// 0: all that this process may use. The threads are a team's where there is one; a team's are never
// pinned.
std::shared_ptr<ThreadPool> make_pool(std::size_t threads, ThreadPool::Team team = nullptr);

// Pools that layers share, one for each number of threads, as long as a layer holds it: layers of a
// model compute one after the other. Those that do not, too: who finds the threads busy works
// alone.
class Pools {
 public:
  std::shared_ptr<ThreadPool> get(std::size_t threads, ThreadPool::Team team = nullptr);

 private:
  std::mutex mutex_{};
  // By process, too: a fork has none of its parent's threads.
  std::map<std::tuple<pid_t, std::size_t, ThreadPool::Team>, std::weak_ptr<ThreadPool>> pools_{};
};

}  // namespace fp4moe::runtime
