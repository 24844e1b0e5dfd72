// What the files of this room share of the operating system: names, flushing, errors.
#pragma once
#include <string>
#include <string_view>

#include "fp4moe/base/result.hpp"

namespace fp4moe::tensor {

// "a/b" -> "a", "b" -> ".", "/b" -> "/."
std::string parent_folder(const std::string& path);
// "a/b" -> "b"; empty for "a/", "." and "..", which name folders.
std::string last_component(const std::string& path);

// fsync, patient with interruptions; true where the file system has no such thing. Else errno.
bool flush(int fd);
bool flush_folder(const std::string& path);

// As system_error, but a full disk, quota or file size limit always has the id "file.disk_full".
Error file_error(std::string_view id, std::string_view action, int errno_value);

}  // namespace fp4moe::tensor
