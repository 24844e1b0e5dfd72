# Kernels for NVIDIA GPUs. nvcc compiles each src/fp4moe/kernels/cuda/sm90/KERNEL/*.cu to machine code
# for Hopper (a cubin), and src/fp4moe/kernels/cuda/sm80/KERNEL/*.cu and the sources that both families
# share to machine code for several architectures and PTX for the others (a fat binary). They become
# bytes of the library; the driver loads them when the program runs (kernels/cuda/driver.hpp). Host code needs neither nvcc nor CUDA's headers and libraries, so one
# program runs with and without a driver. FP4MOE_HAS_CUDA tells whether the kernels are built.
set(FP4MOE_CUDA OFF CACHE STRING "CUDA kernels: OFF, ON, or AUTO (where nvcc is found)")
set_property(CACHE FP4MOE_CUDA PROPERTY STRINGS OFF ON AUTO)
set(FP4MOE_CUBINS "" CACHE PATH "Folder of cubins compiled elsewhere (its target cubins), instead of nvcc")
set(FP4MOE_CUDA_ARCHITECTURES 80 86 89 120 CACHE STRING
    "Architectures since 80 with machine code of their own; the driver compiles PTX for the others")
set(FP4MOE_HAS_CUDA OFF)

if(FP4MOE_CUBINS)
  set(FP4MOE_HAS_CUDA ON)
elseif(FP4MOE_CUDA)
  find_program(FP4MOE_NVCC nvcc HINTS ${CUDAToolkit_ROOT} ENV CUDAToolkit_ROOT ENV CUDA_HOME
               PATHS /usr/local/cuda PATH_SUFFIXES bin DOC "CUDA's compiler, 12.8 or newer")
  if(FP4MOE_NVCC)
    set(FP4MOE_HAS_CUDA ON)
    execute_process(COMMAND ${FP4MOE_NVCC} --version OUTPUT_VARIABLE nvcc_says RESULT_VARIABLE failed)
    if(failed OR NOT nvcc_says MATCHES "release ([0-9.]+)" OR CMAKE_MATCH_1 VERSION_LESS 12.8)
      fp4moe_stop("${FP4MOE_NVCC} is no nvcc of CUDA 12.8 or newer: tools/nvcc.sh FOLDER installs one and prints its path "
                  "for FP4MOE_NVCC")
    endif()
  elseif(NOT FP4MOE_CUDA STREQUAL "AUTO")
    fp4moe_stop("FP4MOE_CUDA=${FP4MOE_CUDA} needs nvcc: put it on PATH, set FP4MOE_NVCC to it "
                "(tools/nvcc.sh installs one), or set FP4MOE_CUBINS")
  endif()
endif()

set(cuda_folder ${PROJECT_SOURCE_DIR}/src/fp4moe/kernels/cuda)
set(cuda_generated ${PROJECT_BINARY_DIR}/generated/cubins)
set(nvcc_flags -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -Werror all-warnings
    -I ${PROJECT_SOURCE_DIR}/src)
set(nvcc_flags_sm90 -gencode=arch=compute_90a,code=sm_90a -cubin)
if(FP4MOE_HAS_CUDA AND NOT FP4MOE_CUBINS AND NOT FP4MOE_CUDA_ARCHITECTURES)
  fp4moe_stop("FP4MOE_CUDA_ARCHITECTURES is empty: name at least one, e.g. 80")
endif()
# Not compressed: names of kernels are read from the machine code in it.
set(nvcc_flags_sm80 -DFP4MOE_SM80 -fatbin --no-compress -gencode=arch=compute_80,code=compute_80)
foreach(architecture ${FP4MOE_CUDA_ARCHITECTURES})
  list(APPEND nvcc_flags_sm80 -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
# Of sm90/, what the family sm80 is compiled from, too.
set(cuda_shared_sources route/prepare gather/gather activate/activate combine/combine pack/pack)

# Sets `result` to the name of a source's code: activate for activate/activate.cu, decode_mxfp4 for
# decode/mxfp4.cu, sm80_activate for the family sm80; without the folder where that is no kernel's.
function(fp4moe_cubin_stem source family result)
  get_filename_component(stem ${source} NAME_WE)
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(kernel ${folder} NAME)
  if(folder MATCHES "/kernels/cuda/sm[0-9]+/" AND NOT stem STREQUAL kernel)
    set(stem ${kernel}_${stem})
  endif()
  if(family STREQUAL sm80)
    set(stem sm80_${stem})
  endif()
  set(${result} ${stem} PARENT_SCOPE)
endfunction()

# Sets `result` to the path of a source's code, made by nvcc or given.
function(fp4moe_cubin source family result)
  fp4moe_cubin_stem(${source} ${family} stem)
  set(cubin ${PROJECT_BINARY_DIR}/cubins/${stem}.cubin)
  if(FP4MOE_CUBINS)
    get_filename_component(cubin ${FP4MOE_CUBINS}/${stem}.cubin ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
    if(NOT EXISTS ${cubin})
      fp4moe_stop("FP4MOE_CUBINS=${FP4MOE_CUBINS} lacks ${stem}.cubin")
    endif()
  else()
    add_custom_command(OUTPUT ${cubin} DEPENDS ${source} ${FP4MOE_NVCC} DEPFILE ${cubin}.d VERBATIM
      COMMAND ${FP4MOE_NVCC} ${nvcc_flags} ${nvcc_flags_${family}} -ccbin ${CMAKE_CXX_COMPILER} -allow-unsupported-compiler
              -MD -MF ${cubin}.d -MT ${cubin} -o ${cubin} ${source}
      COMMENT "Compiling ${stem} for ${family}")
  endif()
  set(${result} ${cubin} PARENT_SCOPE)
endfunction()

# An object library with the code of some sources, of either family, and the function, in the module's
# namespace, that lists them.
#   fp4moe_cubins(fp4moe_cubins FUNCTION cubins SOURCES a.cu b.cu SM80_SOURCES c.cu)
function(fp4moe_cubins target)
  cmake_parse_arguments(ARG "" "FUNCTION" "SOURCES;SM80_SOURCES" ${ARGN})
  set(objects "")
  set(declarations "")
  set(rows "")
  list(TRANSFORM ARG_SOURCES PREPEND "sm90:")
  list(TRANSFORM ARG_SM80_SOURCES PREPEND "sm80:")
  foreach(pair ${ARG_SOURCES} ${ARG_SM80_SOURCES})
    string(SUBSTRING ${pair} 0 4 family)
    string(SUBSTRING ${pair} 5 -1 source)
    fp4moe_cubin_stem(${source} ${family} cubin_stem)
    fp4moe_cubin(${source} ${family} cubin)
    list(APPEND cubin_paths ${cubin})
    set(symbol fp4moe_cubin_${cubin_stem})
    set(object ${cuda_generated}/${cubin_stem}.S)
    configure_file(${cuda_folder}/cubin.S.in ${object} @ONLY)
    set_source_files_properties(${object} PROPERTIES OBJECT_DEPENDS ${cubin})
    list(APPEND objects ${object})
    string(APPEND declarations "extern const std::byte ${symbol}[];\n"
                               "extern const std::uint64_t ${symbol}_size;\n")
    string(APPEND rows "      {\"${cubin_stem}\", {${symbol}, ${symbol}_size}, Family::${family}},\n")
  endforeach()
  list(LENGTH objects count)
  configure_file(${cuda_folder}/cubins.cpp.in ${cuda_generated}/${target}.cpp @ONLY)
  add_library(${target} OBJECT ${objects} ${cuda_generated}/${target}.cpp)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  add_custom_target(${target}_files DEPENDS ${cubin_paths})
  add_dependencies(cubins ${target}_files)
  add_dependencies(${target} ${target}_files)  # else Make would compile them twice
endfunction()

fp4moe_module(kernels/cuda THREADS DEPENDS platform LINK ${CMAKE_DL_LIBS})
if(FP4MOE_TESTS)
  # Stands in for libcuda.so.1.
  add_library(fp4moe_fake_driver MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/cuda/fake_driver.cpp)
  target_include_directories(fp4moe_fake_driver PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(fp4moe_fake_driver PRIVATE fp4moe_options)
  target_compile_definitions(kernels_cuda_test PRIVATE
    FP4MOE_FAKE_DRIVER="$<TARGET_FILE:fp4moe_fake_driver>")
  add_dependencies(kernels_cuda_test fp4moe_fake_driver)
endif()

add_custom_target(cubins COMMENT "cubins: all in ${PROJECT_BINARY_DIR}/cubins")
if(FP4MOE_HAS_CUDA)
  enable_language(ASM)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cubins)  # Make, unlike Ninja, does not
  set_source_files_properties(${cuda_folder}/no_cubins.cpp PROPERTIES HEADER_FILE_ONLY ON)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${cuda_folder}/sm90/*/*.cu)
  file(GLOB sm80_sources CONFIGURE_DEPENDS ${cuda_folder}/sm80/*/*.cu)
  foreach(source ${cuda_shared_sources} ceiling/ceiling)
    list(APPEND sm80_sources ${cuda_folder}/sm90/${source}.cu)
  endforeach()
  fp4moe_cubins(fp4moe_cubins FUNCTION cubins SOURCES ${cuda_sources} SM80_SOURCES ${sm80_sources})
  target_sources(fp4moe_kernels_cuda PRIVATE $<TARGET_OBJECTS:fp4moe_cubins>)
  set_property(GLOBAL APPEND PROPERTY FP4MOE_MODULES fp4moe_cubins)
endif()
