#include "fp4moe/platform/open_library.hpp"

#include <dlfcn.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {

bool opens_libraries() { return true; }

OpenedLibrary open_library(const std::string& name) {
  OpenedLibrary opened{.handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)};
  if (opened.handle != nullptr) return opened;
  const char* const why = dlerror();
  opened.why = printable(why == nullptr ? "no reason" : why);
  return opened;
}

void* find_symbol(void* library, const char* name) { return dlsym(library, name); }

}  // namespace fp4moe::platform
