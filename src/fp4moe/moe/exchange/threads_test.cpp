// A rank that runs out of memory in a step: the others end, and do not wait for it.
#include "fp4moe/moe/exchange/threads.hpp"

#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/limits.hpp"

namespace fp4moe::moe::exchange::threads_test {

// Allocations that the calling thread still gets; negative: all.
thread_local long allocations_left = -1;

}  // namespace fp4moe::moe::exchange::threads_test

// Inlined, the compiler would take free for a mistake.
// NOLINTBEGIN(misc-new-delete-overloads)
[[gnu::noinline]] void* operator new(std::size_t size) {
  long& left = fp4moe::moe::exchange::threads_test::allocations_left;
  void* const memory = left == 0 ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  if (left > 0) --left;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND(misc-new-delete-overloads)

namespace fp4moe::moe::exchange {
namespace threads_test {

using std::chrono::milliseconds;

enum class First : std::uint8_t { this_rank, other_rank };

// True if the rank had the memory it needed with `allocations`. The process ends by a signal if
// the other rank still waits after ten seconds.
bool step_of_two(long allocations, First first, std::string_view others_step) {
  alarm(10);
  auto ranks = make_threads(2, {.deadline = milliseconds(60'000)});
  const auto wait_for_turn = [](bool goes_first) {
    if (!goes_first) std::this_thread::sleep_for(milliseconds(30));
  };
  const auto step = [](Communicator& rank, std::string_view name) {
    Parcel parcel{.step = name, .send_bytes = {8}, .receive_bytes = {8, 8}};
    if (!reserve(parcel.send, 8)) return;
    (void)rank.all_gather(parcel);
  };
  std::thread other([&, rank = std::move(ranks[1])]() mutable {
    wait_for_turn(first == First::other_rank);
    step(*rank, others_step);
  });
  bool is_done = true;
  wait_for_turn(first == First::this_rank);
  allocations_left = allocations;
  try {
    step(*ranks[0], "step");
  } catch (const std::bad_alloc&) {
    is_done = false;
  }
  allocations_left = -1;
  ranks[0].reset();
  other.join();
  alarm(0);
  return is_done;
}

TEST(Threads, ARankWithoutMemoryDoesNotLeaveTheOthersWaiting) {
  if (!fp4moe::testing::has_own_memory()) GTEST_SKIP() << "a sanitizer has its own threads";
  for (const First first : {First::this_rank, First::other_rank}) {
    for (const std::string_view others_step : {"step", "another step"}) {
      int refused = 0;
      for (long allocations = 0;; ++allocations) {
        const int status = fp4moe::testing::status_in_child(
            [&] { return step_of_two(allocations, first, others_step) ? 0 : 1; });
        ASSERT_TRUE(status == 0 || status == 1)
            << "after " << allocations << " allocations: status " << status;
        if (status == 0) break;
        ++refused;
      }
      EXPECT_GT(refused, 0);
    }
  }
}

}  // namespace threads_test
}  // namespace fp4moe::moe::exchange
