#include "fp4moe/base/at_path.hpp"

#include <cerrno>

#include <sys/stat.h>

namespace fp4moe {

AtPath at_path(const std::string& path) {
  struct stat found {};
  if (stat(path.c_str(), &found) == 0)
    return S_ISDIR(found.st_mode) ? AtPath::folder : AtPath::file;
  return errno == ENOENT || errno == ENOTDIR ? AtPath::nothing : AtPath::unknown;
}

}  // namespace fp4moe
