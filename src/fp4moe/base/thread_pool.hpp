// Threads that stay: work of microseconds is shared without starting or allocating anything.
//
// run() opens a job, takes part in it and closes it; workers join while it is open. One word holds
// all of that, so that no thread can join a job that is being replaced:
//
//   state   generation << 32 | open << 31 | workers inside
//
// Workers look for the next job for a few microseconds, then sleep. Items are handed out in order,
// a few at a time; which thread does one never changes its result. Long lists of neighbors (memory
// that is read from end to end) are handed out in stretches that become shorter towards the end. A
// run inside a run, or while another thread's is under way, is done by its caller alone.
//
// A pool may borrow the threads of a team: two sets of spinning threads compete for the same CPUs.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace fp4moe {

class ThreadPool {
 public:
  // Calls work(data) at once on up to `threads` threads of another pool, the caller among them, and
  // returns when all are back. The signature is that of OpenMP's GOMP_parallel.
  using Team = void (*)(void (*work)(void* data), void* data, unsigned threads, unsigned flags);
  struct Options {
    bool pins = false;    // every worker stays on a CPU of its own; the caller is left alone
    Team team = nullptr;  // instead of workers
  };
  // `threads` counts the caller of run. Fewer are started when the system gives no more.
  explicit ThreadPool(std::size_t threads) : ThreadPool(threads, Options{}) {}
  ThreadPool(std::size_t threads, Options options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t threads() const { return team_ == nullptr ? workers_.size() + 1 : borrowed_; }
  bool is_borrowed() const { return team_ != nullptr; }

  // work(i) for i in [0, count); returns when all are done. What the work throws (no memory) is
  // thrown here once all threads have left it; items that no thread has begun by then are left out.
  template <class Work>
  void run(std::size_t count, const Work& work) {
    run_ranges(count, grain_of(count), [&](std::size_t begin, std::size_t end, std::size_t) {
      for (std::size_t i = begin; i < end; ++i) work(i);
    });
  }

  // work(begin, end, who) for ranges of `grain` items that cover [0, count). `who`, below
  // threads(), is the same in two ranges only if they do not run at once: it numbers scratch
  // memory.
  template <class Work>
  void run_ranges(std::size_t count, std::size_t grain, const Work& work) {
    run_job(job_of(count, std::max<std::size_t>(1, grain), work));
  }

  // The same in stretches: what is left, divided by a few times the threads.
  template <class Work>
  void run_stretches(std::size_t count, const Work& work) {
    run_job(job_of(count, kStretches, work));
  }
  // Items of the longest stretch.
  std::size_t longest_stretch(std::size_t count) const {
    return threads() == 1 ? count : std::max<std::size_t>(1, count / (kShares * threads()));
  }

 private:
  static constexpr std::size_t kStretches = 0;  // as a grain
  static constexpr std::size_t kShares = 4;     // stretches of a thread, if they stayed long

  struct Job {
    std::size_t count = 0, grain = 1;
    const void* work = nullptr;
    void (*call)(const void* work, std::size_t begin, std::size_t end, std::size_t who) = nullptr;
  };
  template <class Work>
  static Job job_of(std::size_t count, std::size_t grain, const Work& work) {
    static_assert(std::is_invocable_v<const Work&, std::size_t, std::size_t, std::size_t>);
    return {.count = count,
            .grain = grain,
            .work = &work,
            .call = [](const void* erased, std::size_t begin, std::size_t end, std::size_t who) {
              (*static_cast<const Work*>(erased))(begin, end, who);
            }};
  }

  std::size_t grain_of(std::size_t count) const { return count / (threads() * 8) + 1; }
  void run_job(const Job& job);
  void run_on_workers(const Job& job);
  void run_on_team(const Job& job);
  void drain(const Job& job, std::size_t who) noexcept;
  bool take(const Job& job, std::size_t& begin, std::size_t& end) noexcept;
  void serve(std::size_t who) noexcept;
  bool join(std::uint64_t& seen) noexcept;
  void sleep(std::uint64_t seen) noexcept;

  Team team_ = nullptr;
  std::size_t borrowed_ = 1;
  std::vector<std::thread> workers_{};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::atomic<std::size_t> sleepers_{0};
  std::mutex mutex_{};
  std::condition_variable wake_{};
  Job job_{};
  std::exception_ptr thrown_{};  // by the work of this job; guarded by mutex_ while it is open
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::size_t> next_{0};
};

}  // namespace fp4moe
