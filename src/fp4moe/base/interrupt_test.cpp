#include "fp4moe/base/interrupt.hpp"

#include <csignal>

#include <gtest/gtest.h>

namespace fp4moe {
namespace interrupt_test {

TEST(Interrupt, WithoutASignalWorkGoesOn) {
  const InterruptGuard guard;

  EXPECT_FALSE(interrupt_requested());
  EXPECT_TRUE(check_interrupt());
}

TEST(Interrupt, ASignalIsNotedAndBecomesExitStatus130) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const InterruptGuard guard;

    std::raise(signal);

    EXPECT_TRUE(interrupt_requested());
    const Result<Done> stopped = check_interrupt();
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.why().code, ErrorCode::interrupted);
    EXPECT_EQ(stopped.why().id, "interrupted");
  }
}

TEST(Interrupt, TheNoteEndsWithItsGuard) {
  {
    const InterruptGuard guard;
    request_interrupt();
    EXPECT_TRUE(interrupt_requested());
  }

  EXPECT_FALSE(interrupt_requested());
}

extern "C" void own_handler(int) {}

TEST(Interrupt, TheHandlersOfTheHostComeBackWithTheLastGuard) {
  const auto before = std::signal(SIGINT, own_handler);
  {
    const InterruptGuard outer;
    {
      const InterruptGuard inner;
      std::raise(SIGINT);
    }
    EXPECT_TRUE(interrupt_requested()) << "the inner guard took the outer one's note along";
  }

  EXPECT_EQ(std::signal(SIGINT, before), own_handler);
}

TEST(InterruptDeathTest, ASecondSignalEndsTheProcess) {
  EXPECT_EXIT(
      {
        const InterruptGuard guard;
        std::raise(SIGINT);
        std::raise(SIGINT);
      },
      ::testing::KilledBySignal(SIGINT), "");
}

}  // namespace interrupt_test
}  // namespace fp4moe
