# What a machine must have, looked at before anything is built. fp4moe_stop(SENTENCE...) ends the
# configuration with one sentence, without semicolons; a line that begins with "fp4moe: " is what tools/build.sh and
# tools/wheel.sh show of it.
function(fp4moe_stop)
  string(CONCAT sentence ${ARGN})
  message(FATAL_ERROR " fp4moe: ${sentence}")  # the space: not broken into lines
endfunction()

# The oldest compilers that have the C++20 the sources use.
set(oldest_GNU 11)
set(oldest_Clang 14)
set(which_compiler "${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
string(CONCAT newer_compiler "install g++ ${oldest_GNU}, clang ${oldest_Clang} or newer "
       "(Debian 12: apt-get install g++) and name it, CXX=g++-12")
if(DEFINED oldest_${CMAKE_CXX_COMPILER_ID} AND
   CMAKE_CXX_COMPILER_VERSION VERSION_LESS oldest_${CMAKE_CXX_COMPILER_ID})
  fp4moe_stop("the compiler ${which_compiler}, which is too old for C++20: ${newer_compiler}")
endif()

# A new compiler may come with an old library.
if(NOT CMAKE_CROSSCOMPILING)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -std=c++20)
  check_cxx_source_compiles("
    #include <bit>
    #include <concepts>
    #include <ranges>
    #include <span>
    struct Two { int a = 0, b = 0; };
    template <std::integral T> constexpr T twice(std::span<const T> of) { return of.front() * 2; }
    int main() {
      constexpr Two two{.b = 3};
      const int some[] = {two.b};
      return static_cast<int>(std::popcount(unsigned(twice<int>(some)))) + int(std::ranges::size(some)) - 3;
    }" FP4MOE_HAS_CXX20)
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT FP4MOE_HAS_CXX20)
    unset(FP4MOE_HAS_CXX20 CACHE)
    fp4moe_stop("the compiler ${which_compiler}, and its library lacks C++20 (<bit>, <concepts>, <ranges>, "
                "<span>): ${newer_compiler}")
  endif()
endif()

# Asked once for each build folder: later it holds most of it already. Measured: a release build of
# everything but the tests takes 1230 MB, most of it precompiled headers.
set(FP4MOE_BUILD_MB 1500 CACHE STRING "MB that must be free where a build begins; 0: any")
if(PROJECT_IS_TOP_LEVEL AND NOT FP4MOE_HAS_SPACE)
  execute_process(COMMAND df -Pm ${PROJECT_BINARY_DIR} OUTPUT_VARIABLE free ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND free MATCHES "\n[^\n]* +[0-9]+ +[0-9]+ +([0-9]+) +[0-9]+%" AND
     CMAKE_MATCH_1 LESS FP4MOE_BUILD_MB)
    fp4moe_stop("${PROJECT_BINARY_DIR} has ${CMAKE_MATCH_1} MB free, and a build takes ${FP4MOE_BUILD_MB} MB: "
                "free some, or build in another folder (cmake -B FOLDER, pip install -Cbuild-dir=FOLDER .)")
  endif()
  set(FP4MOE_HAS_SPACE ON CACHE INTERNAL "")
endif()
