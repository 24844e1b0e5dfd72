#include "fp4moe/tensor/files/folder_tree.hpp"

#include <cerrno>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/tensor/files/posix.hpp"

namespace fp4moe::tensor {
namespace {

constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

std::optional<TreeFailure> remove_entry(int folder, const std::string& name) {
  if (unlinkat(folder, name.c_str(), 0) == 0 || errno == ENOENT) return std::nullopt;
  if (errno != EISDIR && errno != EPERM) return TreeFailure{errno, name};
  const Descriptor inner(openat(folder, name.c_str(), kOpenFolder));
  if (!inner) return TreeFailure{errno, name};
  if (auto failure = remove_inside(inner.get()))
    return TreeFailure{failure->why, name + "/" + failure->name};
  if (unlinkat(folder, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return std::nullopt;
  return TreeFailure{errno, name};
}

std::optional<TreeFailure> flush_entry(int folder, const std::string& name) {
  struct stat status {};
  if (fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
    return TreeFailure{errno, name};
  if (S_ISDIR(status.st_mode)) {
    const Descriptor inner(openat(folder, name.c_str(), kOpenFolder));
    if (!inner) return TreeFailure{errno, name};
    auto failure = flush_tree(inner.get());
    if (failure) failure->name = name + "/" + failure->name;
    return failure;
  }
  if (!S_ISREG(status.st_mode)) return std::nullopt;
  const Descriptor file(
      openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file || !flush(file.get())) return TreeFailure{errno, name};
  return std::nullopt;
}

}  // namespace

std::optional<TreeFailure> list_names(int folder, std::vector<std::string>& names) {
  if (const int why = add_names_in(folder, names); why != 0) return TreeFailure{why, {}};
  return std::nullopt;
}

std::optional<TreeFailure> remove_inside(int folder, const std::set<std::string>& but) {
  std::vector<std::string> names;
  if (auto failure = list_names(folder, names)) return failure;
  for (const std::string& name : names) {
    if (but.contains(name)) continue;
    if (auto failure = remove_entry(folder, name)) return failure;
  }
  return std::nullopt;
}

void remove_folder(const std::string& path) noexcept {
  try {
    remove_entry(AT_FDCWD, path);
  } catch (const std::bad_alloc&) {
  }
}

std::optional<TreeFailure> flush_tree(int folder) {
  std::vector<std::string> names;
  if (auto failure = list_names(folder, names)) return failure;
  for (const std::string& name : names)
    if (auto failure = flush_entry(folder, name)) return failure;
  if (!flush(folder)) return TreeFailure{errno, "."};
  return std::nullopt;
}

}  // namespace fp4moe::tensor
