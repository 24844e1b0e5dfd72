# One line each: fp4moe_room(formats DEPENDS base), fp4moe_program(...), fp4moe_pytest(...).

# Warnings, sanitizers and the include root, for every target of ours.
add_library(fp4moe_options INTERFACE)
target_compile_features(fp4moe_options INTERFACE cxx_std_20)
target_compile_options(fp4moe_options INTERFACE -Wall -Wextra -Wshadow -Wconversion)
if(FP4MOE_WERROR)
  target_compile_options(fp4moe_options INTERFACE -Werror)
endif()
# g++ 12 sees overlapping or endless copies in `"literal" + string` where there are none (GCC bug
# 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(fp4moe_options INTERFACE -Wno-restrict -Wno-stringop-overflow)
endif()
# No fused multiply-adds behind our back: formats promise every bit.
target_compile_options(fp4moe_options INTERFACE -ffp-contract=off)

# A room: src/fp4moe/<name> (its subfolders are separate rooms where they are declared so).
# Sources become a library fp4moe_<room>; each x_test.cpp becomes the test <room>.x, each
# x_gpu_test.cpp the test <room>.x_gpu with the label gpu.
# PRECOMPILE names heavy headers that most of the room's files include, SOURCES files of subfolders.
# QUICK rooms decide and print: they are built fast rather than to run fast, but for the HOT files,
# which are optimised a little even where everything is checked (tests would take minutes);
# TOGETHER compiles several of a room's files at once, but for those APART (they share names).
#   fp4moe_room(tensor/files DEPENDS tensor)
function(fp4moe_room path)
  cmake_parse_arguments(ARG "QUICK;TOGETHER" "" "DEPENDS;LINK;PRECOMPILE;SOURCES;HOT;APART" ${ARGN})
  string(REPLACE "/" "_" room ${path})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/fp4moe/${path}/*.cpp)
  list(APPEND sources ${ARG_SOURCES})
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|/main)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM ARG_DEPENDS REPLACE "/" "_")
  list(TRANSFORM ARG_DEPENDS PREPEND fp4moe_)

  if(sources)
    add_library(fp4moe_${room} ${FP4MOE_ROOM_KIND} ${sources})
    set_target_properties(fp4moe_${room} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(fp4moe_${room} PUBLIC ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(fp4moe_${room} PUBLIC ${ARG_DEPENDS} ${ARG_LINK} PRIVATE fp4moe_options)
    set_property(GLOBAL APPEND PROPERTY FP4MOE_ROOMS fp4moe_${room})
    if(ARG_QUICK AND CMAKE_BUILD_TYPE STREQUAL "Release")
      target_compile_options(fp4moe_${room} PRIVATE -O1)
    endif()
    if(CMAKE_BUILD_TYPE STREQUAL "Release" OR FP4MOE_SANITIZE)
      foreach(hot ${ARG_HOT})
        set_source_files_properties(${PROJECT_SOURCE_DIR}/src/fp4moe/${path}/${hot}.cpp PROPERTIES
          COMPILE_OPTIONS $<IF:$<CONFIG:Release>,-O3,-O1> SKIP_PRECOMPILE_HEADERS ON)
      endforeach()
    endif()
    if(ARG_TOGETHER AND (CMAKE_BUILD_TYPE STREQUAL "Release" OR FP4MOE_SANITIZE))
      set_target_properties(fp4moe_${room} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
      foreach(apart ${ARG_APART})
        set_source_files_properties(${PROJECT_SOURCE_DIR}/src/fp4moe/${path}/${apart}.cpp PROPERTIES
          SKIP_UNITY_BUILD_INCLUSION ON)
      endforeach()
    endif()
    if(ARG_PRECOMPILE)
      target_precompile_headers(fp4moe_${room} PRIVATE ${ARG_PRECOMPILE})
    endif()
  else()
    add_library(fp4moe_${room} INTERFACE)
    target_include_directories(fp4moe_${room} INTERFACE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(fp4moe_${room} INTERFACE ${ARG_DEPENDS} ${ARG_LINK})
  endif()

  if(FP4MOE_TESTS)
    foreach(test ${tests})
      get_filename_component(stem ${test} NAME_WE)
      string(REGEX REPLACE "_test$" "" stem ${stem})
      string(REPLACE "/" "." dotted ${path})
      string(REGEX MATCH "gpu$" label ${stem})
      fp4moe_test(${dotted}.${stem} ${test} LINK fp4moe_${room} LABELS ${label})
    endforeach()
  endif()
endfunction()

# A GoogleTest program, built by the target `tests`.
function(fp4moe_test name source)
  cmake_parse_arguments(ARG "" "" "LINK;LABELS" ${ARGN})
  string(REPLACE "." "_" target ${name})
  set(target ${target}_test)
  add_executable(${target} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${target} PRIVATE ${ARG_LINK} fp4moe_options GTest::gtest_main)
  target_compile_definitions(${target} PRIVATE
    FP4MOE_TESTDATA="${PROJECT_SOURCE_DIR}/testdata")
  add_test(NAME ${name} COMMAND ${target})
  set(environment "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tools/lsan.supp:print_suppressions=0")
  # When a program ends, the search for leaks walks through all addresses that a 64-bit Arm has, which
  # takes four seconds. There the tests of whole programs search, which call all rooms.
  if(FP4MOE_SANITIZE MATCHES "address" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64" AND
     NOT name MATCHES "^(capi|runtime|cli)\\.")
    list(APPEND environment "ASAN_OPTIONS=detect_leaks=0")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 600 ENVIRONMENT "${environment}")
  add_dependencies(tests ${target})
endfunction()

# A small program that tests drive from outside (a probe), built by the target `tests`.
function(fp4moe_probe name source)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${source})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} fp4moe_options)
  add_dependencies(tests ${name})
endfunction()

# A pytest file, run with the Python of FP4MOE_TEST_PYTHON; ENVIRONMENT holds NAME=VALUE pairs.
function(fp4moe_pytest name source)
  cmake_parse_arguments(ARG "" "" "ENVIRONMENT;LABELS" ${ARGN})
  if(NOT FP4MOE_TEST_PYTHON)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${FP4MOE_TEST_PYTHON} -m pytest -q -p no:cacheprovider ${source})
  set_tests_properties(${name} PROPERTIES
    ENVIRONMENT "PYTHONDONTWRITEBYTECODE=1;${ARG_ENVIRONMENT}" LABELS "tools;${ARG_LABELS}" TIMEOUT 1200)
endfunction()
