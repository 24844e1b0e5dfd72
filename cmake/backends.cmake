# A folder under src/fp4moe/backends is a family of backends: its sources join the module, and its
# functions backends() and, where there is a layout.cpp, layouts() join the generated lists of
# families. Nothing else names a family.
set(folder ${PROJECT_SOURCE_DIR}/src/fp4moe/backends)
function(fp4moe_families file signature entry_list declaration_list)
  file(GLOB members CONFIGURE_DEPENDS RELATIVE ${folder} ${folder}/*/${file}.cpp)
  set(declarations ${${declaration_list}})
  set(entries "")
  foreach(member ${members})
    get_filename_component(family ${member} DIRECTORY)
    string(APPEND declarations "namespace ${family} {\n${signature} ${file}s();\n}\n")
    string(APPEND entries "${family}::${file}s, ")
  endforeach()
  list(TRANSFORM members PREPEND ${folder}/)
  set(${declaration_list} ${declarations} PARENT_SCOPE)
  set(${entry_list} ${entries} PARENT_SCOPE)
  set(family_sources ${family_sources} ${members} PARENT_SCOPE)
endfunction()
fp4moe_families(backend "std::span<const oracle::Backend>" backend_entries declarations)
fp4moe_families(layout "std::vector<layout::Layout>" layout_entries declarations)
file(GLOB transforms CONFIGURE_DEPENDS ${folder}/*/transforms.cpp)  # what its layouts do to scales and biases
configure_file(${folder}/families.hpp.in generated/fp4moe/backends/families.hpp @ONLY)
fp4moe_module(backends DEPENDS oracle layout SOURCES ${family_sources} ${transforms})
