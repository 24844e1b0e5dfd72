# One library for users: the rooms' objects in libfp4moe, their headers, a CMake package and a .pc file.
include(CMakePackageConfigHelpers)

get_property(rooms GLOBAL PROPERTY FP4MOE_ROOMS)
list(REMOVE_ITEM rooms fp4moe_cli)
set(objects)
foreach(room ${rooms})
  list(APPEND objects $<TARGET_OBJECTS:${room}>)
endforeach()

add_library(fp4moe STATIC ${objects})
add_library(fp4moe::fp4moe ALIAS fp4moe)
set_target_properties(fp4moe PROPERTIES LINKER_LANGUAGE CXX)
target_compile_features(fp4moe PUBLIC cxx_std_20)
target_link_libraries(fp4moe PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
set(FP4MOE_PC_LIBS "")
foreach(library ${CMAKE_DL_LIBS})
  string(APPEND FP4MOE_PC_LIBS "-l${library} ")
endforeach()
if(TARGET fmt::fmt)
  target_link_libraries(fp4moe PUBLIC fmt::fmt)
  string(APPEND FP4MOE_PC_LIBS "-lfmt")
endif()

if(FP4MOE_HAS_MPI)
  target_link_libraries(fp4moe PUBLIC MPI::MPI_CXX)
  list(JOIN MPI_CXX_LIBRARIES " " mpi_libraries)
  string(APPEND FP4MOE_PC_LIBS " ${mpi_libraries}")
endif()

file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/fp4moe/*.hpp)
list(FILTER headers EXCLUDE REGEX "/fp4moe/(cli|bench)/")
target_sources(fp4moe PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/src
               ${PROJECT_BINARY_DIR}/generated FILES ${headers}
               ${PROJECT_BINARY_DIR}/generated/fp4moe/base/version.hpp)

install(TARGETS fp4moe EXPORT fp4moeTargets FILE_SET HEADERS)
install(TARGETS fp4moe_program)
install(EXPORT fp4moeTargets NAMESPACE fp4moe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fp4moe)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fp4moeConfig.cmake.in fp4moeConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fp4moe)
write_basic_package_version_file(fp4moeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH FP4MOE_PC_UP /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(${PROJECT_SOURCE_DIR}/cmake/fp4moe.pc.in fp4moe.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fp4moeConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/fp4moeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fp4moe)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fp4moe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
