// Shared libraries that are opened while the program runs. One that is linked statically opens none
// (src/bundled/no_libraries.cpp): glibc would load a second C library beside the one inside the
// program, and only of the very version it was built with.
#pragma once
#include <string>

namespace fp4moe::platform {

// True if this program can open libraries at all.
bool opens_libraries();

struct OpenedLibrary {
  void* handle = nullptr;  // null: it could not be opened
  std::string why{};       // then
  std::string remedy{};    // where no library can be opened
};
// Never closed: drivers keep threads and handlers that outlive any one caller.
OpenedLibrary open_library(const std::string& name);
// The address of a name, or null.
void* find_symbol(void* library, const char* name);

}  // namespace fp4moe::platform
