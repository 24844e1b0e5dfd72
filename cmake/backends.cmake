# A folder under src/fp4moe/backends is a family of backends: its sources join the room, and its
# function backends() joins the generated list of families. Nothing else names a family.
set(folder ${PROJECT_SOURCE_DIR}/src/fp4moe/backends)
file(GLOB members CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*/backend.cpp)
set(declarations "")
set(entries "")
foreach(member ${members})
  get_filename_component(family ${member} DIRECTORY)
  string(APPEND declarations "namespace ${family} {\nstd::span<const oracle::Backend> backends();\n}\n")
  string(APPEND entries "${family}::backends, ")
endforeach()
configure_file(${folder}/families.hpp.in generated/fp4moe/backends/families.hpp @ONLY)
list(TRANSFORM members PREPEND ${folder}/)
fp4moe_room(backends DEPENDS oracle SOURCES ${members})
