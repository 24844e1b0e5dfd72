// Ranks are threads: taken before the module's own mpi.cpp, so that the Python module and the static
// program need no MPI library.
#include "fp4moe/moe/exchange/no_mpi.cpp"  // NOLINT(bugprone-suspicious-include)
