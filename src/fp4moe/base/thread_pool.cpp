#include "fp4moe/base/thread_pool.hpp"

#include <exception>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace fp4moe {
namespace {

constexpr std::uint64_t kOpen = std::uint64_t{1} << 31;
constexpr std::uint64_t kInside = kOpen - 1;
constexpr std::uint64_t kGeneration = std::uint64_t{1} << 32;
constexpr int kLooks = 10000;  // at the state before sleeping: a few microseconds

constexpr std::uint64_t generation(std::uint64_t state) { return state / kGeneration; }

// Worker `who` to the CPU of that number among those the process may use. With more workers
// than CPUs no thread is pinned: two on one CPU would wait for each other.
void pin(std::thread& worker, std::size_t who, std::size_t threads) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  if (static_cast<std::size_t>(CPU_COUNT(&allowed)) < threads) return;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || who-- != 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    pthread_setaffinity_np(worker.native_handle(), sizeof own, &own);  // may fail
    return;
  }
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads, Options options)
    : team_(options.team), borrowed_(std::max<std::size_t>(1, threads)) {
  if (team_ != nullptr) return;
  try {
    for (std::size_t who = 1; who < threads; ++who) {
      workers_.emplace_back([this, who] { serve(who); });
      if (options.pins) pin(workers_.back(), who, threads);
    }
  } catch (const std::exception&) {
    // No more threads or memory to be had: the ones that run do the work.
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  { const std::lock_guard lock(mutex_); }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::take(const Job& job, std::size_t& begin, std::size_t& end) noexcept {
  if (job.grain != kStretches) {
    begin = next_.fetch_add(job.grain, std::memory_order_relaxed);
    end = std::min(job.count, begin + job.grain);
    return begin < job.count;
  }
  begin = next_.load(std::memory_order_relaxed);
  do {
    if (begin >= job.count) return false;
    end = begin + longest_stretch(job.count - begin);
  } while (!next_.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  return true;
}

void ThreadPool::drain(const Job& job, std::size_t who) noexcept {
  try {
    for (std::size_t begin = 0, end = 0; take(job, begin, end);)
      job.call(job.work, begin, end, who);
  } catch (...) {
    next_.store(job.count, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (!thrown_) thrown_ = std::current_exception();
  }
}

void ThreadPool::run_job(const Job& job) {
  if (job.count == 0) return;
  const bool alone = threads() == 1 || job.count <= std::max<std::size_t>(1, job.grain);
  if (alone || busy_.exchange(true, std::memory_order_acquire)) {
    const std::size_t step = job.grain == kStretches ? longest_stretch(job.count) : job.grain;
    for (std::size_t begin = 0; begin < job.count; begin += step)
      job.call(job.work, begin, std::min(job.count, begin + step), 0);
    return;
  }
  next_.store(0, std::memory_order_relaxed);
  if (team_ != nullptr)
    run_on_team(job);
  else
    run_on_workers(job);
  const std::exception_ptr thrown = std::exchange(thrown_, nullptr);
  busy_.store(false, std::memory_order_release);
  if (thrown) std::rethrow_exception(thrown);
}

// The team's threads are counted as they come: it may send fewer than it was asked for.
void ThreadPool::run_on_team(const Job& job) {
  struct Call {
    ThreadPool& pool;
    const Job& job;
    std::atomic<std::size_t> arrived{0};
  } call{*this, job};
  const auto take_part = [](void* data) {
    Call& mine = *static_cast<Call*>(data);
    const std::size_t who = mine.arrived.fetch_add(1, std::memory_order_relaxed);
    if (who < mine.pool.threads()) mine.pool.drain(mine.job, who);
  };
  team_(take_part, &call, static_cast<unsigned>(borrowed_), 0);
}

void ThreadPool::run_on_workers(const Job& job) {
  job_ = job;  // no worker is inside: the last job was closed and left
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
