// A block of threads of an emulated device: fibers in one thread of the system. Another one goes on
// where a fiber waits, in an order that a seed decides, so that a missing barrier shows.
#pragma once
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ucontext.h>

#include "cuda/emulator/races.hpp"

namespace fp4moe::emulator {

struct Index {
  unsigned x = 0;
};

// When asynchronous work happens (copies, wgmma): at once, or as late as it may. A kernel must be right
// with both.
enum class Copies { eager, lazy };

struct Run {
  unsigned blocks = 1, threads = 1;
  bool is_cooperative = false;  // all blocks run at the same time
  Copies copies = Copies::lazy;
  std::uint64_t seed = 0;
  // Says what a kernel did wrong; the block goes on, but for a deadlock.
  std::function<void(const std::string&)> report{};
};

// Asynchronous work of a thread, in groups. A group is complete when the thread has waited for it.
template <class Work>
class AsyncGroups {
 public:
  void add(Work work) { open_.push_back(std::move(work)); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }
  // The work to be done until at most `pending` groups are incomplete, in order.
  std::vector<Work> wait(std::size_t pending) {
    std::vector<Work> result;
    for (; groups_.size() > pending; groups_.pop_front())
      std::ranges::move(groups_.front(), std::back_inserter(result));
    return result;
  }
  std::vector<Work> take() {
    commit();
    return wait(0);
  }

 private:
  std::vector<Work> open_{};  // of no group
  std::deque<std::vector<Work>> groups_{};
};

class Block {
 public:
  // `memory`: dynamic shared memory; races in it are looked for.
  Block(const Run& run, unsigned index, std::span<std::byte> memory);
  // Runs the kernel in all threads of the block.
  void run(const std::function<void()>& kernel);

  // The block of this thread of the system.
  static Block& current();
  static Block* current_or_null();
  Index thread_index() const { return {now_}; }
  Index block_index() const { return {index_}; }
  Index block_size() const { return {run_.threads}; }
  Index grid_size() const { return {run_.blocks}; }

  // Waits for all threads that have not ended.
  void sync();
  // Named barriers: `threads` threads of the block, whole warps.
  void sync(unsigned barrier, unsigned threads);
  void arrive(unsigned barrier, unsigned threads);

  // Waits for all lanes of the warp; what each of them gave, until this lane's next exchange. Only
  // sync_warp orders accesses of memory.
  template <class T>
  std::span<const T, 32> exchange(const T& value);
  void sync_warp();
  // The same for tensor instructions, which all lanes issue together: what lanes loaded before is an
  // operand.
  template <class T>
  std::span<const T, 32> exchange_operands(const T& value);

  // An mbarrier by its address.
  void mbarrier_init(void* barrier, unsigned arrivals);
  void mbarrier_arrive(void* barrier);
  void mbarrier_expect(void* barrier, std::uint32_t bytes);
  void mbarrier_wait(void* barrier, unsigned phase);

  // Asynchronous copies of the current thread.
  void copy(void* to, const void* from, std::size_t bytes);
  void commit_copies() { fibers_[now_].copies.commit(); }
  void wait_for_copies(std::size_t pending);
  // Asynchronous tensor instructions of the current thread.
  void multiply(std::function<void()> work);
  void commit_products() { fibers_[now_].products.commit(); }
  void wait_for_products(std::size_t pending);
  // Arrives at an mbarrier when this thread's copies so far are complete. `is_expected`: it is one of
  // the arrivals that the mbarrier counts.
  void arrive_after_copies(void* barrier, bool is_expected);
  // One copy, whose bytes an mbarrier counts.
  void copy_bulk(void* to, const void* from, std::size_t bytes, void* barrier);

  // Another thread goes on, or another block: this one waits for memory that others write.
  void pause();

  void access(Access kind, const void* at, std::size_t bytes) {
    races_.access(now_, kind, at, bytes);
  }
  void report(const std::string& sentence) const { run_.report(sentence); }

 private:
  using Stack = std::unique_ptr<std::byte[]>;
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
    bool is_done;  // only its end is not known yet
    void perform() const;
  };
  struct Fiber {
    ucontext_t context{};  // at its begin
    std::jmp_buf at{};     // where it waits
    bool is_started = false, is_done = false;
    const std::uint64_t* counter = nullptr;  // waits until it is `enough`
    std::uint64_t enough = 0;
    std::uint64_t exchanges = 0;  // that it has come to
    AsyncGroups<Copy> copies{};
    AsyncGroups<std::function<void()>> products{};
  };
  // Lanes write into the place of their turn: one lane can be a turn ahead of another.
  static constexpr std::size_t kGivenBytes = 32;
  struct Turn {
    alignas(16) std::array<std::byte, 32 * kGivenBytes> given{};
    VectorClock clock{};                    // of sync_warp
    std::array<std::uint32_t, 32> ticks{};  // of exchange_operands
    unsigned arrived = 0;
  };
  struct Warp {
    std::array<Turn, 2> turns{};
    std::uint64_t exchanges = 0;  // that are complete
  };
  struct Barrier {
    std::uint64_t uses = 0;  // that are complete
    unsigned threads = 0;    // of this use
    unsigned arrived = 0;
    std::map<unsigned, unsigned> of_warp{};  // arrived threads
    std::vector<unsigned> waiting{};
    VectorClock clock{};
  };
  struct Mbarrier {
    unsigned arrivals = 0, pending = 0;
    std::int64_t bytes = 0;    // that are expected
    std::uint64_t phases = 0;  // that are complete
    unsigned actor = 0;        // of its copies
    VectorClock clock{}, complete{};
  };
  // Copies that end when they like.
  struct Late {
    unsigned thread = 0;
    bool is_bulk = false;
    std::function<void()> work{};
  };

  Turn& begin_exchange();
  void end_exchange(Turn& turn);
  unsigned lanes() const;
  Barrier& meet(unsigned barrier, unsigned threads);
  void complete(Barrier& barrier);
  Mbarrier& mbarrier(void* at);
  void update(Mbarrier& barrier);
  void start(Late late);
  void perform(std::size_t late);
  void perform(const std::vector<Copy>& copies);

  static void start_fiber(unsigned low, unsigned high);
  void wait_until(const std::uint64_t& counter, std::uint64_t enough);
  void next();  // another thread goes on
  void switch_to(unsigned thread);
  bool is_ready(unsigned thread) const;
  [[noreturn]] void deadlock();

  Run run_;
  unsigned index_, now_ = 0, left_ = 0;
  Barrier all_{};
  std::array<Barrier, 16> barriers_{};
  std::map<void*, Mbarrier> mbarriers_{};
  std::vector<Late> late_{};
  std::mt19937_64 random_;
  std::vector<Fiber> fibers_;
  std::vector<Stack> stacks_;
  std::vector<Warp> warps_;
  Races races_;
  ucontext_t main_{};
  const std::function<void()>* kernel_ = nullptr;
};

// Runs all blocks of a launch, a few at a time unless it is cooperative. `before` and `after` each of
// them; `memory` of the thread of the system that runs it.
struct Hooks {
  std::function<void()> kernel, before, after;
  std::function<std::span<std::byte>()> memory;
};
void launch(const Run& run, const Hooks& hooks);

// Where addresses of shared memory count from.
std::uintptr_t shared_origin();

// What blocks use together.
void fence();
std::uint32_t add(std::uint32_t* to, std::uint32_t by);
std::uint32_t max(std::uint32_t* to, std::uint32_t value);
std::int32_t max(std::int32_t* to, std::int32_t value);
std::uint32_t load(const std::uint32_t* from);
std::uint64_t load(const std::uint64_t* from);
void store(std::uint64_t* to, std::uint64_t value);

template <class T>
std::span<const T, 32> Block::exchange(const T& value) {
  static_assert(sizeof(T) <= kGivenBytes && std::is_trivially_copyable_v<T>);
  Turn& turn = begin_exchange();
  std::memcpy(turn.given.data() + now_ % 32 * sizeof(T), &value, sizeof(T));
  end_exchange(turn);
  return std::span<const T, 32>(reinterpret_cast<const T*>(turn.given.data()), 32);
}
template <class T>
std::span<const T, 32> Block::exchange_operands(const T& value) {
  static_assert(sizeof(T) <= kGivenBytes && std::is_trivially_copyable_v<T>);
  Turn& turn = begin_exchange();
  std::memcpy(turn.given.data() + now_ % 32 * sizeof(T), &value, sizeof(T));
  turn.ticks[now_ % 32] = races_.tick(now_);
  end_exchange(turn);
  races_.join_ticks(now_, turn.ticks);
  return std::span<const T, 32>(reinterpret_cast<const T*>(turn.given.data()), 32);
}

}  // namespace fp4moe::emulator
