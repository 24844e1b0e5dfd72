#include "fp4moe/base/interrupt.hpp"

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <mutex>

#include "fp4moe/base/mapping_guard.hpp"

namespace fp4moe {
namespace {

// Signals belong to the process, and so does this flag. Lock-free: a handler may set it.
std::atomic<bool>& flag() {
  static std::atomic<bool> requested{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
  return requested;
}

extern "C" void note_signal(int) { flag().store(true, std::memory_order_relaxed); }

constexpr std::array kSignals{SIGINT, SIGTERM};

// The host's handlers of these signals before the first guard.
struct Handlers {
  std::mutex mutex{};
  std::size_t guards = 0;
  std::array<struct sigaction, kSignals.size()> before{};
};
Handlers& handlers() {
  static Handlers result;
  return result;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (all.guards++ != 0) return;
  flag().store(false);
  struct sigaction action {};
  action.sa_handler = note_signal;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &all.before[i]);
}

InterruptGuard::~InterruptGuard() {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (--all.guards != 0) return;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &all.before[i], nullptr);
  flag().store(false);
}

bool interrupt_requested() { return flag().load(std::memory_order_relaxed); }

void request_interrupt() { flag().store(true, std::memory_order_relaxed); }

Result<Done> check_interrupt() {
  if (!interrupt_requested()) return check_mappings();
  return error(ErrorCode::interrupted, "interrupted", "stopped before the work was done")
      .try_this("nothing was left behind; run it again");
}

}  // namespace fp4moe
