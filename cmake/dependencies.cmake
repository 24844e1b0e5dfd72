# Required libraries. Each is header-only here, so a folder of headers (FP4MOE_DEPS) does as well as
# the distribution's packages; GoogleTest may come as sources.
set(FP4MOE_DEPS "" CACHE PATH "Folder with include/ (nlohmann, CLI, fmt, xxhash.h) and googletest/")

function(fp4moe_header_library target header package)
  if(TARGET ${target})
    return()
  endif()
  find_path(${package}_INCLUDE ${header} HINTS ${FP4MOE_DEPS}/include)
  if(NOT ${package}_INCLUDE)
    message(FATAL_ERROR "${header} not found: install ${package}, or set FP4MOE_DEPS")
  endif()
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE ${${package}_INCLUDE})
endfunction()

fp4moe_header_library(nlohmann_json::nlohmann_json nlohmann/json.hpp nlohmann-json3-dev)
fp4moe_header_library(CLI11::CLI11 CLI/CLI.hpp libcli11-dev)
fp4moe_header_library(fmt::fmt-header-only fmt/format.h libfmt-dev)
set_property(TARGET fmt::fmt-header-only APPEND PROPERTY
             INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
fp4moe_header_library(xxhash::xxhash xxhash.h libxxhash-dev)

if(FP4MOE_TESTS)
  if(EXISTS ${FP4MOE_DEPS}/googletest/CMakeLists.txt)
    add_subdirectory(${FP4MOE_DEPS}/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
    if(NOT TARGET GTest::gtest_main)
      add_library(GTest::gtest_main ALIAS gtest_main)
    endif()
  else()
    find_package(GTest REQUIRED)
  endif()
endif()
