# For users: the modules' objects and headers as libfp4moe.a for C++, and as libfp4moe.so behind one header
# for C; a CMake package with components cxx and c, and a .pc file for each.
include(CMakePackageConfigHelpers)

get_property(modules GLOBAL PROPERTY FP4MOE_MODULES)
set(objects)
foreach(module ${modules})
  list(APPEND objects $<TARGET_OBJECTS:${module}>)
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

include(public_headers)
set(headers ${FP4MOE_PUBLIC_HEADERS} ${FP4MOE_INCLUDED_HEADERS})
list(REMOVE_ITEM headers base/version.hpp)  # made from version.hpp.in
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/src/fp4moe/)
target_sources(fp4moe PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/src
               ${PROJECT_BINARY_DIR}/generated FILES ${headers}
               ${PROJECT_BINARY_DIR}/generated/fp4moe/base/version.hpp)

# The shared library shows what the C header declares and nothing else.
set(c_header ${PROJECT_SOURCE_DIR}/include/fp4moe/fp4moe.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${c_header})
file(READ ${c_header} c_text)
string(REGEX MATCHALL "FP4MOE_API [^(]*[ *]fp4moe_[a-z_]+\\(" declared "${c_text}")
list(TRANSFORM declared REPLACE ".*[ *](fp4moe_[a-z_]+)\\($" "\\1")
list(JOIN declared ";\n    " declared)
file(CONFIGURE OUTPUT fp4moe.map @ONLY CONTENT
"FP4MOE_@PROJECT_VERSION_MAJOR@ {
  global:
    @declared@;
  local: *;
};
")

add_library(fp4moe_shared SHARED ${objects})
add_library(fp4moe::fp4moe_c ALIAS fp4moe_shared)
set_target_properties(fp4moe_shared PROPERTIES
  OUTPUT_NAME fp4moe EXPORT_NAME fp4moe_c LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/fp4moe.map)
target_link_options(fp4moe_shared PRIVATE -Wl,--version-script=${CMAKE_CURRENT_BINARY_DIR}/fp4moe.map)
if(NOT FP4MOE_SANITIZE)
  target_link_options(fp4moe_shared PRIVATE -Wl,--no-undefined)
endif()
get_target_property(fp4moe_links fp4moe LINK_LIBRARIES)
target_link_libraries(fp4moe_shared PRIVATE "$<BUILD_INTERFACE:${fp4moe_links}>")
target_sources(fp4moe_shared PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${c_header})

install(TARGETS fp4moe EXPORT fp4moeTargets FILE_SET HEADERS COMPONENT headers)
install(TARGETS fp4moe_shared EXPORT fp4moe_cTargets FILE_SET HEADERS COMPONENT headers)
install(TARGETS fp4moe_program)
# Manual pages, made by the program itself.
if(NOT CMAKE_CROSSCOMPILING AND PROJECT_IS_TOP_LEVEL)
  set(man_pages ${PROJECT_BINARY_DIR}/man/man1)
  add_custom_command(OUTPUT ${man_pages}/fp4moe.1 DEPENDS fp4moe_program VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${man_pages}
    COMMAND fp4moe_program man --folder ${man_pages} COMMENT "Writing manual pages")
  add_custom_target(man ALL DEPENDS ${man_pages}/fp4moe.1)
  install(DIRECTORY ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR} OPTIONAL)  # where all was built
endif()
foreach(set fp4moeTargets fp4moe_cTargets)
  install(EXPORT ${set} NAMESPACE fp4moe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fp4moe)
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/fp4moeConfig.cmake.in fp4moeConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fp4moe)
write_basic_package_version_file(fp4moeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH FP4MOE_PC_UP /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
foreach(pc fp4moe.pc fp4moe-c.pc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${pc}.in ${pc} @ONLY)
endforeach()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fp4moeConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/fp4moeConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/fp4moe)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fp4moe.pc ${CMAKE_CURRENT_BINARY_DIR}/fp4moe-c.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
