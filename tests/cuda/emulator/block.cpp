#include "cuda/emulator/block.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace fp4moe::emulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
thread_local Block* current_block = nullptr;

}  // namespace

Block& Block::current() { return *current_block; }

Block::Block(const Run& run, unsigned index)
    : run_(run),
      index_(index),
      random_(run.seed * 0x9E3779B97F4A7C15u + index),
      fibers_(run.threads),
      warps_((run.threads + 31) / 32) {}

void Block::start(unsigned low, unsigned high) {
  auto* block = reinterpret_cast<Block*>(std::uintptr_t{high} << 32 | low);
  (*block->kernel_)();
  Fiber& fiber = block->fibers_[block->now_];
  perform(fiber.open);
  for (const std::vector<Copy>& group : fiber.groups) perform(group);
  fiber.is_done = true;
  --block->left_;
  block->next();
  std::abort();  // no one comes back
}

void Block::run(const std::function<void()>& kernel) {
  current_block = this;
  kernel_ = &kernel;
  left_ = run_.threads;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  for (Fiber& fiber : fibers_) {
    fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&Block::start), 2,
                static_cast<unsigned>(self), static_cast<unsigned>(self >> 32));
  }
  now_ = 0;
  swapcontext(&main_, &fibers_[0].context);
  current_block = nullptr;
}

// Mostly the thread behind this one, sometimes any: warps drift apart.
void Block::next() {
  const unsigned before = now_;
  if (left_ == 0) {
    setcontext(&main_);
    return;
  }
  unsigned to = before;
  if (random_() % 64 == 0) to = static_cast<unsigned>(random_() % run_.threads);
  do to = to + 1 == run_.threads ? 0 : to + 1;
  while (fibers_[to].is_done);
  if (to == before) return;
  now_ = to;
  swapcontext(&fibers_[before].context, &fibers_[to].context);
}

void Block::sync() {
  Fiber& fiber = fibers_[now_];
  const std::uint64_t mine = ++fiber.syncs;
  ++waiting_;
  for (;;) {
    if (syncs_ >= mine) return;
    if (waiting_ >= left_) {  // those that ended wait for nobody
      waiting_ = 0;
      syncs_ = mine;
      return;
    }
    next();
  }
}

Block::Turn& Block::begin_exchange() {
  Turn& turn = warps_[now_ / 32].turns[fibers_[now_].exchanges++ % 2];
  const unsigned lanes = std::min(32u, run_.threads - now_ / 32 * 32);
  if (turn.arrived == lanes) turn.arrived = 0;  // of two turns ago
  return turn;
}
void Block::end_exchange(Turn& turn) {
  const unsigned lanes = std::min(32u, run_.threads - now_ / 32 * 32);
  ++turn.arrived;
  while (turn.arrived != lanes) next();
}

void Block::perform(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
}

void Block::copy(void* to, const void* from, std::size_t bytes) {
  if (run_.copies == Copies::eager)
    std::memcpy(to, from, bytes);
  else
    fibers_[now_].open.push_back({to, from, bytes});
}

void Block::commit() {
  Fiber& fiber = fibers_[now_];
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void Block::wait_for_copies(std::size_t pending) {
  Fiber& fiber = fibers_[now_];
  while (fiber.groups.size() > pending) {
    perform(fiber.groups.front());
    fiber.groups.pop_front();
  }
}

void launch(const Run& run, const std::function<void()>& kernel,
            const std::function<void()>& before, const std::function<void()>& after) {
  std::atomic<unsigned> next = 0;
  std::vector<std::jthread> threads;
  const unsigned count = std::min(run.blocks, std::max(1u, std::thread::hardware_concurrency()));
  for (unsigned i = 0; i < count; ++i)
    threads.emplace_back([&] {
      for (unsigned block = next++; block < run.blocks; block = next++) {
        before();
        Block(run, block).run(kernel);
        after();
      }
    });
}

}  // namespace fp4moe::emulator
