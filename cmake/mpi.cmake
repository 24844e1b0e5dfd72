# MPI is optional: without it src/fp4moe/moe/exchange/no_mpi.cpp takes the place of mpi.cpp and says
# what to install. FP4MOE_HAS_MPI tells which.
set(wanted ON)
if(FP4MOE_IS_WHEEL)
  set(wanted OFF)
endif()
option(FP4MOE_MPI "Ranks as processes, where MPI is found" ${wanted})
set(FP4MOE_HAS_MPI OFF)
if(FP4MOE_MPI AND NOT CMAKE_CROSSCOMPILING)
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(FP4MOE_HAS_MPI ON)
  else()
    message(STATUS "MPI not found: ranks are threads only (for processes install libopenmpi-dev openmpi-bin)")
  endif()
endif()

set(exchange ${PROJECT_SOURCE_DIR}/src/fp4moe/moe/exchange)
if(FP4MOE_HAS_MPI)
  set_source_files_properties(${exchange}/no_mpi.cpp PROPERTIES HEADER_FILE_ONLY ON)
  # The C interface alone: the C++ one was removed from the standard.
  set_source_files_properties(${exchange}/mpi.cpp PROPERTIES
    COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
  set(mpi_link MPI::MPI_CXX)
else()
  set_source_files_properties(${exchange}/mpi.cpp PROPERTIES HEADER_FILE_ONLY ON)
  set(mpi_link)
endif()
