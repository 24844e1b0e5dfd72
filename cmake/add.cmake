# One line each: fp4moe_module(formats DEPENDS base), fp4moe_program(...), fp4moe_pytest(...).

# Warnings, sanitizers and the include root, for every target of ours.
add_library(fp4moe_options INTERFACE)
target_compile_features(fp4moe_options INTERFACE cxx_std_20)
target_compile_options(fp4moe_options INTERFACE -Wall -Wextra -Wshadow -Wconversion)
if(FP4MOE_WERROR)
  target_compile_options(fp4moe_options INTERFACE -Werror)
endif()
# g++ 12 sees overlapping, endless or outlying copies in `"literal" + string` where there are none (GCC bug
# 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(fp4moe_options INTERFACE -Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
# No fused multiply-adds behind our back: formats promise every bit.
target_compile_options(fp4moe_options INTERFACE -ffp-contract=off)

# One optimization level for a target: -O2; -O3 where it computes, -O1 in the front end (below).
add_compile_options($<$<CONFIG:Release>:-O2>)
# g++ collects garbage later, which takes a tenth of its time and 100 MB more.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=300000>)
set(compute_level $<$<CONFIG:Release>:-O3>)
if(FP4MOE_SANITIZE)
  set(compute_level -O1)
endif()

# The one precompiled header of the library, and the one of the tests: standard headers that most
# files read, fmt, and GoogleTest. Whatever it holds, each file still names what it uses
# (clang-tidy reads the files one by one, without it).
set(fp4moe_precompiled <algorithm> <array> <bit> <charconv> <cstdint> <cstring> <filesystem> <functional>
    <map> <memory> <optional> <span> <string> <string_view> <utility> <variant> <vector> <fmt/format.h>)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/empty.cpp CONTENT "")
function(fp4moe_precompile target)
  add_library(${target} OBJECT EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/generated/empty.cpp)
  target_link_libraries(${target} PRIVATE fp4moe_fmt fp4moe_options ${ARGN})
  target_precompile_headers(${target} PRIVATE ${fp4moe_precompiled})
endfunction()
fp4moe_precompile(fp4moe_precompiled Threads::Threads)
set_target_properties(fp4moe_precompiled PROPERTIES POSITION_INDEPENDENT_CODE ON)
if(FP4MOE_TESTS)
  include(GoogleTest)
  # Tests are compiled more often than they run. At this level g++ takes optional members for unset.
  set(test_level $<$<CONFIG:Release>:-O1> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  fp4moe_precompile(fp4moe_test_precompiled GTest::gtest)
  target_compile_options(fp4moe_test_precompiled PRIVATE ${test_level})
  target_precompile_headers(fp4moe_test_precompiled PRIVATE <fstream> <sstream> <gtest/gtest.h>)
endif()

# A module: src/fp4moe/<path> (its subfolders are separate modules where they are declared so).
# Sources become a library fp4moe_<module>; all x_test.cpp become one program <module>_test, all
# x_gpu_test.cpp one <module>_gpu_test with the label gpu. Its files are compiled together, some at
# a time, so names in unnamed namespaces are unique in a module.
#   COMPUTE   its loops are what a user waits for
#   FOREIGN   it reads untrusted bytes: its tests run a second time as <module>.asan, with
#             this module and those FOREIGN before it compiled for the address and undefined-behavior
#             sanitizers (`make test-all` does that with everything)
#   THREADS   its tests run under the thread sanitizer, too
#   INTERNAL  not a part of the installed library
#   PARTS     subfolders that belong to it; SOURCES: other files; FOLDER: where the module is, if not there
#   fp4moe_module(tensor/files DEPENDS tensor)
function(fp4moe_module path)
  cmake_parse_arguments(ARG "COMPUTE;FOREIGN;INTERNAL;THREADS" "FOLDER" "DEPENDS;LINK;PARTS;SOURCES" ${ARGN})
  string(REPLACE "/" "_" module ${path})
  if(NOT ARG_FOLDER)
    set(ARG_FOLDER ${PROJECT_SOURCE_DIR}/src/fp4moe/${path})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${ARG_FOLDER}/*.cpp)
  foreach(part ${ARG_PARTS})
    file(GLOB part_sources CONFIGURE_DEPENDS ${ARG_FOLDER}/${part}/*.cpp)
    list(APPEND sources ${part_sources})
  endforeach()
  list(APPEND sources ${ARG_SOURCES})
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM ARG_DEPENDS REPLACE "/" "_")
  list(TRANSFORM ARG_DEPENDS PREPEND fp4moe_)

  if(sources)
    add_library(fp4moe_${module} ${FP4MOE_MODULE_KIND} ${sources})
    set_target_properties(fp4moe_${module} PROPERTIES POSITION_INDEPENDENT_CODE ON
      UNITY_BUILD ${FP4MOE_UNITY} UNITY_BUILD_BATCH_SIZE 16)
    target_include_directories(fp4moe_${module} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(fp4moe_${module} PUBLIC ${ARG_DEPENDS} ${ARG_LINK} PRIVATE fp4moe_options)
    if(NOT ARG_INTERNAL)
      set_property(GLOBAL APPEND PROPERTY FP4MOE_MODULES fp4moe_${module})
    endif()
    if(ARG_FOREIGN AND FP4MOE_TESTS AND NOT FP4MOE_SANITIZE)
      fp4moe_asan_objects(${module} ${sources} LINK ${ARG_DEPENDS} ${ARG_LINK})
    endif()
    if(ARG_COMPUTE)
      target_compile_options(fp4moe_${module} PRIVATE ${compute_level})
    endif()
    # g++ 12 reads a precompiled header of another optimization level; others only one of their own.
    if(NOT ARG_COMPUTE OR (CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13))
      target_precompile_headers(fp4moe_${module} REUSE_FROM fp4moe_precompiled)
    endif()
  else()
    add_library(fp4moe_${module} INTERFACE)
    target_include_directories(fp4moe_${module} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(fp4moe_${module} INTERFACE ${ARG_DEPENDS} ${ARG_LINK})
  endif()

  if(FP4MOE_TESTS AND tests)
    set(gpu_tests ${tests})
    list(FILTER gpu_tests INCLUDE REGEX "_gpu_test\\.cpp$")
    list(FILTER tests EXCLUDE REGEX "_gpu_test\\.cpp$")
    string(REPLACE "/" "." dotted ${path})
    set(labels LABELS)
    if(path MATCHES "cuda")
      list(APPEND labels cuda)  # once more where the kernels are built
    endif()
    if(ARG_THREADS)
      list(APPEND labels threads)
      add_dependencies(tests_with_threads ${module}_test)
    endif()
    fp4moe_test(${dotted} ${tests} LINK fp4moe_${module} ${labels})
    if(TARGET fp4moe_${module}_asan)
      fp4moe_asan_program(${module}_asan_test $<TARGET_OBJECTS:${module}_test> LINK fp4moe_${module} GTest::gtest_main)
      add_dependencies(${module}_asan_test ${module}_test)
      fp4moe_asan_test(${dotted}.asan ${module}_asan_test)
    endif()
    if(gpu_tests)
      fp4moe_test(${dotted}.gpu ${gpu_tests} LINK fp4moe_${module} LABELS gpu)
    endif()
  endif()
endfunction()

# The sources of a module with sanitizers, as objects: fp4moe_<module>_asan.
# Without the checks of every access that cost as much to compile as all others; `make test-all` has alignment and vptr.
set(asan_options -fsanitize=address,undefined -fno-sanitize=alignment,null,vptr,object-size
    -fno-sanitize-recover=undefined)
function(fp4moe_asan_objects module)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(fp4moe_${module}_asan OBJECT EXCLUDE_FROM_ALL ${ARG_UNPARSED_ARGUMENTS})
  set_target_properties(fp4moe_${module}_asan PROPERTIES UNITY_BUILD ${FP4MOE_UNITY} UNITY_BUILD_BATCH_SIZE 12)
  target_include_directories(fp4moe_${module}_asan PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(fp4moe_${module}_asan PRIVATE ${ARG_LINK} fp4moe_options)
  target_compile_options(fp4moe_${module}_asan PRIVATE -Og -g1 -UNDEBUG -fno-omit-frame-pointer ${asan_options})
  target_compile_definitions(fp4moe_${module}_asan PRIVATE XXH_NO_INLINE_HINTS=1)  # xxhash insists on -O1
  set_property(GLOBAL APPEND PROPERTY FP4MOE_ASAN_OBJECTS $<TARGET_OBJECTS:fp4moe_${module}_asan>)
endfunction()

# A program with the objects of all such modules declared so far; their uninstrumented ones, which
# LINK brings along, are not taken.
function(fp4moe_asan_program target)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  get_property(objects GLOBAL PROPERTY FP4MOE_ASAN_OBJECTS)
  add_executable(${target} EXCLUDE_FROM_ALL ${ARG_UNPARSED_ARGUMENTS} ${objects})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} fp4moe_options)
  target_link_options(${target} PRIVATE ${asan_options})
  add_dependencies(tests ${target})
endfunction()

function(fp4moe_asan_test name target)
  add_test(NAME ${name} COMMAND ${target} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS asan TIMEOUT 600
    ENVIRONMENT "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/lsan.supp:print_suppressions=0")
endfunction()

# A GoogleTest program, built by the target `tests`; each of its tests is one of ctest's,
# NAME.Suite.Test. Without the label gpu it sees no GPU, so that answers are the same on every machine.
function(fp4moe_test name)
  cmake_parse_arguments(ARG "" "" "LINK;LABELS" ${ARGN})
  string(REPLACE "." "_" target ${name})
  set(target ${target}_test)
  add_executable(${target} EXCLUDE_FROM_ALL ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} fp4moe_options GTest::gtest_main)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${target} PRIVATE FP4MOE_TESTDATA="${PROJECT_SOURCE_DIR}/testdata")
  target_compile_options(${target} PRIVATE ${test_level})
  target_precompile_headers(${target} REUSE_FROM fp4moe_test_precompiled)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${FP4MOE_UNITY} UNITY_BUILD_BATCH_SIZE 8)
  if(FP4MOE_SANITIZE)
    # Whole programs: a search for leaks at the end of each test would take longer than the tests.
    add_test(NAME ${name} COMMAND ${target})
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 1800)
  else()
    if(ARG_LABELS)
      list(GET ARG_LABELS 0 label)  # PROPERTIES takes one
      set(labels LABELS ${label})
    endif()
    if(NOT "gpu" IN_LIST ARG_LABELS)
      set(environment ENVIRONMENT CUDA_VISIBLE_DEVICES=)
    endif()
    gtest_discover_tests(${target} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600 ${labels} ${environment})
  endif()
  add_dependencies(tests ${target})
endfunction()

# A small program that tests drive from outside (a probe), built by the target `tests`.
function(fp4moe_probe name source)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} fp4moe_options)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  add_dependencies(tests ${name})
endfunction()

# A pytest file, run with the Python of FP4MOE_TEST_PYTHON; ENVIRONMENT holds NAME=VALUE pairs. The
# label witness: `make test-all` runs it again, with torch and others installed; rest: only there.
function(fp4moe_pytest name source)
  cmake_parse_arguments(ARG "" "" "ENVIRONMENT;LABELS" ${ARGN})
  if(NOT FP4MOE_TEST_PYTHON)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${FP4MOE_TEST_PYTHON} -m pytest -q -p no:cacheprovider ${source})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;${ARG_ENVIRONMENT}" LABELS "tools;${ARG_LABELS}" TIMEOUT 1200)
endfunction()
