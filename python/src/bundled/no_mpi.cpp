// Ranks of a Python process are threads: taken before the room's own mpi.cpp, so that the module
// needs no MPI library.
#include "fp4moe/moe/exchange/no_mpi.cpp"  // NOLINT(bugprone-suspicious-include)
