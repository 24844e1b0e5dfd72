#include "fp4moe/platform/pseudo_file.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "fp4moe/base/folder_names.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::platform {
namespace {

constexpr std::size_t kMaxEntries = 4096;

// Text before the number at the end, and that number: "node10" -> {"node", 10}.
std::pair<std::string_view, std::uint64_t> text_and_number(std::string_view name) {
  std::size_t start = name.size();
  while (start > 0 && name[start - 1] >= '0' && name[start - 1] <= '9') --start;
  std::uint64_t number = 0;
  std::from_chars(name.data() + start, name.data() + name.size(), number);
  return {name.substr(0, start), number};
}

}  // namespace

std::string read_start(const std::string& path, std::size_t max) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::string text(max, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::vector<std::string> entry_names(const std::string& folder) {
  std::vector<std::string> names;
  add_names_in(folder, names);  // none, or some, where it cannot be read
  if (names.size() > kMaxEntries) names.resize(kMaxEntries);
  std::ranges::sort(names, [](const std::string& a, const std::string& b) {
    const auto left = text_and_number(a), right = text_and_number(b);
    return left != right ? left < right : a < b;
  });
  return names;
}

std::string inside(std::string_view folder, std::string_view entry) {
  std::string path(folder);
  path += '/';
  path += entry;
  return path;
}

bool exists(const std::string& path) {
  std::error_code failed;
  return std::filesystem::exists(path, failed);
}

bool is_file(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_regular_file(path, failed);
}

bool is_folder(const std::string& path) {
  std::error_code failed;
  return std::filesystem::is_directory(path, failed);
}

bool is_program(const std::string& path) {
  return is_file(path) && access(path.c_str(), X_OK) == 0;
}

std::string_view value_of(std::string_view lines, std::string_view key, char separator) {
  for (const std::string_view whole : split(lines, '\n')) {
    const std::string_view line = trimmed(whole);
    const auto at = line.find(separator);
    if (at != std::string_view::npos && trimmed(line.substr(0, at)) == key)
      return trimmed(line.substr(at + 1));
  }
  return {};
}

std::optional<std::uint64_t> number_of(std::string_view lines, std::string_view key,
                                       char separator) {
  const std::string_view digits = value_of(lines, key, separator);
  std::uint64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

}  // namespace fp4moe::platform
