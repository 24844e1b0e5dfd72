#include "cuda/emulator/block.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace fp4moe::emulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr std::size_t kMbarrierBytes = 8;
thread_local Block* current_block = nullptr;

// Stacks of blocks that have ended, for the next ones.
template <class Stacks>
class StackPool {
 public:
  Stacks take(std::size_t count) {
    const std::scoped_lock lock(mutex_);
    Stacks result;
    for (; result.size() < count && !free_.empty(); free_.pop_back())
      result.push_back(std::move(free_.back()));
    while (result.size() < count)
      result.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    return result;
  }
  void give_back(Stacks stacks) {
    const std::scoped_lock lock(mutex_);
    std::ranges::move(stacks, std::back_inserter(free_));
  }
  static StackPool& only() {
    static StackPool pool;
    return pool;
  }

 private:
  std::mutex mutex_{};
  Stacks free_{};
};

}  // namespace

// --- Threads.

Block& Block::current() { return *current_block; }
Block* Block::current_or_null() { return current_block; }

Block::Block(const Run& run, unsigned index, std::span<std::byte> memory)
    : run_(run),
      index_(index),
      random_(run.seed * 0x9E3779B97F4A7C15u + index),
      fibers_(run.threads),
      warps_((run.threads + 31) / 32),
      races_(memory, run.threads, run.report) {
  all_.clock = races_.begin();
  for (Barrier& barrier : barriers_) barrier.clock = races_.begin();
  for (Warp& warp : warps_)
    for (Turn& turn : warp.turns) turn.clock = races_.begin();
}

void Block::start_fiber(unsigned low, unsigned high) {
  auto* block = reinterpret_cast<Block*>(std::uintptr_t{high} << 32 | low);
  (*block->kernel_)();
  Fiber& fiber = block->fibers_[block->now_];
  block->perform(fiber.copies.take());
  for (const auto& product : fiber.products.take()) product();
  fiber.is_done = true;
  --block->left_;
  // __syncthreads does not wait for threads that have ended.
  if (block->all_.arrived != 0 && block->all_.arrived >= block->left_) block->complete(block->all_);
  block->next();
  std::abort();  // no one comes back
}

void Block::run(const std::function<void()>& kernel) {
  current_block = this;
  kernel_ = &kernel;
  left_ = run_.threads;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  stacks_ = StackPool<std::vector<Stack>>::only().take(run_.threads);
  for (unsigned t = 0; t < run_.threads; ++t) {
    Fiber& fiber = fibers_[t];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks_[t].get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Block::start_fiber), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
  }
  now_ = 0;
  fibers_[0].is_started = true;
  swapcontext(&main_, &fibers_[0].context);
  StackPool<std::vector<Stack>>::only().give_back(std::move(stacks_));
  while (!late_.empty()) perform(late_.size() - 1);
  current_block = nullptr;
}

bool Block::is_ready(unsigned thread) const {
  const Fiber& fiber = fibers_[thread];
  return !fiber.is_done && (fiber.counter == nullptr || *fiber.counter >= fiber.enough);
}

// Mostly the thread behind this one, sometimes any: warps drift apart.
void Block::next() {
  if (left_ == 0) {
    setcontext(&main_);
    return;
  }
  if (!late_.empty() && random_() % 32 == 0) perform(random_() % late_.size());
  for (;;) {
    unsigned to = random_() % 64 == 0 ? static_cast<unsigned>(random_() % run_.threads) : now_;
    for (unsigned i = 0; i < run_.threads; ++i) {
      to = to + 1 == run_.threads ? 0 : to + 1;
      if (!is_ready(to)) continue;
      if (to == now_) return;
      return switch_to(to);
    }
    if (late_.empty()) deadlock();
    perform(random_() % late_.size());
  }
}

// Returns when this thread goes on. Jumps cost no system call, as contexts do.
void Block::switch_to(unsigned thread) {
  if (_setjmp(fibers_[now_].at) != 0) return;
  now_ = thread;
  Fiber& fiber = fibers_[thread];
  if (fiber.is_started) _longjmp(fiber.at, 1);
  fiber.is_started = true;
  setcontext(&fiber.context);
}

void Block::wait_until(const std::uint64_t& counter, std::uint64_t enough) {
  Fiber& fiber = fibers_[now_];
  fiber.counter = &counter;
  fiber.enough = enough;
  while (counter < enough) next();
  fiber.counter = nullptr;
}

void Block::pause() {
  if (random_() % 16 == 0) std::this_thread::yield();
  next();
}

void Block::deadlock() {
  std::string waiting;
  for (unsigned t = 0; t < run_.threads; t += 32)
    if (!fibers_[t].is_done) waiting += fmt::format(" {}", t / 32);
  report("deadlock; warps that have not ended:" + waiting);
  std::abort();
}

// --- Barriers.

void Block::sync() {
  ++all_.arrived;
  all_.waiting.push_back(now_);
  races_.release(now_, all_.clock);
  if (all_.arrived >= left_)
    complete(all_);
  else
    wait_until(all_.uses, all_.uses + 1);
}

Block::Barrier& Block::meet(unsigned barrier, unsigned threads) {
  Barrier& result = barriers_.at(barrier);
  if (result.arrived == 0) result.threads = threads;
  if (result.threads != threads)
    report(fmt::format("barrier {} is used for {} and for {} threads at once", barrier,
                       result.threads, threads));
  if (++result.of_warp[now_ / 32] > 32)
    report(
        fmt::format("warp {} comes to barrier {} again before it is complete", now_ / 32, barrier));
  ++result.arrived;
  races_.release(now_, result.clock);
  return result;
}

void Block::sync(unsigned barrier, unsigned threads) {
  Barrier& at = meet(barrier, threads);
  at.waiting.push_back(now_);
  if (at.arrived == threads)
    complete(at);
  else
    wait_until(at.uses, at.uses + 1);
}

void Block::arrive(unsigned barrier, unsigned threads) {
  Barrier& at = meet(barrier, threads);
  if (at.arrived == threads) complete(at);
}

void Block::complete(Barrier& barrier) {
  for (const auto& [warp, count] : barrier.of_warp)
    if (count % 32 != 0) report(fmt::format("a part of warp {} is at a named barrier", warp));
  for (const unsigned thread : barrier.waiting) races_.acquire(thread, barrier.clock);
  ++barrier.uses;
  barrier.arrived = 0;
  barrier.of_warp.clear();
  barrier.waiting.clear();
  barrier.clock = races_.begin();
}

unsigned Block::lanes() const { return std::min(32u, run_.threads - now_ / 32 * 32); }

Block::Turn& Block::begin_exchange() {
  return warps_[now_ / 32].turns[fibers_[now_].exchanges++ % 2];
}
void Block::end_exchange(Turn& turn) {
  Warp& warp = warps_[now_ / 32];
  if (++turn.arrived != lanes()) return wait_until(warp.exchanges, fibers_[now_].exchanges);
  turn.arrived = 0;
  ++warp.exchanges;
}

void Block::sync_warp() {
  Turn& turn = begin_exchange();
  if (turn.arrived == 0) turn.clock = races_.begin();
  races_.release(now_, turn.clock);
  end_exchange(turn);
  races_.acquire(now_, turn.clock);
}

// --- Mbarriers.

Block::Mbarrier& Block::mbarrier(void* at) {
  const auto found = mbarriers_.find(at);
  if (found == mbarriers_.end()) {
    report("an mbarrier is used that was not initialized");
    std::abort();
  }
  access(Access::atomic, at, kMbarrierBytes);
  return found->second;
}

void Block::mbarrier_init(void* barrier, unsigned arrivals) {
  access(Access::write, barrier, kMbarrierBytes);
  const auto actor = static_cast<unsigned>(mbarriers_.size());
  mbarriers_[barrier] = {.arrivals = arrivals,
                         .pending = arrivals,
                         .actor = actor % Races::kCopyActors,
                         .clock = races_.begin(),
                         .complete = races_.begin()};
}

void Block::update(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.pending = barrier.arrivals;
  barrier.complete = barrier.clock;
  ++barrier.phases;
}

void Block::mbarrier_arrive(void* barrier) {
  Mbarrier& at = mbarrier(barrier);
  races_.release(now_, at.clock);
  --at.pending;
  update(at);
}

void Block::mbarrier_expect(void* barrier, std::uint32_t bytes) {
  mbarrier(barrier).bytes += bytes;
}

void Block::mbarrier_wait(void* barrier, unsigned phase) {
  Mbarrier& at = mbarrier(barrier);
  if (at.phases % 2 == phase) wait_until(at.phases, at.phases + 1);
  races_.acquire(now_, at.complete);
}

// --- Asynchronous work.

void Block::start(Late late) {
  if (run_.copies == Copies::eager)
    late.work();
  else
    late_.push_back(std::move(late));
}

void Block::perform(std::size_t late) {
  const Late one = std::move(late_[late]);
  late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(late));
  one.work();
}

void Block::Copy::perform() const {
  if (!is_done) std::memcpy(to, from, bytes);
}

void Block::perform(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    copy.perform();
    access(Access::write, copy.to, copy.bytes);
  }
}

// Memory must be free when the copy begins, too.
void Block::copy(void* to, const void* from, std::size_t bytes) {
  access(Access::write, to, bytes);
  Copy copy{to, from, bytes, false};
  if (run_.copies == Copies::eager) {
    copy.perform();
    copy.is_done = true;
  }
  fibers_[now_].copies.add(copy);
}

void Block::wait_for_copies(std::size_t pending) {
  for (std::size_t i = late_.size(); i-- > 0;)
    if (late_[i].thread == now_ && !late_[i].is_bulk) perform(i);
  perform(fibers_[now_].copies.wait(pending));
}

void Block::multiply(std::function<void()> work) {
  if (run_.copies == Copies::eager)
    work();
  else
    fibers_[now_].products.add(std::move(work));
}

void Block::wait_for_products(std::size_t pending) {
  for (const auto& product : fibers_[now_].products.wait(pending)) product();
}

void Block::arrive_after_copies(void* barrier, bool is_expected) {
  Mbarrier& at = mbarrier(barrier);
  if (!is_expected) ++at.pending;
  VectorClock issued = races_.begin();
  races_.release(now_, issued);
  start({now_, false, [this, &at, issued, thread = now_, copies = fibers_[now_].copies.take()] {
           races_.copy(at.actor, thread, issued, nullptr, 0, at.clock);
           for (const Copy& copy : copies) {
             copy.perform();
             races_.copy(at.actor, thread, issued, copy.to, copy.bytes, at.clock);
           }
           --at.pending;
           update(at);
         }});
}

void Block::copy_bulk(void* to, const void* from, std::size_t bytes, void* barrier) {
  Mbarrier& at = mbarrier(barrier);
  VectorClock issued = races_.begin();
  races_.release(now_, issued);
  start({now_, true, [this, &at, issued, thread = now_, to, from, bytes] {
           std::memcpy(to, from, bytes);
           races_.copy(at.actor, thread, issued, to, bytes, at.clock);
           at.bytes -= static_cast<std::int64_t>(bytes);
           update(at);
         }});
}

// --- Blocks together.

void launch(const Run& run, const Hooks& hooks) {
  std::atomic<unsigned> next = 0;
  std::vector<std::jthread> threads;
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < (run.is_cooperative ? run.blocks : std::min(run.blocks, cores)); ++i)
    threads.emplace_back([&] {
      for (unsigned block = next++; block < run.blocks; block = next++) {
        hooks.before();
        Block(run, block, hooks.memory()).run(hooks.kernel);
        hooks.after();
      }
    });
}

void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
namespace {
template <class T>
T update(T* to, T value, T (*combine)(T, T)) {
  if (Block* const block = Block::current_or_null()) block->access(Access::atomic, to, sizeof(T));
  std::atomic_ref place(*to);
  T before = place.load();
  while (!place.compare_exchange_weak(before, combine(before, value))) {
  }
  return before;
}
}  // namespace
std::uint32_t add(std::uint32_t* to, std::uint32_t by) {
  return update<std::uint32_t>(to, by, [](std::uint32_t a, std::uint32_t b) { return a + b; });
}
std::uint32_t max(std::uint32_t* to, std::uint32_t value) {
  return update<std::uint32_t>(to, value,
                               [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
}
std::int32_t max(std::int32_t* to, std::int32_t value) {
  return update<std::int32_t>(to, value,
                              [](std::int32_t a, std::int32_t b) { return std::max(a, b); });
}
std::uint32_t load(const std::uint32_t* from) {
  return std::atomic_ref(*const_cast<std::uint32_t*>(from)).load();
}
std::uint64_t load(const std::uint64_t* from) {
  return std::atomic_ref(*const_cast<std::uint64_t*>(from)).load();
}
void store(std::uint64_t* to, std::uint64_t value) { std::atomic_ref(*to).store(value); }

}  // namespace fp4moe::emulator

// --- What compilers call for -fsanitize=thread, which kernels are compiled with: every access of
// memory. The sanitizer's own library is not linked.

// NOLINTBEGIN(bugprone-reserved-identifier): the compilers' names
namespace {
using fp4moe::emulator::Access;
void note(Access kind, const void* at, std::size_t bytes) {
  if (auto* const block = fp4moe::emulator::Block::current_or_null())
    block->access(kind, at, bytes);
}
}  // namespace

#define FP4MOE_ACCESSES(bytes)                                                   \
  void __tsan_read##bytes(void* at) { note(Access::read, at, bytes); }           \
  void __tsan_write##bytes(void* at) { note(Access::write, at, bytes); }         \
  void __tsan_unaligned_read##bytes(void* at) { note(Access::read, at, bytes); } \
  void __tsan_unaligned_write##bytes(void* at) { note(Access::write, at, bytes); }
extern "C" {
void __tsan_init();
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, std::size_t bytes) { note(Access::read, at, bytes); }
void __tsan_write_range(void* at, std::size_t bytes) { note(Access::write, at, bytes); }
FP4MOE_ACCESSES(1)
FP4MOE_ACCESSES(2)
FP4MOE_ACCESSES(4)
FP4MOE_ACCESSES(8)
FP4MOE_ACCESSES(16)
}
#undef FP4MOE_ACCESSES
// NOLINTEND(bugprone-reserved-identifier)
