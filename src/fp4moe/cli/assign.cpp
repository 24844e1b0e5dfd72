// A word of the command line becomes a value, or an error that says what the option takes.
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "fp4moe/base/at_path.hpp"
#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/options.hpp"

namespace fp4moe::cli {
namespace {

template <typename T>
std::optional<T> number_from(std::string_view text) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::uint64_t kKilo = 1000, kKibi = 1024;
constexpr Unit kUnits[] = {{"", 1},
                           {"b", 1},
                           {"k", kKilo},
                           {"kb", kKilo},
                           {"kib", kKibi},
                           {"m", kKilo* kKilo},
                           {"mb", kKilo* kKilo},
                           {"mib", kKibi* kKibi},
                           {"g", kKilo* kKilo* kKilo},
                           {"gb", kKilo* kKilo* kKilo},
                           {"gib", kKibi* kKibi* kKibi},
                           {"t", kKilo* kKilo* kKilo* kKilo},
                           {"tb", kKilo* kKilo* kKilo* kKilo},
                           {"tib", kKibi* kKibi* kKibi* kKibi}};

// "5GB" -> 5000000000
std::optional<std::uint64_t> bytes_from_text(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = number_from<std::uint64_t>(text.substr(0, digits));
  std::string_view unit = text.substr(digits);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& row : kUnits)
    if (number && is_same_word(unit, row.name) &&
        *number <= std::numeric_limits<std::uint64_t>::max() / row.bytes)
      return *number * row.bytes;
  return std::nullopt;
}

// "a whole number from 1 to 8"
std::string demand(const Option& option, std::string_view kind) {
  std::string result(kind);
  if (const auto* whole = std::get_if<Range<std::uint64_t>>(&option.range))
    result += fmt::format(" from {} to {}", whole->low, whole->high);
  else if (const auto* any = std::get_if<Range<double>>(&option.range))
    result += fmt::format(" from {} to {}", any->low, any->high);
  return result;
}

Error refused(const Option& option, std::string_view expected, std::string_view text) {
  const std::string name = option.is_positional() ? option.name() : option.spellings().back();
  return usage("command.value", fmt::format("{} does not take this value", name))
      .expects(expected, "'" + printable(text) + "'");
}

template <typename T>
bool is_in_range(const Option& option, T value) {
  const auto* range = std::get_if<Range<T>>(&option.range);
  return range == nullptr || (value >= range->low && value <= range->high);
}

struct Assign {
  const Option& option;
  std::string_view text;

  Result<Done> operator()(bool* value) const {
    *value = true;
    return Done{};
  }

  Result<Done> operator()(std::string* value) const {
    const Result<std::string> word = chosen(text);
    if (!word) return word.why();
    *value = *word;
    if (option.is_existing_folder && at_path(*value) != AtPath::folder)
      return error(ErrorCode::failed, "file.open", "there is no such folder").in(*value);
    return Done{};
  }

  Result<Done> operator()(std::vector<std::string>* values) const {
    const auto words = option.item.empty() ? std::vector<std::string_view>{text} : split(text, ',');
    for (const std::string_view each : words) {
      if (!option.item.empty() && each.empty())
        return refused(option, fmt::format("{},... with no empty one", option.item), text);
      const Result<std::string> word = chosen(each);
      if (!word) return word.why();
      values->push_back(*word);
    }
    return Done{};
  }

  Result<Done> operator()(std::uint64_t* value) const {
    const auto number =
        option.is_in_bytes ? bytes_from_text(text) : number_from<std::uint64_t>(text);
    if (!number || !is_in_range(option, *number))
      return refused(option,
                     option.is_in_bytes ? "a size such as 5GB, 500MB or 2GiB"
                                        : demand(option, "a whole number"),
                     text);
    *value = *number;
    return Done{};
  }

  Result<Done> operator()(std::optional<std::uint64_t>* value) const {
    std::uint64_t number = 0;
    if (const auto done = (*this)(&number); !done) return done;
    *value = number;
    return Done{};
  }

  Result<Done> operator()(std::optional<double>* value) const {
    const auto number = number_from<double>(text);
    if (!number || !is_in_range(option, *number))
      return refused(option, demand(option, "a number"), text);
    *value = *number;
    return Done{};
  }

  // The choice that is spelled so, or the word itself where everything goes.
  Result<std::string> chosen(std::string_view word) const {
    if (option.choices.empty()) return std::string(word);
    for (const std::string& choice : option.choices)
      if (is_same_word(choice, word)) return choice;
    const std::vector<std::string_view> known(option.choices.begin(), option.choices.end());
    return refused(option, "one of " + join(option.choices, ", "), word)
        .try_this(did_you_mean(word, known));
  }
};

}  // namespace

Result<Done> assign(const Option& option, std::string_view text) {
  return std::visit(Assign{option, text}, option.target);
}

}  // namespace fp4moe::cli
