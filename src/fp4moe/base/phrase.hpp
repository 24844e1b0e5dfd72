// Human-readable text: counts with their noun, lines that fit a terminal, and what was meant by a word
// that is not on a list.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fp4moe {

// "1 expert", "2 experts", "1 entry", "2 entries"
std::string counted(std::uint64_t count, std::string_view noun);

// Control characters and invalid UTF-8 as \xNN; cut, with "..." behind it, where that has more than
// `max` bytes. printable() of text.hpp is this for short untrusted words.
std::string escaped(std::string_view text, std::size_t max = std::string_view::npos);

// Lines of at most `columns` characters, broken at spaces; all but the first begin with `indent`
// spaces. A word that is longer keeps its line to itself. 0 columns: one line.
std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent = 0);

// True if two words differ only in case, '-' and '_'.
bool is_same_word(std::string_view a, std::string_view b);

// The candidate that was meant: the one spelled alike (text.hpp: nearest), or the one that has all
// parts of the word ("gpt-oss" in "gpt-oss-20b"), or whose parts the word has all
// ("openai/gpt-oss-20b"). Empty where there is none.
std::string_view meant(std::string_view word, std::span<const std::string_view> candidates);

// "did you mean X?", or `otherwise` where nothing is near.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates,
                         std::string_view otherwise = {});

}  // namespace fp4moe
