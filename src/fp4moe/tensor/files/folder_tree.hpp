// The content of a folder, reached from its descriptor alone: a process that renames folders or
// puts links in their places meanwhile cannot lead these elsewhere. Links are never followed.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fp4moe::tensor {

struct TreeFailure {
  int why = 0;  // an errno
  std::string name{};
};

// All names but "." and "..".
std::optional<TreeFailure> list_names(int folder, std::vector<std::string>& names);
// Removes whatever the folder holds but these names, not the folder itself.
std::optional<TreeFailure> remove_inside(int folder, const std::set<std::string>& but = {});
// Removes a folder with everything in it, or a file: what is only there for a while. What cannot be
// removed stays, also where there is no memory for the names.
void remove_folder(const std::string& path) noexcept;
// Brings every file and folder below it, and the folder itself, to the disk.
std::optional<TreeFailure> flush_tree(int folder);

}  // namespace fp4moe::tensor
