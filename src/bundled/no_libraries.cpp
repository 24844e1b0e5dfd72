// Taken before the module's own open_library.cpp: the static program.
#include "fp4moe/platform/open_library.hpp"

namespace fp4moe::platform {

bool opens_libraries() { return false; }

OpenedLibrary open_library(const std::string&) {
  return {.why = "this program is linked statically and cannot load a driver",
          .remedy = "use the program that `make build` or `make cuda` makes, or `pip install`"};
}

void* find_symbol(void*, const char*) { return nullptr; }

}  // namespace fp4moe::platform
