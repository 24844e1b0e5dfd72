# FP4MOE_SANITIZE=address,undefined instruments everything, ours and the tests'.
if(FP4MOE_SANITIZE)
  add_compile_options(-fsanitize=${FP4MOE_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${FP4MOE_SANITIZE})
  if(FP4MOE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
