// For tests: a folder that stands in for the machine's root, and variables that stand in for the
// environment.
#pragma once
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "fp4moe/platform/settings.hpp"
#include "support/temporary_folder.hpp"

namespace fp4moe::platform {

class FakeRoot {
 public:
  const std::string& path() const { return folder_.path(); }

  // `path` begins with a slash; folders on the way are made.
  void file(const std::string& path, std::string_view content = "") const {
    folder(std::filesystem::path(path).parent_path().string());
    std::ofstream(folder_.path() + path, std::ios::binary) << content;
  }
  void folder(const std::string& path) const {
    std::filesystem::create_directories(folder_.path() + path);
  }
  void program(const std::string& path) const {
    file(path, "#!/bin/sh\n");
    std::filesystem::permissions(folder_.path() + path, std::filesystem::perms::owner_exec,
                                 std::filesystem::perm_options::add);
  }
  // `target` is relative to the link's folder.
  void link(const std::string& path, const std::string& target) const {
    folder(std::filesystem::path(path).parent_path().string());
    std::filesystem::create_symlink(target, folder_.path() + path);
  }

 private:
  fp4moe::testing::TemporaryFolder folder_{};
};

using Variables = std::map<std::string, std::string, std::less<>>;

inline Lookup with(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

}  // namespace fp4moe::platform
