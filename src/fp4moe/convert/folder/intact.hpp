// Checks that a file still holds what its record says.
#pragma once
#include <cstddef>
#include <string>

#include "fp4moe/base/result.hpp"
#include "fp4moe/convert/folder/manifest.hpp"

namespace fp4moe::convert {

// True if an error is about the files. Lack of memory or descriptors and what
// the system refuses of a file that is there are no damage.
bool is_damage(const Error& why);

// Reads the whole file: its size, its header and every tensor's checksum are as recorded. False for
// a file that is missing or not a regular one. Errors: no memory or descriptors, interrupted.
Result<bool> is_intact(const std::string& path, const FileRecord& record, std::size_t threads);

}  // namespace fp4moe::convert
