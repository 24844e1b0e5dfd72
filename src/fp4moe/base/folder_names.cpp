#include "fp4moe/base/folder_names.hpp"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

namespace fp4moe {
namespace {

constexpr int kOpenNames = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

int add_names(int own, std::vector<std::string>& names) {
  if (own < 0) return errno;
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(own), closedir);
  if (!stream) {
    const int why = errno;
    close(own);
    return why;
  }
  const auto first = static_cast<std::ptrdiff_t>(names.size());
  errno = 0;
  while (const dirent* entry = readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
    errno = 0;
  }
  if (errno != 0) return errno;
  std::sort(names.begin() + first, names.end());
  return 0;
}

}  // namespace

int add_names_in(int folder, std::vector<std::string>& names) {
  return add_names(openat(folder, ".", kOpenNames), names);  // with a position of its own
}

int add_names_in(const std::string& folder, std::vector<std::string>& names) {
  return add_names(open(folder.c_str(), kOpenNames), names);
}

}  // namespace fp4moe
