#include "fp4moe/tensor/files/posix.hpp"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace fp4moe::tensor {

std::string descriptor_link(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

std::string parent_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/." : path.substr(0, slash);
}

std::string last_component(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  return name == "." || name == ".." ? std::string() : name;
}

bool flush(int fd) {
  while (fsync(fd) != 0) {
    if (errno == EINTR) continue;
    return errno == EINVAL || errno == ENOTSUP;
  }
  return true;
}

bool flush_folder(const std::string& path) {
  const Descriptor folder(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  return folder && flush_folder_at(folder.get());
}

bool flush_folder_at(int folder) {
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno == EACCES;  // a folder we may write to but not read
  const bool flushed = flush(fd);
  const int saved = errno;
  close(fd);
  errno = saved;
  return flushed;
}

Error file_error(std::string_view id, std::string_view action, int errno_value) {
  const bool full = errno_value == ENOSPC || errno_value == EDQUOT || errno_value == EFBIG;
  Error why = system_error(full ? "file.disk_full" : id, action, errno_value);
  if (!full) return why;
  return std::move(why).try_this(kFreeSpace);
}

Error named_but(std::string_view id, std::string_view action, int errno_value) {
  return system_error(id, std::string(kNamedBut) + std::string(action), errno_value)
      .try_this("keep it, or remove it and run again: a power failure now may undo it");
}

}  // namespace fp4moe::tensor
