#include "fp4moe/base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>

namespace fp4moe {

std::size_t available_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return static_cast<std::size_t>(count);
  }
  return std::max<std::size_t>(1, std::thread::hardware_concurrency());
}

Result<Done> parallel_for(std::size_t threads, std::size_t count,
                          const std::function<Result<Done>(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::size_t failed_index = count;
  std::optional<Error> failure;
  std::exception_ptr thrown;  // such as no memory: carried to the caller, as if it did all the work
  const auto drain = [&]() noexcept {
    while (!stop.load(std::memory_order_relaxed)) {
      const std::size_t index = next.fetch_add(1);
      if (index >= count) return;
      try {
        const Result<Done> result = work(index);
        if (result) continue;
        stop = true;
        const std::lock_guard lock(mutex);
        if (index < failed_index) {
          failed_index = index;
          failure = result.why();
        }
      } catch (...) {
        stop = true;
        const std::lock_guard lock(mutex);
        if (!thrown) thrown = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t wanted = std::min(threads, count);
  for (std::size_t i = 1; i < wanted; ++i) {
    try {
      helpers.emplace_back(drain);
    } catch (const std::system_error&) {
      break;  // no more threads to be had: the ones that run do the work
    }
  }
  drain();
  for (std::thread& helper : helpers) helper.join();
  if (thrown) std::rethrow_exception(thrown);
  if (failure) return *failure;
  return Done{};
}

}  // namespace fp4moe
