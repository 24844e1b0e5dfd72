# Kernels for one instruction set: src/fp4moe/kernels/cpu/<isa>/ becomes the object library
# fp4moe_isa_<isa> with that set's flags and nothing else does. Only the folders of the target
# architecture are compiled; tests check the syntax of the others. tools/check_isa_objects.py makes sure that no weak symbol gets out.
#   fp4moe_isa(avx2 PROCESSOR x86_64 FLAGS -mavx2 -mfma -mf16c)
function(fp4moe_isa isa)
  cmake_parse_arguments(ARG "" "PROCESSOR" "FLAGS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/fp4moe/kernels/cpu/${isa}/*.cpp)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(${ARG_PROCESSOR})$")
    # A cross compiler reads what this machine does not run.
    if(FP4MOE_TESTS AND FP4MOE_CROSS_CXX)
      add_test(NAME cross.${isa} COMMAND ${FP4MOE_CROSS_CXX} -std=c++20 ${ARG_FLAGS} -fno-exceptions -fno-rtti
               -Wall -Wextra -Wshadow -Wconversion -Werror -fsyntax-only -I ${PROJECT_SOURCE_DIR}/src ${sources}
               COMMAND_EXPAND_LISTS)
      set_tests_properties(cross.${isa} PROPERTIES LABELS rest)
    endif()
    return()
  endif()
  add_library(fp4moe_isa_${isa} OBJECT ${sources})
  set_target_properties(fp4moe_isa_${isa} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(fp4moe_isa_${isa} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(fp4moe_isa_${isa} PRIVATE fp4moe_options)
  # A kernel's own small functions are to vanish into it, or they stay behind as symbols; and an
  # unoptimized build of intrinsics is too slow even for tests. Sanitizers make the code so large
  # that optimizing it takes minutes.
  set(level -O3)
  if(FP4MOE_SANITIZE)
    set(level -O1)
  endif()
  # Without traps, g++ turns choices into vector code; that changes no value.
  target_compile_options(fp4moe_isa_${isa} PRIVATE ${ARG_FLAGS} ${level} -fno-exceptions -fno-rtti -fno-trapping-math)
  if(FP4MOE_FUZZ AND NOT FP4MOE_SANITIZE MATCHES "address")
    # Checks of undefined behavior in intrinsics take minutes for each file; the preset `asan` has them.
    target_compile_options(fp4moe_isa_${isa} PRIVATE -fno-sanitize=all)
  endif()
  target_sources(fp4moe_kernels_cpu PRIVATE $<TARGET_OBJECTS:fp4moe_isa_${isa}>)
  set_property(GLOBAL APPEND PROPERTY FP4MOE_MODULES fp4moe_isa_${isa})
  if(FP4MOE_TESTS AND Python3_Interpreter_FOUND)
    add_test(NAME tools.isa_objects.${isa}
             COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_isa_objects.py
                     --nm ${CMAKE_NM} --namespace fp4moe::kernels::cpu::${isa}
                     $<TARGET_OBJECTS:fp4moe_isa_${isa}>
             COMMAND_EXPAND_LISTS)
    set_tests_properties(tools.isa_objects.${isa} PROPERTIES LABELS tools)
  endif()
endfunction()

if(FP4MOE_TESTS)
  find_package(Python3 COMPONENTS Interpreter)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    find_program(FP4MOE_CROSS_CXX x86_64-linux-gnu-g++ DOC "Compiler for the other architecture's kernels")
  else()
    find_program(FP4MOE_CROSS_CXX aarch64-linux-gnu-g++ DOC "Compiler for the other architecture's kernels")
  endif()
endif()

set(arm PROCESSOR "aarch64|arm64" FLAGS)
fp4moe_isa(neon ${arm})
fp4moe_isa(neon_dotprod ${arm} -march=armv8.2-a+dotprod)
fp4moe_isa(neon_i8mm ${arm} -march=armv8.2-a+dotprod+i8mm)
fp4moe_isa(neon_bf16 ${arm} -march=armv8.2-a+dotprod+i8mm+bf16)

set(avx2 PROCESSOR "x86_64|AMD64" FLAGS -mavx2 -mfma -mf16c)
# g++ 12 suspects its own AVX-512 intrinsics of using variables they do not set.
set(avx512 ${avx2})
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
list(APPEND avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
fp4moe_isa(avx2 ${avx2})
fp4moe_isa(avx512 ${avx512})
fp4moe_isa(avx512_vnni ${avx512} -mavx512vbmi -mavx512vnni)
fp4moe_isa(avx512_bf16 ${avx512} -mavx512vbmi -mavx512vnni -mavx512bf16)
fp4moe_isa(amx ${avx512} -mavx512vbmi -mavx512vnni -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16)

# The check itself must be able to fail: an ordinary module is full of weak symbols.
if(FP4MOE_TESTS AND Python3_Interpreter_FOUND)
  add_test(NAME tools.isa_objects.finds_faults
           COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_isa_objects.py
                   --nm ${CMAKE_NM} --namespace fp4moe $<TARGET_OBJECTS:fp4moe_base>
           COMMAND_EXPAND_LISTS)
  set_tests_properties(tools.isa_objects.finds_faults PROPERTIES LABELS tools WILL_FAIL ON)
endif()
