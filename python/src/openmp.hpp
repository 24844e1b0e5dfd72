// The threads that torch computes on.
//
// After a parallel region, threads of OpenMP look for the next one for some milliseconds before they
// sleep. A second set of threads beside them has to share the CPUs meanwhile, in the middle of
// a model whose attention is torch's and whose experts are ours. So layers borrow torch's.
#pragma once
#include <cstddef>
#include <optional>

#include "fp4moe/base/thread_pool.hpp"

namespace fp4moe::python {

struct OpenMp {
  ThreadPool::Team team = nullptr;
  std::size_t threads = 1;  // as many as torch has, for the calling thread
};

// None: torch is not loaded or has no OpenMP, or this process is a fork, where GNU's OpenMP would
// wait for threads of the parent.
std::optional<OpenMp> find_openmp();

}  // namespace fp4moe::python
