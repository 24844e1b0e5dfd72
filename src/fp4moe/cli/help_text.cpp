#include "fp4moe/cli/help_text.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::cli {
namespace {

constexpr std::size_t kDefaultColumns = 100, kMinColumns = 40;
constexpr std::size_t kMaxSpelling = 26;  // a longer one has a line of its own

// "--no-gated" for "--gated", where the set has both.
const Option* opposite(const OptionSet& set, const Option& option) {
  if (!option.is_flag() || option.is_positional()) return nullptr;
  return set.find_option("--no-" + option.name());
}

bool is_an_opposite(const OptionSet& set, const Option& option) {
  return option.is_flag() && option.name().starts_with("no-") &&
         set.find_option("--" + option.name().substr(3)) != nullptr;
}

std::string spelling_of(const OptionSet& set, const Option& option) {
  if (option.is_positional()) return option.name() + (option.is_list() ? "..." : "");
  std::string result = join(option.spellings(), ", ");
  if (const Option* off = opposite(set, option)) result += ", " + join(off->spellings(), ", ");
  return option.is_flag() ? result : result + " " + value_name(option);
}

struct RangeText {
  std::string operator()(std::monostate) const { return {}; }
  template <typename T>
  std::string operator()(const Range<T>& range) const {
    return fmt::format("{} to {}", range.low, range.high);
  }
};

std::string help_of(const Option& option) {
  std::vector<std::string> notes;
  if (!option.choices.empty()) notes.push_back("one of " + join(option.choices, ", "));
  if (const std::string range = std::visit(RangeText{}, option.range); !range.empty())
    notes.push_back(range);
  if (!option.listed_in.empty()) notes.push_back("fp4moe list " + option.listed_in);
  if (!option.default_text.empty()) notes.push_back("default: " + option.default_text);
  if (option.is_required && !option.is_positional()) notes.emplace_back("required");
  return notes.empty() ? option.help : fmt::format("{} ({})", option.help, join(notes, "; "));
}

void print_lines(std::string& out, const std::vector<OptionLine>& lines, std::size_t columns) {
  std::size_t width = 0;
  for (const OptionLine& line : lines)
    if (line.spelling.size() <= kMaxSpelling) width = std::max(width, line.spelling.size());
  const std::size_t from = width + 4;
  for (const OptionLine& line : lines) {
    out += "  " + line.spelling;
    out += line.spelling.size() <= width ? std::string(from - 2 - line.spelling.size(), ' ')
                                         : "\n" + std::string(from, ' ');
    bool is_first = true;
    for (const std::string_view paragraph : split(line.help, '\n')) {
      if (!std::exchange(is_first, false)) out += std::string(from, ' ');
      std::string text = wrapped(paragraph, columns - from);
      for (std::size_t at = 0; (at = text.find('\n', at)) != text.npos; at += from)
        text.insert(++at, from, ' ');
      out += text + "\n";
    }
  }
}

void print_commands(std::string& out, const OptionSet& set, std::size_t columns) {
  std::vector<OptionLine> lines;
  for (const OptionSet& each : set.subcommands) lines.push_back({each.name, each.summary});
  out += "\nCommands\n";
  print_lines(out, lines, columns);
}

}  // namespace

std::vector<OptionGroup> option_groups(const OptionSet& set) {
  std::vector<OptionGroup> result;
  const auto group = [&](const std::string& heading) -> OptionGroup& {
    const auto found = std::ranges::find(result, heading, &OptionGroup::heading);
    return found == result.end() ? result.emplace_back(OptionGroup{.heading = heading}) : *found;
  };
  for (const Option& option : set.options)
    if (option.is_positional())
      group("Arguments").lines.push_back({spelling_of(set, option), help_of(option)});
  for (const Option& option : set.options)
    if (!option.is_positional() && !is_an_opposite(set, option))
      group(option.group.empty() ? "Options" : option.group)
          .lines.push_back({spelling_of(set, option), help_of(option)});
  return result;
}

std::string usage_line(std::span<const OptionSet* const> sets) {
  std::string result;
  bool has_options = false;
  for (const OptionSet* set : sets) {
    result += (result.empty() ? "" : " ") + set->name;
    has_options = has_options || !set->options.empty();
    for (const Option& option : set->options) {
      if (!option.is_positional()) continue;
      const std::string name = option.name() + (option.is_list() ? "..." : "");
      result += option.is_required ? " " + name : " [" + name + "]";
    }
  }
  if (!sets.back()->subcommands.empty()) result += " COMMAND";
  return has_options ? result + " [OPTIONS]" : result;
}

std::string help_text(std::span<const OptionSet* const> sets, std::size_t columns) {
  columns = columns == 0 ? kDefaultColumns : std::max(columns, kMinColumns);
  const OptionSet& last = *sets.back();
  std::string out = wrapped(last.summary, columns) + "\n\nUsage: " + usage_line(sets) + "\n";
  if (!last.subcommands.empty()) print_commands(out, last, columns);
  const bool is_program = sets.size() == 1 && !last.subcommands.empty();
  if (is_program) {
    out += "\nOptions\n";
    print_lines(out,
                {{"-h, --help", "Show this; after a command, what it takes"},
                 {"-V, --version", "Show the version"}},
                columns);
  }
  // A subcommand also takes what its command takes.
  for (std::size_t i = sets.size(); i-- > (is_program || sets.size() > 1 ? 1 : 0);)
    for (const OptionGroup& group : option_groups(*sets[i])) {
      out += fmt::format("\n{}{}\n", group.heading,
                         i + 1 == sets.size() ? "" : fmt::format(" of {}", sets[i]->name));
      print_lines(out, group.lines, columns);
    }
  for (std::size_t i = sets.size(); i-- > 0;)
    if (!sets[i]->footer.empty()) {
      // An example is typed as it stands.
      out += "\n" +
             (sets[i]->footer.find('\n') == std::string::npos ? wrapped(sets[i]->footer, columns)
                                                              : sets[i]->footer) +
             "\n";
      break;
    }
  return out;
}

}  // namespace fp4moe::cli
