#include "openmp.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include <dlfcn.h>

namespace fp4moe::python {
namespace {

// The kernel's flag of a process that was forked and has called no exec since (PF_FORKNOEXEC), in the
// ninth field of its state. A state that cannot be read counts as a fork's.
bool is_fork() {
  constexpr unsigned long kForkedWithoutExec = 0x40;
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // a program's name may hold blanks
  if (name_end == std::string::npos) return true;
  char state = 0;
  long parent = 0, group = 0, session = 0, terminal = 0, terminal_group = 0;
  unsigned long flags = 0;
  // NOLINTNEXTLINE(cert-err34-c): numbers of the kernel's
  const int read = std::sscanf(line.c_str() + name_end + 1, " %c %ld %ld %ld %ld %ld %lu", &state,
                               &parent, &group, &session, &terminal, &terminal_group, &flags);
  return read != 7 || (flags & kForkedWithoutExec) != 0;
}

// A name as torch's library sees it: of the program and what was loaded before it (LD_PRELOAD), else
// of what torch itself is linked to. Other packages bring OpenMP runtimes of their own.
void* torchs(void* torch, const char* name) {
  void* const global = dlsym(RTLD_DEFAULT, name);
  return global != nullptr ? global : dlsym(torch, name);
}

}  // namespace

std::optional<OpenMp> find_openmp() {
  void* const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  if (torch == nullptr) return std::nullopt;
  // Intel's and LLVM's runtimes have GNU's names, too.
  const auto team = reinterpret_cast<ThreadPool::Team>(torchs(torch, "GOMP_parallel"));
  const auto threads = reinterpret_cast<int (*)()>(torchs(torch, "omp_get_max_threads"));
  dlclose(torch);  // one of its many holders; torch stays
  if (team == nullptr || threads == nullptr || is_fork()) return std::nullopt;
  return OpenMp{.team = team, .threads = static_cast<std::size_t>(std::max(1, threads()))};
}

}  // namespace fp4moe::python
