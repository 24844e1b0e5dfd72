// What the emulator finds in a block, and what it does not: barriers of a part of a block, which
// compute-sanitizer's racecheck and synccheck misjudge, are followed.
#include "cuda/emulator/races.hpp"

#include <array>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/emulator/block.hpp"

namespace fp4moe::emulator {
namespace races_test {

using Memory = std::array<std::byte, 256>;

// The sentences about one block of 128 threads.
std::vector<std::string> found_in(const std::function<void(Memory&, unsigned thread)>& kernel,
                                  Copies copies = Copies::lazy) {
  std::vector<std::string> result;
  alignas(16) Memory memory{};
  launch({.threads = 128,
          .copies = copies,
          .report = [&](const std::string& what) { result.push_back(what); }},
         {.kernel = [&] { kernel(memory, Block::current().thread_index().x); },
          .before = [] {},
          .after = [] {},
          .memory = [&] { return std::span<std::byte>(memory); }});
  return result;
}

void write(const std::byte& at) { Block::current().access(Access::write, &at, 1); }
void read(const std::byte& at) { Block::current().access(Access::read, &at, 1); }

// The first half of the block writes, the second reads.
std::vector<std::string> handed_over(const std::function<void()>& writers,
                                     const std::function<void()>& readers) {
  return found_in([&](Memory& memory, unsigned thread) {
    if (thread < 64) {
      write(memory[thread]);
      writers();
    } else {
      readers();
      read(memory[thread - 64]);
      read(memory[127 - thread]);
    }
  });
}

TEST(Races, WhatNothingOrdersIsFound) {
  const auto found = handed_over([] {}, [] {});
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found[0].find("and nothing orders them") != std::string::npos) << found[0];
}

TEST(Races, BarriersOrder) {
  const auto sync = [] { Block::current().sync(); };
  EXPECT_TRUE(handed_over(sync, sync).empty());
}

// The probe of docs/cuda-kernels.md.
TEST(Races, BarriersOfAPartOfTheBlockOrder) {
  const auto sync = [] { Block::current().sync(1, 128); };
  const auto arrive = [] { Block::current().arrive(1, 128); };
  EXPECT_TRUE(handed_over(sync, sync).empty());
  EXPECT_TRUE(handed_over(arrive, sync).empty());
  EXPECT_FALSE(handed_over(arrive, arrive).empty());  // readers do not wait
}

// Readers arrive, and the writers wait for them, or do not.
TEST(Races, ReadersMustBeWaitedForToo) {
  for (const bool waits : {true, false}) {
    const auto found = found_in([&](Memory& memory, unsigned thread) {
      if (thread < 32) {
        if (waits) Block::current().sync(2, 128);
        if (thread == 0) write(memory[0]);
      } else {
        read(memory[0]);
        if (waits) Block::current().arrive(2, 128);
      }
    });
    EXPECT_EQ(found.empty(), waits);
  }
}

TEST(Races, ShufflesOrderNoMemory) {
  const auto exchanged = [](bool syncs) {
    return found_in([=](Memory& memory, unsigned thread) {
      if (thread % 32 == 0) write(memory[thread]);
      if (syncs)
        Block::current().sync_warp();
      else
        Block::current().exchange(thread);  // a shuffle
      read(memory[thread / 32 * 32]);
    });
  };
  EXPECT_TRUE(exchanged(true).empty());
  EXPECT_FALSE(exchanged(false).empty());
}

TEST(Races, AtomicUpdatesAreNoRaceAmongThemselves) {
  for (const bool one_reads : {false, true}) {
    const auto found = found_in([=](Memory& memory, unsigned thread) {
      Block::current().access(Access::atomic, memory.data(), 4);
      if (one_reads && thread == 100) read(memory[0]);
    });
    EXPECT_EQ(found.empty(), !one_reads);
  }
}

// A copy, and readers that wait for its mbarrier or do not; and a second copy into the same place,
// which waits for the readers or does not.
TEST(Races, CopiesAreOrderedByTheirMbarriers) {
  const auto copied = [](Copies copies, bool readers_wait, bool second_waits) {
    static const std::array<std::byte, 16> source{std::byte{1}};
    return found_in(
        [=](Memory& memory, unsigned thread) {
          Block& block = Block::current();
          std::byte *const full = &memory[128], *const empty = &memory[136];
          std::byte* const second = &memory[144];
          if (thread == 0) {
            block.mbarrier_init(full, 1);
            block.mbarrier_init(second, 1);
            block.mbarrier_init(empty, 96);
          }
          block.sync();
          if (thread == 0) {
            for (std::byte* const barrier : {full, second}) {
              if (barrier == second && second_waits) block.mbarrier_wait(empty, 0);
              block.mbarrier_expect(barrier, 16);
              block.mbarrier_arrive(barrier);
              block.copy_bulk(memory.data(), source.data(), 16, barrier);
              block.mbarrier_wait(barrier, 0);
            }
          } else if (thread >= 32) {
            if (readers_wait) block.mbarrier_wait(full, 0);
            read(memory[thread % 16]);
            block.mbarrier_arrive(empty);
          }
        },
        copies);
  };
  for (const Copies copies : {Copies::eager, Copies::lazy}) {
    EXPECT_TRUE(copied(copies, true, true).empty());
    EXPECT_FALSE(copied(copies, false, true).empty());
    EXPECT_FALSE(copied(copies, true, false).empty());
  }
}

// Copies of single threads: complete for others when they arrive at an mbarrier, not before.
TEST(Races, SmallCopiesAreOrderedByTheirMbarriers) {
  const auto copied = [](Copies copies, bool arrives_behind) {
    static const std::array<std::byte, 64> source{};
    return found_in(
        [=](Memory& memory, unsigned thread) {
          Block& block = Block::current();
          std::byte* const full = &memory[128];
          if (thread == 0) block.mbarrier_init(full, 16);
          block.sync();
          if (thread < 16) {
            block.copy(&memory[thread * 4], &source[thread * 4], 4);
            if (arrives_behind)
              block.arrive_after_copies(full, true);
            else
              block.mbarrier_arrive(full);
          } else if (thread >= 64) {
            block.mbarrier_wait(full, 0);
            read(memory[thread - 64]);
          }
        },
        copies);
  };
  EXPECT_TRUE(copied(Copies::eager, true).empty());
  EXPECT_TRUE(copied(Copies::lazy, true).empty());
  EXPECT_FALSE(copied(Copies::lazy, false).empty());
}

TEST(Races, PartsOfWarpsAtABarrierAreFound) {
  const auto found = found_in([](Memory&, unsigned thread) {
    if (thread % 2 == 0) Block::current().sync(3, 64);
  });
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found[0].find("a part of warp") != std::string::npos) << found[0];
}

TEST(RacesDeathTest, DeadlocksEndTheProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto meet = [] {
    launch({.threads = 64, .report = [](const std::string& what) { fputs(what.c_str(), stderr); }},
           {.kernel =
                [] {
                  if (Block::current().thread_index().x < 32) Block::current().sync(1, 64);
                },
            .before = [] {},
            .after = [] {},
            .memory = [] { return std::span<std::byte>(); }});
  };
  EXPECT_DEATH(meet(), "deadlock; warps that have not ended: 0");
}

}  // namespace races_test
}  // namespace fp4moe::emulator
