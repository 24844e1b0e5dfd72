# fp4moe_static: the same program with everything inside, for machines of other distributions (`make static`).
# It is linked of the modules' own libraries; what would need a shared library is replaced (src/bundled).
if(FP4MOE_SANITIZE)
  return()
endif()
set(bundled ${PROJECT_SOURCE_DIR}/src/bundled)
# Alone in its object, which is then not taken.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/fp4moe/platform/open_library.cpp PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
set(static_sources ${PROJECT_SOURCE_DIR}/src/fp4moe/cli/main.cpp ${bundled}/no_libraries.cpp)
get_target_property(compiled_fmt fp4moe_fmt ALIASED_TARGET)
if(compiled_fmt)
  list(APPEND static_sources ${bundled}/fmt.cpp)
endif()
if(FP4MOE_HAS_MPI)
  list(APPEND static_sources ${bundled}/no_mpi.cpp)
endif()
add_executable(fp4moe_static EXCLUDE_FROM_ALL ${static_sources})
set_target_properties(fp4moe_static PROPERTIES
  OUTPUT_NAME fp4moe RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/static POSITION_INDEPENDENT_CODE ON)
target_include_directories(fp4moe_static PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests
  $<TARGET_PROPERTY:fp4moe_fmt,INTERFACE_INCLUDE_DIRECTORIES>)
get_property(modules GLOBAL PROPERTY FP4MOE_MODULES)
list(APPEND modules fp4moe_bench fp4moe_report fp4moe_cli fp4moe_golden)
set(static_modules)
foreach(module ${modules})
  get_target_property(kind ${module} TYPE)
  if(kind STREQUAL "STATIC_LIBRARY")  # object libraries are inside them
    list(APPEND static_modules $<TARGET_FILE:${module}>)
  endif()
endforeach()
# Not the modules as targets: those ask for shared libraries.
target_link_libraries(fp4moe_static PRIVATE fp4moe_options
  -Wl,--start-group ${static_modules} -Wl,--end-group)
target_link_options(fp4moe_static PRIVATE -static-pie -s)
