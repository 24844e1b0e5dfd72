#include "fp4moe/base/interrupt.hpp"

#include <atomic>
#include <csignal>

namespace fp4moe {
namespace {

// Signals belong to the process, and so does this flag. Lock-free: a handler may set it.
std::atomic<bool>& flag() {
  static std::atomic<bool> requested{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
  return requested;
}

extern "C" void note_signal(int) { flag().store(true, std::memory_order_relaxed); }

void handle(int signal) {
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  flag().store(false);
  handle(SIGINT);
  handle(SIGTERM);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  flag().store(false);
}

bool interrupt_requested() { return flag().load(std::memory_order_relaxed); }

void request_interrupt() { flag().store(true, std::memory_order_relaxed); }

Result<Done> check_interrupt() {
  if (!interrupt_requested()) return Done{};
  return error(ErrorCode::interrupted, "interrupted", "stopped before the work was done")
      .try_this("nothing was left behind; run it again");
}

}  // namespace fp4moe
