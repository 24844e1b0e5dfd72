// Work shared by a few threads. Items are handed out one by one, so uneven items balance; which
// thread does an item never changes the item's result.
#pragma once
#include <cstddef>
#include <functional>

#include "fp4moe/base/result.hpp"

namespace fp4moe {

// Threads this process may run at once (its CPU affinity), at least 1.
std::size_t available_threads();

// Calls work(i) for i in [0, count) on up to `threads` threads, the caller among them. After a
// failure no new item starts; the error of the lowest failed index is returned.
Result<Done> parallel_for(std::size_t threads, std::size_t count,
                          const std::function<Result<Done>(std::size_t)>& work);

// Calls work(i) for i in [0, count), all at the same time, each on a thread of its own, the caller's
// among them: for work that waits for one another. Nothing is called when the system does not give
// that many threads: thread.exhausted. What the work throws is thrown here, once all have ended.
Result<Done> run_together(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace fp4moe
