#include "fp4moe/convert/folder/model_files.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "fp4moe/base/json.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"
#include "fp4moe/tensor/files/mapped_file.hpp"

namespace fp4moe::convert {
namespace {

constexpr std::string_view kKey = "quantization_config";
constexpr std::string_view kSpace = " \t\r\n";

// The first place from `at` on behind the string that begins there.
std::size_t behind_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

// The end of the value that begins at `at`: the comma or bracket behind it.
std::size_t behind_value(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  while (at < text.size()) {
    const char each = text[at];
    if (each == '"') {
      at = behind_string(text, at);
      continue;
    }
    if (depth == 0 && (each == ',' || each == '}' || each == ']')) break;
    if (each == '{' || each == '[') ++depth;
    if (each == '}' || each == ']') --depth;
    ++at;
  }
  return at;
}

struct ByteRange {
  std::size_t begin = 0, end = 0;
};

// The value of a member of the object that the text is.
std::optional<ByteRange> find_value(std::string_view text, std::string_view key) {
  std::size_t at = text.find('{');
  while (at < text.size()) {
    at = text.find_first_of("\"}", at + 1);
    if (at >= text.size() || text[at] == '}') return std::nullopt;
    const std::size_t end = behind_string(text, at);
    const bool is_it = text.substr(at + 1, end - at - 2) == key;
    const std::size_t colon = text.find(':', end);
    if (colon == text.npos) return std::nullopt;
    const std::size_t begin = text.find_first_not_of(kSpace, colon + 1);
    if (begin == text.npos) return std::nullopt;
    at = behind_value(text, begin);
    if (is_it) {
      std::size_t last = at;
      while (last > begin && kSpace.find(text[last - 1]) != kSpace.npos) --last;
      return ByteRange{begin, last};
    }
  }
  return std::nullopt;
}

std::string method(std::string_view source) {
  return fmt::format(R"({{"quant_method": "fp4moe", "source": {}}})", source);
}

}  // namespace

bool is_generated(std::string_view name) { return name == kConfigName || name == kOthersIndexName; }

std::optional<std::string> config_for_fp4moe(std::string_view config, std::string_view beside) {
  const std::size_t open = config.find_first_not_of(kSpace);
  if (open == config.npos || config[open] != '{') return std::nullopt;
  std::string result(config);
  if (const auto found = find_value(config, kKey)) {
    const std::size_t size = found->end - found->begin;
    return result.replace(found->begin, size, method(config.substr(found->begin, size)));
  }
  // A model of several parts may say it in its text part.
  std::string_view source = beside.empty() ? "null" : beside;
  if (const auto part = find_value(config, "text_config")) {
    const std::string_view inside = config.substr(part->begin, part->end - part->begin);
    if (inside.starts_with('{'))
      if (const auto found = find_value(inside, kKey))
        source = inside.substr(found->begin, found->end - found->begin);
  }
  const bool is_empty =
      config[std::min(config.find_first_not_of(kSpace, open + 1), config.size() - 1)] == '}';
  return result.insert(
      open + 1, fmt::format("\n  \"{}\": {}{}", kKey, method(source), is_empty ? "\n" : ","));
}

// Written as text, entry by entry: a member of a JSON object is found by looking at all before it.
std::string others_index(const std::vector<FileRecord>& files, std::string_view prefix) {
  std::string map;
  std::uint64_t bytes = 0;
  for (const FileRecord& file : files) {
    if (!file.name.starts_with("others-")) continue;
    const std::string shard = quoted_json(fmt::format("{}{}", prefix, file.name));
    for (const TensorRecord& tensor : file.tensors) {
      map += map.empty() ? "\n" : ",\n";
      map += "    " + quoted_json(tensor.name) + ": " + shard;
      bytes += tensor.bytes;
    }
  }
  if (!map.empty()) map += "\n  ";
  return fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{{}}}\n}}\n",
      bytes, map);
}

Result<Done> write_parent(const std::string& out, const std::string& first) {
  const Result<Manifest> manifest = read_manifest(fmt::format("{}/{}", out, first));
  if (!manifest) return manifest.why();
  const auto write = [&out](std::string_view name, std::span<const std::byte> bytes) {
    return tensor::write_file(fmt::format("{}/{}", out, name), bytes);
  };
  const CompanionRecord* config = nullptr;
  const auto copy = [&](const CompanionRecord& file) -> Result<Done> {
    const auto mapped = tensor::MappedFile::open(fmt::format("{}/{}/{}", out, first, file.name));
    if (!mapped) return mapped.why();
    return write(file.name, mapped->bytes());
  };
  for (const CompanionRecord& file : manifest->companions) {
    if (file.name == kConfigName) config = &file;
    if (is_generated(file.name)) continue;
    if (Result<Done> done = copy(file); !done) return done;
  }
  if (config == nullptr) return Done{};
  const bool has_others = std::ranges::any_of(
      manifest->companions, [](const auto& file) { return file.name == kOthersIndexName; });
  if (has_others) {
    const std::string index = others_index(manifest->files, fmt::format("{}/", first));
    if (Result<Done> done = write(kOthersIndexName, std::as_bytes(std::span(index))); !done)
      return done;
  }
  return copy(*config);  // last: what is there is whole
}

}  // namespace fp4moe::convert
