// An interrupt (Ctrl-C, SIGTERM) as a flag that long work checks between its steps, so
// that it can leave nothing half done behind.
#pragma once
#include "fp4moe/base/result.hpp"

namespace fp4moe {

// While one lives, SIGINT and SIGTERM only take note; a second signal ends the process. The last
// one to go puts back what the host had, an interpreter's handlers, say. Meant for whoever runs a
// command; the library itself never installs handlers.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();
};

bool interrupt_requested();
void request_interrupt();  // what the signal does; also for hosts that cancel work themselves

// Fails with ErrorCode::interrupted once the flag is set, and with file.changed when a mapped file
// has become shorter (mapping_guard.hpp).
Result<Done> check_interrupt();

}  // namespace fp4moe
