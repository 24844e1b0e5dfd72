#include "fp4moe/base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <sched.h>

#include "fp4moe/base/thrown.hpp"

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
  try {
    for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(drain);
  } catch (const std::exception&) {
    // No more threads or memory to be had: the ones that run do the work.
  }
  drain();
  for (std::thread& helper : helpers) helper.join();
  if (thrown) std::rethrow_exception(thrown);
  if (failure) return *failure;
  return Done{};
}

Result<Done> run_together(std::size_t count, const std::function<void(std::size_t)>& work) {
  if (count == 0) return Done{};
  std::mutex mutex;
  std::condition_variable decided;
  std::optional<bool> goes;  // not known before the last thread has started
  std::exception_ptr thrown;
  const auto note = [&]() noexcept {
    const std::lock_guard lock(mutex);
    if (!thrown) thrown = std::current_exception();
  };
  const auto call = [&](std::size_t index) noexcept {
    try {
      work(index);
    } catch (...) {
      note();
    }
  };
  const auto begin = [&](std::size_t index) noexcept {
    std::unique_lock lock(mutex);
    decided.wait(lock, [&] { return goes.has_value(); });
    const bool is_wanted = *goes;
    lock.unlock();
    if (is_wanted) call(index);
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(count - 1);
    for (std::size_t i = 1; i < count; ++i) threads.emplace_back(begin, i);
  } catch (...) {
    note();
  }
  const bool all_there = threads.size() == count - 1;
  {
    const std::lock_guard lock(mutex);
    goes = all_there;
  }
  decided.notify_all();
  if (all_there) call(0);
  for (std::thread& thread : threads) thread.join();
  if (!thrown) return Done{};
  if (all_there) std::rethrow_exception(thrown);
  try {
    std::rethrow_exception(thrown);
  } catch (...) {
    return thrown_error();
  }
}

}  // namespace fp4moe
