// Which of the packages that other projects' backends need are installed, found without running
// Python: folders with the package's name in the places where Python would look.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/platform/device.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::platform {

struct LibrariesFrom {
  std::string root{};  // goes before every path; empty: this machine
  Lookup lookup = environment;
};

struct FoundLibrary {
  Library library{};
  std::string path{};  // the package's folder
  bool usable = true;  // FlashInfer counts only with its kernels or a compiler
  std::string note{};  // why it is not usable, or what makes it so
};

// The folders Python would search, in its order: PYTHONPATH, then the packages of VIRTUAL_ENV,
// CONDA_PREFIX and of the python3 that PATH finds, then the user's and the system's unless that
// python3 belongs to a virtual environment without them, and what .pth files in them add.
std::vector<std::string> package_folders(const LibrariesFrom& from = {});

// A Python package that is installed, found by the folder with its metadata.
struct FoundPackage {
  std::string version{};  // "0.33.0+cu129"
  std::string path{};     // of the metadata
};
// In the folder that Python would take it from; nothing when it is in none.
std::optional<FoundPackage> find_installed_package(std::string_view name,
                                                   const LibrariesFrom& from = {});

// At most one entry per library, in the order of the enumeration.
std::vector<FoundLibrary> find_libraries(const LibrariesFrom& from = {});
EnumSet<Library> usable_libraries(std::span<const FoundLibrary> found);

}  // namespace fp4moe::platform
