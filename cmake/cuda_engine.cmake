# The engine on GPUs. Its stages have names for profilers where the CUDA kernels are built and NVTX's
# headers are found; else src/fp4moe/moe/cuda/no_ranges.cpp takes the place of ranges_nvtx.cpp. NVTX
# is headers alone: a profiler brings the rest.
set(cuda_engine ${PROJECT_SOURCE_DIR}/src/fp4moe/moe/cuda)
if(FP4MOE_HAS_CUDA)
  find_path(FP4MOE_NVTX nvtx3/nvToolsExt.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda
            PATH_SUFFIXES include DOC "Headers of NVTX")
endif()
if(FP4MOE_HAS_CUDA AND FP4MOE_NVTX)
  set_source_files_properties(${cuda_engine}/no_ranges.cpp PROPERTIES HEADER_FILE_ONLY ON)
  set_source_files_properties(${cuda_engine}/ranges_nvtx.cpp PROPERTIES
    COMPILE_OPTIONS "-isystem;${FP4MOE_NVTX}" SKIP_UNITY_BUILD_INCLUSION ON)
else()
  set_source_files_properties(${cuda_engine}/ranges_nvtx.cpp PROPERTIES HEADER_FILE_ONLY ON)
endif()

fp4moe_module(moe/cuda DEPENDS moe/reference kernels/cuda)
if(FP4MOE_TESTS)  # with a library that stands in for the driver
  target_compile_definitions(moe_cuda_test PRIVATE FP4MOE_FAKE_DRIVER="$<TARGET_FILE:fp4moe_fake_driver>")
  add_dependencies(moe_cuda_test fp4moe_fake_driver)
endif()
