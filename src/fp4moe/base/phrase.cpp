#include "fp4moe/base/phrase.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "fp4moe/base/text.hpp"

namespace fp4moe {
namespace {

bool is_separator(char c) { return std::string_view("-_./ (),").find(c) != std::string_view::npos; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// "FLASHINFER-trtllm" -> {"flashinfer", "trtllm"}
std::vector<std::string> parts_of(std::string_view word) {
  std::vector<std::string> parts(1);
  for (const char c : word) {
    if (!is_separator(c))
      parts.back() += lower(c);
    else if (!parts.back().empty())
      parts.emplace_back();
  }
  if (parts.back().empty()) parts.pop_back();
  return parts;
}

bool has_all(const std::vector<std::string>& whole, const std::vector<std::string>& parts) {
  return !parts.empty() && std::ranges::all_of(parts, [&](const std::string& part) {
    return std::ranges::find(whole, part) != whole.end();
  });
}

// Bytes of the well-formed UTF-8 character at the front of `bytes`; 0 if there is none.
std::size_t character_length(std::string_view bytes) {
  for (std::size_t length = 1; length <= std::min<std::size_t>(4, bytes.size()); ++length)
    if (is_utf8(bytes.substr(0, length))) return length;
  return 0;
}

// Characters, not bytes: what follows the first byte of one is 10xxxxxx.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string counted(std::uint64_t count, std::string_view noun) {
  std::string result = std::to_string(count) + " ";
  if (count == 1) return result.append(noun);
  const bool takes_ies = noun.ends_with("ry");
  const bool takes_es = noun.ends_with("x") || noun.ends_with("ch");
  result.append(takes_ies ? noun.substr(0, noun.size() - 1) : noun);
  return result.append(takes_ies ? "ies" : takes_es ? "es" : "s");
}

std::string escaped(std::string_view text, std::size_t max) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    if (result.size() >= max) return result + "...";
    const std::size_t length = character_length(text.substr(at));
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      std::array<char, 5> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", byte);
      result += escape.data();
      ++at;
    } else {
      result += text.substr(at, length);
      at += length;
    }
  }
  return result;
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  if (columns == 0) return std::string(text);
  std::string result;
  std::size_t used = 0;
  bool at_start = true;
  for (const std::string_view word : split(text, ' ')) {
    const std::size_t width = columns_of(word);
    if (!at_start && used + 1 + width > columns) {
      result += "\n" + std::string(indent, ' ');
      used = indent;
      at_start = true;
    }
    if (!at_start) result += ' ', ++used;
    result += word;
    used += width;
    at_start = false;
  }
  return result;
}

bool is_same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](char x, char y) { return lower(x == '_' ? '-' : x) == lower(y == '_' ? '-' : y); });
}

std::string_view meant(std::string_view word, std::span<const std::string_view> candidates) {
  const std::vector<std::string> parts = parts_of(word);
  for (const std::string_view candidate : candidates)
    if (!parts.empty() && join(parts_of(candidate), "") == join(parts, "")) return candidate;
  if (const std::string_view near = nearest(word, candidates); !near.empty()) return near;
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    const std::vector<std::string> known = parts_of(candidate);
    // Among names inside the word the longest wins; among names around it, the first.
    if (has_all(parts, known) && candidate.size() > best.size()) best = candidate;
  }
  if (!best.empty()) return best;
  const auto holds =
      std::ranges::find_if(candidates, [&](auto name) { return has_all(parts_of(name), parts); });
  return holds == candidates.end() ? std::string_view() : *holds;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view otherwise) {
  const std::string_view near = meant(word, candidates);
  return near.empty() ? std::string(otherwise) : "did you mean " + std::string(near) + "?";
}

}  // namespace fp4moe
