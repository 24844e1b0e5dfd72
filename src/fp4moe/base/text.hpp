// Small text helpers shared by messages, tables and file names.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp4moe {

// Untrusted text made safe to show: control characters and invalid UTF-8 as \xNN, cut at 200 bytes.
std::string printable(std::string_view untrusted);

bool is_utf8(std::string_view bytes);

// 1536 -> "1.50 KiB"
std::string human_bytes(std::uint64_t bytes);

std::string join(std::span<const std::string> parts, std::string_view separator);
std::vector<std::string_view> split(std::string_view whole, char separator);

// The candidate that is spelled most like `word` (the first of equals), or empty when none is near
// enough to be what was meant: `max_edits` letters may differ, a third of the word unless
// told otherwise. Case does not count, nor does '-' for '_'.
std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates,
                         std::optional<std::size_t> max_edits = std::nullopt);

// Shell-style match of `name` against `pattern`: * any run, ? one character.
bool matches_wildcard(std::string_view pattern, std::string_view name);

}  // namespace fp4moe
