# FP4MOE_SANITIZE=address,undefined instruments everything, ours and the tests'. Modules are then shared
# libraries with line numbers alone: a hundred test programs, each with all of it inside, fill a disk.
set(FP4MOE_MODULE_KIND STATIC)
if(FP4MOE_SANITIZE)
  set(FP4MOE_MODULE_KIND SHARED)
  add_compile_options(-fsanitize=${FP4MOE_SANITIZE} -fno-omit-frame-pointer -g1 -Og)
  add_compile_definitions(XXH_NO_INLINE_HINTS=1)  # xxhash insists on -O1
  add_link_options(-fsanitize=${FP4MOE_SANITIZE})
  if(FP4MOE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Two checks of every access that g++ compiles for minutes, up to five times as long as without: the
      # address sanitizer finds what they would. clang's, under fuzzing, stay.
      add_compile_options(-fno-sanitize=null,object-size)
    endif()
  endif()
endif()
