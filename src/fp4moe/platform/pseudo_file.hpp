// Small files of /proc, /sys and installations: read without trusting their size, never an error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe::platform {

// The first `max` bytes; empty when there is no such file. Pseudo files report no size, so a bound
// stands in for it.
std::string read_start(const std::string& path, std::size_t max = 16384);

// The entries of a folder, ordered by text and then number: node2 before node10. Empty when it
// cannot be read; at most 4096 of them.
std::vector<std::string> entry_names(const std::string& folder);

// folder/entry
std::string inside(std::string_view folder, std::string_view entry);

bool exists(const std::string& path);
bool is_file(const std::string& path);
bool is_folder(const std::string& path);
bool is_program(const std::string& path);  // a file that may be executed

std::string_view trimmed(std::string_view text);

// The value of the first line "key<separator>value", spaces around both taken off.
std::string_view value_of(std::string_view lines, std::string_view key, char separator);
// The same when it is a whole number.
std::optional<std::uint64_t> number_of(std::string_view lines, std::string_view key,
                                       char separator);

}  // namespace fp4moe::platform
