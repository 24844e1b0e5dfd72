# The explorer (docs/explorer.md): the commands that need no machine, compiled to WebAssembly by zig's clang, in a static
# page. Its sources are those of the program; src/explorer stands in for files, threads and devices.
set(FP4MOE_ZIG "" CACHE FILEPATH "zig (PyPI's ziglang), for the explorer")
if(NOT FP4MOE_ZIG)
  return()
endif()

# Of whole folders all but tests, else the files that are named.
function(fp4moe_explorer_sources list folder)
  set(files ${ARGN})
  if(files)
    list(TRANSFORM files PREPEND ${PROJECT_SOURCE_DIR}/src/${folder}/)
    list(TRANSFORM files APPEND .cpp)
  else()
    file(GLOB files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
    list(FILTER files EXCLUDE REGEX "_test\\.cpp$")
  endif()
  set(${list} ${${list}} ${files} PARENT_SCOPE)
endfunction()

fp4moe_explorer_sources(explorer_base fp4moe/base at_path error_json folder_names json phrase result shell_word text)
fp4moe_explorer_sources(explorer_base fp4moe/formats)
fp4moe_explorer_sources(explorer_base fp4moe/platform device environment findings pseudo_file_trimmed settings)
fp4moe_explorer_sources(explorer_base fp4moe/layout)
fp4moe_explorer_sources(explorer_base fp4moe/tensor dtype shape)
fp4moe_explorer_sources(explorer_base fp4moe/tensor/files mapped_file)
foreach(folder oracle oracle/vllm oracle/explain)
  fp4moe_explorer_sources(explorer_oracle fp4moe/${folder})
endforeach()
fp4moe_explorer_sources(explorer_backends fp4moe/backends)
fp4moe_explorer_sources(explorer_backends fp4moe/backends/*)
fp4moe_explorer_sources(explorer_plan fp4moe/plan model other_splits plan plan_json split wire)
fp4moe_explorer_sources(explorer_plan fp4moe/checkpoint config dialect gguf_fields models module_regex quant_claim slice)
fp4moe_explorer_sources(explorer_plan fp4moe/moe quantized_rows rows)
fp4moe_explorer_sources(explorer_plan fp4moe/moe/exchange cost table wire)
fp4moe_explorer_sources(explorer_plan fp4moe/runtime answer selection_request vllm_log vllm_messages)
fp4moe_explorer_sources(explorer_cli fp4moe/cli answer_text assign error_text errors_toml explain help_text layout_places layouts list
                        numbers options parse plan program run_words selection_options)
fp4moe_explorer_sources(explorer_cli explorer)
fp4moe_explorer_sources(explorer_cli bundled fmt)

set(explorer ${PROJECT_BINARY_DIR}/explorer)
file(MAKE_DIRECTORY ${explorer}/objects ${explorer}/include)
# The headers of the dependencies without the machine's C library beside them.
foreach(header fmt/format.h nlohmann/json.hpp)
  get_filename_component(name ${header} DIRECTORY)
  find_path(explorer_${name} ${header} HINTS ${FP4MOE_DEPS}/include REQUIRED)
  file(CREATE_LINK ${explorer_${name}}/${name} ${explorer}/include/${name} SYMBOLIC)
endforeach()
set(zig ${CMAKE_COMMAND} -E env ZIG_GLOBAL_CACHE_DIR=${explorer}/cache ZIG_LOCAL_CACHE_DIR=${explorer}/cache ${FP4MOE_ZIG}
    c++ -target wasm32-wasi -Os)
set(explorer_objects "")
foreach(part base oracle backends plan cli)
  set(includes ${explorer_${part}})
  list(TRANSFORM includes REPLACE "(.+)" "#include \"\\1\"\n")
  string(CONCAT includes ${includes})
  file(CONFIGURE OUTPUT ${explorer}/objects/${part}.cpp CONTENT "${includes}" @ONLY)
  set(object ${explorer}/objects/${part}.o)
  add_custom_command(OUTPUT ${object} DEPFILE ${object}.d DEPENDS ${explorer}/objects/${part}.cpp VERBATIM
    COMMAND ${zig} -std=c++20 -ffp-contract=off -fexceptions -ffunction-sections -fdata-sections -Wno-c++11-narrowing
            -D_WASI_EMULATED_MMAN -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_BINARY_DIR}/generated -isystem ${explorer}/include
            -MD -MF ${object}.d -MT ${object} -c ${explorer}/objects/${part}.cpp -o ${object}
    COMMENT "Compiling ${part} to WebAssembly")
  list(APPEND explorer_objects ${object})
endforeach()
add_custom_command(OUTPUT ${explorer}/fp4moe.wasm DEPENDS ${explorer_objects} VERBATIM
  COMMAND ${zig} -Wl,--gc-sections -Wl,--strip-all -lwasi-emulated-mman ${explorer_objects} -o ${explorer}/fp4moe.wasm
  COMMENT "Linking fp4moe.wasm")
file(GLOB page CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/site/explorer/*)
find_package(Python3 COMPONENTS Interpreter REQUIRED)
add_custom_command(OUTPUT ${explorer}/html/index.html DEPENDS ${explorer}/fp4moe.wasm ${page} tools/explorer.py VERBATIM
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/explorer.py ${explorer}/fp4moe.wasm ${explorer}/html
  COMMENT "Writing ${explorer}/html/index.html")
add_custom_target(fp4moe_explorer DEPENDS ${explorer}/html/index.html)
