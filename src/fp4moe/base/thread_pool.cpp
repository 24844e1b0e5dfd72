#include "fp4moe/base/thread_pool.hpp"

#include <system_error>

namespace fp4moe {
namespace {

constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
constexpr std::uint64_t kInside = kOpen - 1;
constexpr std::uint64_t kGeneration = std::uint64_t{1} << 32;
constexpr int kLooks = 10000;  // at the state before sleeping: a few microseconds

constexpr std::uint64_t generation(std::uint64_t state) { return state / kGeneration; }

}  // namespace

ThreadPool::ThreadPool(std::size_t threads) {
  for (std::size_t who = 1; who < threads; ++who) {
    try {
      workers_.emplace_back([this, who] { serve(who); });
    } catch (const std::system_error&) {
      break;  // no more threads to be had: the ones that run do the work
    }
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  { const std::lock_guard lock(mutex_); }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::drain(const Job& job, std::size_t who) noexcept {
  for (;;) {
    const std::size_t begin = next_.fetch_add(job.grain, std::memory_order_relaxed);
    if (begin >= job.count) return;
    job.call(job.work, begin, std::min(job.count, begin + job.grain), who);
  }
}

void ThreadPool::run_job(const Job& job) noexcept {
  if (job.count == 0) return;
  const bool alone = workers_.empty() || job.count <= job.grain;
  if (alone || busy_.exchange(true, std::memory_order_acquire)) {
    for (std::size_t begin = 0; begin < job.count; begin += job.grain)
      job.call(job.work, begin, std::min(job.count, begin + job.grain), 0);
    return;
  }
  job_ = job;  // nobody is inside: the last job was closed and left
  next_.store(0, std::memory_order_relaxed);
  const std::uint64_t closed = state_.load(std::memory_order_relaxed);
  state_.store((generation(closed) + 1) * kGeneration | kOpen);
  if (sleepers_.load() > 0) {
    {
      const std::lock_guard lock(mutex_);  // a worker between its last look and its sleep waits
    }
    wake_.notify_all();
  }
  drain(job, 0);
  state_.fetch_and(~kOpen, std::memory_order_relaxed);
  for (int looks = 0; (state_.load(std::memory_order_acquire) & kInside) != 0; ++looks)
    if (looks > kLooks) std::this_thread::yield();
  busy_.store(false, std::memory_order_release);
}

// Enters the open job, if there is one that this worker has not seen.
bool ThreadPool::join(std::uint64_t& seen) noexcept {
  std::uint64_t state = state_.load(std::memory_order_relaxed);
  while ((state & kOpen) != 0 && generation(state) != seen) {
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) continue;
    seen = generation(state);
    return true;
  }
  return false;
}

void ThreadPool::sleep(std::uint64_t seen) noexcept {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] {
    const std::uint64_t state = state_.load();
    return stop_.load() || ((state & kOpen) != 0 && generation(state) != seen);
  });
  sleepers_.fetch_sub(1);
}

void ThreadPool::serve(std::size_t who) noexcept {
  std::uint64_t seen = 0;
  for (;;) {
    int looks = 0;
    while (!join(seen)) {
      if (stop_.load(std::memory_order_relaxed)) return;
      if (++looks > kLooks) sleep(seen);
    }
    drain(job_, who);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace fp4moe
