// A block of threads of an emulated device: fibers that take turns in one thread of the system. Turns
// change where threads wait for each other, in an order that a seed decides, so that a missing barrier
// shows.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include <ucontext.h>

namespace fp4moe::emulator {

struct Index {
  unsigned x = 0;
};

// When copies of cp.async happen: at once, or not before a thread waits for them. A kernel must be
// right with both.
enum class Copies { eager, lazy };

struct Run {
  unsigned blocks = 1, threads = 1;
  Copies copies = Copies::lazy;
  std::uint64_t seed = 0;
};

class Block {
 public:
  Block(const Run& run, unsigned index);
  // Runs the kernel in all threads of the block.
  void run(const std::function<void()>& kernel);

  // The block of this thread of the system.
  static Block& current();
  Index thread_index() const { return {now_}; }
  Index block_index() const { return {index_}; }
  Index block_size() const { return {run_.threads}; }
  Index grid_size() const { return {run_.blocks}; }

  // Waits for all threads that have not ended.
  void sync();
  // Waits for all lanes of the warp; what each of them gave, until this lane's next exchange.
  template <class T>
  std::span<const T, 32> exchange(const T& value);

  // Asynchronous copies of the current thread.
  void copy(void* to, const void* from, std::size_t bytes);
  void commit();
  void wait_for_copies(std::size_t pending);

 private:
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  struct Fiber {
    ucontext_t context{};
    std::unique_ptr<std::byte[]> stack{};
    bool is_done = false;
    std::uint64_t syncs = 0, exchanges = 0;  // barriers that it has come to
    std::vector<Copy> open{};                // copies of no group
    std::deque<std::vector<Copy>> groups{};
  };
  // Lanes write into the place of their turn: one lane can be a turn ahead of another.
  static constexpr std::size_t kGivenBytes = 32;
  struct Turn {
    alignas(16) std::array<std::byte, 32 * kGivenBytes> given{};
    unsigned arrived = 0;
  };
  struct Warp {
    std::array<Turn, 2> turns{};
  };
  Turn& begin_exchange();
  void end_exchange(Turn& turn);

  static void start(unsigned low, unsigned high);
  void next();  // another thread goes on
  static void perform(const std::vector<Copy>& copies);

  Run run_;
  unsigned index_, now_ = 0, left_ = 0;
  std::uint64_t syncs_ = 0;  // that are complete
  unsigned waiting_ = 0;     // threads at the barrier
  std::mt19937_64 random_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  ucontext_t main_{};
  const std::function<void()>* kernel_ = nullptr;
};

// Runs all blocks of a launch, a few at a time. `before` and `after` each of them.
void launch(const Run& run, const std::function<void()>& kernel,
            const std::function<void()>& before, const std::function<void()>& after);

// Where addresses of shared memory count from.
std::uintptr_t shared_origin();

template <class T>
std::span<const T, 32> Block::exchange(const T& value) {
  static_assert(sizeof(T) <= kGivenBytes && std::is_trivially_copyable_v<T>);
  Turn& turn = begin_exchange();
  std::memcpy(turn.given.data() + now_ % 32 * sizeof(T), &value, sizeof(T));
  end_exchange(turn);
  return std::span<const T, 32>(reinterpret_cast<const T*>(turn.given.data()), 32);
}

}  // namespace fp4moe::emulator
