// Ranks that are processes, started by mpirun. A build without MPI has these functions, too.
#pragma once
#include <memory>
#include <string>

#include "fp4moe/moe/exchange/communicator.hpp"

namespace fp4moe::moe::exchange {

bool has_mpi();
std::string mpi_version();  // of the library in use, one line; empty without MPI

struct MpiOptions : CommunicatorOptions {
  // How long a rank that is through waits for the others to be so, before it ends alone.
  std::chrono::milliseconds close_deadline{600'000};
  int* argc = nullptr;  // of main, for MPI implementations that read it
  char*** argv = nullptr;
};

// Joins the processes that mpirun started; once in the life of a process. Destroying the
// communicator ends MPI, so print errors first: mpirun stops all ranks when one ends with a status
// other than 0. A process started without mpirun is a group of one.
// Errors: mpi.lacking (a build without MPI), mpi.again, mpi.failed.
Result<std::unique_ptr<Communicator>> open_mpi(const MpiOptions& options = {});

}  // namespace fp4moe::moe::exchange
