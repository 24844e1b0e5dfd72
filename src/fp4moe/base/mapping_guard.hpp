// Mapped files that others shorten while they are read.
//
// The system answers a read behind a file's new end with SIGBUS, which ends the process without a
// word. While a MappingGuard lives, such a read gives zeros instead, and the file is noted: from
// then on check_mappings() fails with `file.changed`. Long work asks between its steps (as part of
// check_interrupt) and nothing is committed before asking (AtomicFile, AtomicFolder), so the zeros
// reach no output.
#pragma once
#include <cstddef>
#include <string>

#include "fp4moe/base/result.hpp"

namespace fp4moe {

// For programs that run commands; the library itself never installs handlers. The last guard
// restores the host's handler. A bus error elsewhere is the host's.
class MappingGuard {
 public:
  MappingGuard();
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;
  ~MappingGuard();
};

// A watched mapping of a file. Without a guard it has no effect.
class WatchedMapping {
 public:
  WatchedMapping() = default;
  WatchedMapping(const void* begin, std::size_t bytes, const std::string& path);
  WatchedMapping(WatchedMapping&& other) noexcept;
  WatchedMapping& operator=(WatchedMapping&& other) noexcept;
  WatchedMapping(const WatchedMapping&) = delete;
  WatchedMapping& operator=(const WatchedMapping&) = delete;
  ~WatchedMapping();

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  std::size_t slot_ = kNone;
};

// Fails with file.changed once a mapped file turned out to be shorter than it was.
Result<Done> check_mappings();

// The same error for the system's EFAULT, which it gives where it reads such memory itself.
Error mapping_changed(const void* address);

}  // namespace fp4moe
