// Ranks that are processes, started by mpirun. A build without MPI has these functions, too.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "fp4moe/moe/exchange/communicator.hpp"

namespace fp4moe::moe::exchange {

bool has_mpi();
std::string mpi_version();  // of the library in use, one line; empty without MPI

struct MpiOptions : CommunicatorOptions {
  // Starting and ending MPI wait for all ranks, without a limit of their own. When one of them takes
  // longer than this, or is interrupted, on_stuck ends the process: it is called on another thread and
  // must not return. Without it a stuck rank is not noticed, and a rank whose others do not end
  // leaves without ending MPI.
  std::chrono::milliseconds start_deadline{25'000};
  std::chrono::milliseconds close_deadline{600'000};
  std::function<void(const Error&)> on_stuck{};
  int* argc = nullptr;  // of main, for MPI implementations that read it
  char*** argv = nullptr;
};

// Joins the processes that mpirun started; once in the life of a process. Destroying the
// communicator ends MPI, so print errors first: mpirun stops all ranks when one ends with a status
// other than 0. A process started without mpirun is a group of one.
// Errors: mpi.lacking (a build without MPI), mpi.again, mpi.failed, thread.exhausted; to on_stuck:
// mpi.start, mpi.end, interrupted.
Result<std::unique_ptr<Communicator>> open_mpi(const MpiOptions& options = {});

}  // namespace fp4moe::moe::exchange
