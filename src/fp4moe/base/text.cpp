#include "fp4moe/base/text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "fp4moe/base/phrase.hpp"

namespace fp4moe {
namespace {

// Length of the well-formed UTF-8 sequence at the front of `bytes`, 0 if there is none.
std::size_t sequence_length(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || bytes.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool surrogate = lead == 0xED && second > 0x9F;
  const bool beyond = lead == 0xF4 && second > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

std::string spelling(std::string_view word) {
  std::string result;
  for (const char c : word)
    result += c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

// Letters to insert, drop, replace, or swap with their neighbor, to make one word of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({row[j - 1] + 1, last[j] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string printable(std::string_view untrusted) {
  constexpr std::size_t kMax = 200;
  return escaped(untrusted, kMax);
}

bool is_utf8(std::string_view bytes) {
  for (std::size_t i = 0; i < bytes.size();) {
    const std::size_t length = sequence_length(bytes.substr(i));
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits.at(unit));
  return out.data();
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string whole;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i != 0) whole += separator;
    whole += parts[i];
  }
  return whole;
}

std::vector<std::string_view> split(std::string_view whole, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = whole.find(separator);
    parts.push_back(whole.substr(0, end));
    if (end == std::string_view::npos) return parts;
    whole.remove_prefix(end + 1);
  }
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates,
                         std::optional<std::size_t> max_edits) {
  constexpr std::size_t kLongest = 100;  // of untrusted words; the work is quadratic
  if (word.empty() || word.size() > kLongest) return {};
  const std::string asked = spelling(word);
  const std::size_t max = max_edits.value_or(std::max<std::size_t>(1, word.size() / 3));
  std::size_t min = max + 1, longest = 0;
  std::string_view best;
  for (const std::string_view candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const std::string known = spelling(candidate);
    const std::size_t distance = edit_distance(asked, known);
    // Among equals, the one that begins like the word.
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(asked, known).in1 - asked.begin());
    if (distance > max || distance > min || (distance == min && common <= longest)) continue;
    min = distance;
    longest = common;
    best = candidate;
  }
  return best;
}

bool matches_wildcard(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, mark = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace fp4moe
