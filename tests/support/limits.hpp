// Work in a process of its own, which may run out of memory or descriptors.
#pragma once
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

// There where a sanitizer's runtime is linked. Some programs link sanitized modules to tests that
// are not, so that the compiler's own macros do not tell.
extern "C" {
[[gnu::weak]] void __asan_init();
[[gnu::weak]] void __tsan_init();
[[gnu::weak]] void __msan_init();
}

namespace fp4moe::testing {

// Sanitizers take address space as they like and keep freed memory.
inline bool has_own_memory() {
  return __asan_init == nullptr && __tsan_init == nullptr && __msan_init == nullptr;
}

// The status that `work` returns in a child; 128 + the signal that ended it.
inline int status_in_child(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// From now on this process gets so many bytes of address space more than it has.
inline void limit_memory(std::uint64_t more) {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t max = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit{max, max};
  setrlimit(RLIMIT_AS, &limit);
}

// ... and so many descriptors.
inline void limit_descriptors(unsigned more) {
  const int next = dup(STDERR_FILENO);
  close(next);
  const rlimit limit{static_cast<rlim_t>(next) + more, static_cast<rlim_t>(next) + more};
  setrlimit(RLIMIT_NOFILE, &limit);
}

// The most memory that this process has had at once.
inline std::uint64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace fp4moe::testing
