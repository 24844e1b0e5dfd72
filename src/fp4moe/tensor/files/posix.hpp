// Calls of the operating system that this folder shares: descriptors, names, flushing, errors.
#pragma once
#include <string>
#include <string_view>
#include <utility>

#include <unistd.h>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

// An open file or folder that is closed with it.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// "/proc/self/fd/7": a path to what is open, whatever its names have become.
std::string descriptor_link(int fd);

// "a/b" -> "a", "b" -> ".", "/b" -> "/."
std::string parent_folder(const std::string& path);
// "a/b" -> "b"; empty for "a/", "." and "..", which name folders.
std::string last_component(const std::string& path);

// fsync, patient with interruptions; true where the file system has no such thing. Else errno.
bool flush(int fd);
bool flush_folder(const std::string& path);
bool flush_folder_at(int folder);  // `folder` may be open for its path alone

constexpr const char* kFreeSpace = "free space there or choose another place; nothing was written";
// As system_error, but a full disk, quota or file size limit always has the id "file.disk_full".
Error file_error(std::string_view id, std::string_view action, int errno_value);
// For a step that fails when the output has its name already: the message begins with kNamedBut.
constexpr std::string_view kNamedBut = "the output is complete and has its name, but ";
Error named_but(std::string_view id, std::string_view action, int errno_value);

}  // namespace fp4moe::tensor
