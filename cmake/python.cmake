# The Python package's compiled part, fp4moe._core: all modules inside one library that shows nothing but
# its entry point and needs nothing beside the C++ runtime. pyproject.toml builds and installs it.
if(NOT FP4MOE_PYTHON)
  return()
endif()
find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
if(NOT Python_Interpreter_FOUND)
  fp4moe_stop("Python 3.10 or newer is missing: install it (Debian: apt-get install python3), or name it, "
              "-DPython_EXECUTABLE=PYTHON")
elseif(NOT Python_Development.Module_FOUND)
  fp4moe_stop("the headers of ${Python_EXECUTABLE} (Python.h of ${Python_VERSION}) are missing: install them (Debian: "
              "apt-get install python3-dev)")
endif()
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir
                OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT RESULT_VARIABLE failed)
if(failed)
  fp4moe_stop("${Python_EXECUTABLE} has no nanobind: pip install nanobind scikit-build-core")
endif()
find_package(nanobind CONFIG REQUIRED)

file(GLOB python_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/src/*.cpp)
get_target_property(compiled_fmt fp4moe_fmt ALIASED_TARGET)
if(compiled_fmt)
  list(APPEND python_sources ${PROJECT_SOURCE_DIR}/src/bundled/fmt.cpp)
endif()
if(FP4MOE_HAS_MPI)
  list(APPEND python_sources ${PROJECT_SOURCE_DIR}/src/bundled/no_mpi.cpp)
endif()
nanobind_add_module(fp4moe_python STABLE_ABI NB_STATIC NOMINSIZE NB_SUPPRESS_WARNINGS
                    NB_DOMAIN fp4moe ${python_sources})
set_target_properties(fp4moe_python PROPERTIES OUTPUT_NAME _core UNITY_BUILD ${FP4MOE_UNITY} UNITY_BUILD_BATCH_SIZE 8
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/python/fp4moe)
target_link_libraries(fp4moe_python PRIVATE fp4moe_cli fp4moe_capi fp4moe_vllm fp4moe_options)
file(CONFIGURE OUTPUT python.map CONTENT "{ global: PyInit__core; local: *; };\n")
target_link_options(fp4moe_python PRIVATE -Wl,--as-needed
  -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/python.map)
install(TARGETS fp4moe_python LIBRARY DESTINATION fp4moe COMPONENT python EXCLUDE_FROM_ALL)

nanobind_add_stub(fp4moe_python_stub MODULE _core OUTPUT ${PROJECT_BINARY_DIR}/python/fp4moe/_core.pyi
                  PYTHON_PATH ${PROJECT_BINARY_DIR}/python/fp4moe DEPENDS fp4moe_python)
install(FILES ${PROJECT_BINARY_DIR}/python/fp4moe/_core.pyi DESTINATION fp4moe COMPONENT python EXCLUDE_FROM_ALL)
