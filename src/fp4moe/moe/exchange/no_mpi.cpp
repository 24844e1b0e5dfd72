// Replaces mpi.cpp where MPI was not found.
#include "fp4moe/moe/exchange/mpi.hpp"

namespace fp4moe::moe::exchange {

bool has_mpi() { return false; }
std::string mpi_version() { return {}; }

Result<std::unique_ptr<Communicator>> open_mpi(const MpiOptions&) {
  return error(ErrorCode::unavailable, "mpi.lacking", "this build has no MPI")
      .expects("an MPI library when fp4moe was built", "none")
      .try_this("Install libopenmpi-dev and openmpi-bin, configure again and build");
}

}  // namespace fp4moe::moe::exchange
