# Required libraries. Each works from its headers alone, so a folder of headers (FP4MOE_DEPS) does as
# well as the distribution's packages; GoogleTest may come as sources.
set(FP4MOE_DEPS "" CACHE PATH "Folder with include/ (nlohmann, CLI, fmt, xxhash.h) and googletest/")

function(fp4moe_header_library target header package)
  if(TARGET ${target})
    return()
  endif()
  find_path(${package}_INCLUDE ${header} HINTS ${FP4MOE_DEPS}/include)
  if(NOT ${package}_INCLUDE)
    set_property(GLOBAL APPEND PROPERTY FP4MOE_MISSING ${package})
    return()
  endif()
  add_library(${target} INTERFACE IMPORTED)
  target_include_directories(${target} SYSTEM INTERFACE ${${package}_INCLUDE})
endfunction()

fp4moe_header_library(nlohmann_json::nlohmann_json nlohmann/json.hpp nlohmann-json3-dev)
fp4moe_header_library(xxhash::xxhash xxhash.h libxxhash-dev)
fp4moe_header_library(CLI11::CLI11 CLI/CLI.hpp libcli11-dev)
# The compiled fmt saves seconds in every file; its headers alone do where there is no library, and
# for Python where src/bundled/fmt.cpp is not written for it.
find_package(fmt QUIET)
if(TARGET fmt::fmt AND (NOT FP4MOE_PYTHON OR fmt_VERSION MATCHES "^9\\."))
  add_library(fp4moe_fmt ALIAS fmt::fmt)
else()
  fp4moe_header_library(fp4moe_fmt fmt/format.h libfmt-dev)
  if(TARGET fp4moe_fmt)
    set_property(TARGET fp4moe_fmt APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
  endif()
endif()
get_property(missing GLOBAL PROPERTY FP4MOE_MISSING)
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "Headers that fp4moe is built with are missing. Install the packages (Debian, Ubuntu)\n"
                      "  apt-get install ${missing}\n"
                      "or put the headers under FOLDER/include and set FP4MOE_DEPS=FOLDER "
                      "(pip install . -Ccmake.define.FP4MOE_DEPS=FOLDER).")
endif()

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
