// Work in a process of its own, which may run out of memory or descriptors.
#pragma once
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace fp4moe::testing {

// Sanitizers take address space as they like and keep freed memory.
constexpr bool has_own_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#elif defined(__has_feature)
  return !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer) &&
         !__has_feature(memory_sanitizer);
#else
  return true;
#endif
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
  const rlim_t most = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) + more;
  const rlimit limit{most, most};
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
