// For tests: a folder that stands in for the machine's root, and variables that stand in for the
// environment.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "fp4moe/platform/settings.hpp"

namespace fp4moe::platform {

class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fp4moe_root_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  ~FakeRoot() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  // `path` begins with a slash; folders on the way are made.
  void file(const std::string& path, std::string_view content = "") const {
    folder(std::filesystem::path(path).parent_path().string());
    std::ofstream(path_ + path, std::ios::binary) << content;
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(path_ + path); }
  void program(const std::string& path) const {
    file(path, "#!/bin/sh\n");
    std::filesystem::permissions(path_ + path, std::filesystem::perms::owner_exec,
                                 std::filesystem::perm_options::add);
  }
  // `target` is relative to the link's folder.
  void link(const std::string& path, const std::string& target) const {
    folder(std::filesystem::path(path).parent_path().string());
    std::filesystem::create_symlink(target, path_ + path);
  }

 private:
  std::string path_;
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
