#include "fp4moe/cli/parse.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/help_text.hpp"

namespace fp4moe::cli {
namespace {

// Runs golden data, which the library has no use for.
constexpr std::string_view kOnlyFromSource = "golden";

class Parser {
 public:
  Parser(const OptionSet& root, std::span<const char* const> words, bool has_version)
      : sets_{&root}, has_version_(has_version) {
    for (const char* word : words.subspan(std::min<std::size_t>(1, words.size())))
      words_.emplace_back(word);
  }

  // The deepest command that the line names.
  const std::vector<const OptionSet*>& sets() const { return sets_; }

  Result<Done> parse() {
    for (; at_ < words_.size() && !wants_help_ && !wants_version_; ++at_) {
      const std::string_view word = words_[at_];
      const bool is_option = !only_arguments_ && word.size() > 1 && word.starts_with('-') &&
                             !(word[1] >= '0' && word[1] <= '9');
      const Result<Done> done = word == "--" && !only_arguments_ ? begin_arguments()
                                : !is_option                     ? argument(word)
                                : word.starts_with("--")         ? long_option(word)
                                                                 : short_options(word);
      if (!done) return done.why();
    }
    if (wants_help_ || wants_version_) return Done{};
    return check_complete();
  }

  bool wants_help() const { return wants_help_; }
  bool wants_version() const { return wants_version_; }

 private:
  std::string command() const {
    std::string result;
    for (const OptionSet* set : std::span(sets_).subspan(1))
      result += (result.empty() ? "" : " ") + set->name;
    return result;
  }
  // "see fp4moe help bench layer"
  std::string see_help() const {
    const std::string named = command();
    return named.empty() ? "see fp4moe help" : "see fp4moe help " + named;
  }

  Result<Done> begin_arguments() {
    only_arguments_ = true;
    return Done{};
  }

  // The option of the innermost command that has it. The program's own stand before the command.
  const Option* find(std::string_view spelling) const {
    for (std::size_t i = sets_.size(); i-- > (sets_.size() > 1 ? 1 : 0);)
      if (const Option* option = sets_[i]->find_option(spelling)) return option;
    return nullptr;
  }

  Result<Done> argument(std::string_view word) {
    const OptionSet& set = *sets_.back();
    if (!set.subcommands.empty()) {
      const OptionSet* next = set.find(word);
      if (next == nullptr) return unknown_command(set, word);
      sets_.push_back(next);
      return Done{};
    }
    for (const Option& option : set.options)
      if (option.is_positional() && (option.is_list() || !seen_.contains(&option))) {
        see(option);
        return give(option, word);
      }
    return usage("command.words", "too many arguments")
        .expects(described_arguments(set), "'" + printable(word) + "'")
        .try_this(see_help());
  }

  std::string described_arguments(const OptionSet& set) const {
    std::string result;
    for (const Option& option : set.options)
      if (option.is_positional()) result += (result.empty() ? "" : " ") + option.name();
    return result.empty() ? fmt::format("options alone after {}", command())
                          : fmt::format("{} {}", command(), result);
  }

  bool is_for_the_program(std::string_view word) {
    wants_help_ = word == "--help" || word == "-h";
    wants_version_ = has_version_ && sets_.size() == 1 && (word == "--version" || word == "-V");
    return wants_help_ || wants_version_;
  }

  Result<Done> long_option(std::string_view word) {
    if (is_for_the_program(word)) return Done{};
    const std::size_t sign = word.find('=');
    const Option* option = find(word.substr(0, sign));
    if (option == nullptr) return unknown_option(word.substr(0, sign));
    if (sign == word.npos) return take(*option, word, {});
    return take(*option, word.substr(0, sign), word.substr(sign + 1));
  }

  // "-v", "-o OUT", "-oOUT"
  Result<Done> short_options(std::string_view word) {
    if (is_for_the_program(word)) return Done{};
    const std::string_view name = word.substr(0, 2);
    const Option* option = find(name);
    if (option == nullptr) return unknown_option(name);
    if (word.size() == 2) return take(*option, name, {});
    if (!option->is_flag()) return take(*option, name, word.substr(word[2] == '=' ? 3 : 2));
    if (const auto done = take(*option, name, {}); !done) return done;
    return short_options("-" + std::string(word.substr(2)));
  }

  Result<Done> take(const Option& option, std::string_view name,
                    std::optional<std::string_view> value) {
    if (option.is_flag()) {
      if (value)
        return usage("command.value", fmt::format("{} takes no value", name))
            .expects(std::string(name), "'" + printable(*value) + "'");
      see(option);
      return give(option, {});
    }
    if (!option.is_list() && seen_.contains(&option))
      return usage("command.words", fmt::format("{} is given twice", name));
    see(option);
    if (!value && !option.implied.empty() && !is_number_next()) value = option.implied;
    if (!value) {
      if (at_ + 1 == words_.size() || is_option_name(words_[at_ + 1]))
        return usage("command.words", fmt::format("{} needs a value", name))
            .expects(
                fmt::format("{} {}", name, value_name(option)),
                at_ + 1 == words_.size() ? "the end of the line" : std::string(words_[at_ + 1]));
      value = words_[++at_];
    }
    return give(option, *value);
  }

  // A refusal ends with something to do.
  Result<Done> give(const Option& option, std::string_view text) const {
    Result<Done> done = assign(option, text);
    if (done || !done.why().remedy.empty()) return done;
    return Error(done.why()).try_this(see_help());
  }

  // Given values replace a list's default.
  void see(const Option& option) {
    const bool is_first = seen_.insert(&option).second;
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&option.target);
        list != nullptr && is_first)
      (*list)->clear();
  }

  bool is_number_next() const {
    return at_ + 1 < words_.size() &&
           words_[at_ + 1].find_first_not_of("0123456789") == std::string::npos;
  }

  bool is_option_name(std::string_view word) const {
    return word == "--" || word == "--help" || find(word.substr(0, word.find('='))) != nullptr;
  }

  Error unknown_option(std::string_view name) const {
    std::vector<std::string> known{"--help"};
    for (std::size_t i = sets_.size(); i-- > (sets_.size() > 1 ? 1 : 0);)
      for (const Option& option : sets_[i]->options)
        if (!option.is_positional())
          for (const std::string& spelling : option.spellings()) known.push_back(spelling);
    if (has_version_ && sets_.size() == 1) known.emplace_back("--version");
    const std::vector<std::string_view> candidates(known.begin(), known.end());
    return usage("command.option", "there is no such option")
        .expects("", "'" + printable(name) + "'")
        .try_this(did_you_mean(name, candidates, see_help()));
  }

  Result<Done> check_complete() const {
    const OptionSet& last = *sets_.back();
    if (!last.subcommands.empty()) {
      std::vector<std::string> names;
      for (const OptionSet& each : last.subcommands) names.push_back(each.name);
      return usage("command.words", "a command is needed")
          .expects("one of " + join(names, ", "), "none")
          .try_this(see_help());
    }
    for (const OptionSet* set : sets_)
      for (const Option& option : set->options)
        if (option.is_required && !seen_.contains(&option))
          return usage("command.words",
                       fmt::format("{} is missing", option.is_positional()
                                                        ? option.name()
                                                        : option.spellings().back()))
              .expects(fmt::format("{}{}: {}", option.is_positional() ? "" : option.names + " ",
                                   option.is_positional() ? option.name() : value_name(option),
                                   option.help.substr(0, option.help.find('\n'))),
                       "nothing")
              .try_this(see_help());
    return Done{};
  }

  std::vector<const OptionSet*> sets_;  // the program, the command, its subcommand
  std::vector<std::string> words_{};
  std::size_t at_ = 0;
  std::set<const Option*> seen_{};
  bool has_version_, only_arguments_ = false, wants_help_ = false, wants_version_ = false;
};

}  // namespace

Result<std::optional<std::string>> parse(const OptionSet& set, std::span<const char* const> words,
                                         const std::string& version, std::size_t columns) {
  Parser parser(set, words, !version.empty());
  const Result<Done> done = parser.parse();
  if (!done) return done.why();
  if (parser.wants_help()) return std::optional(help_text(parser.sets(), columns));
  if (parser.wants_version()) return std::optional(version + "\n");
  for (const OptionSet* named : parser.sets())
    if (named->chosen) named->chosen();
  return std::optional<std::string>();
}

Error unknown_command(const OptionSet& set, std::string_view word) {
  std::vector<std::string> names;
  for (const OptionSet& subcommand : set.subcommands) names.push_back(subcommand.name);
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  return usage("command.unknown", "there is no such command")
      .expects("one of " + join(names, ", "), "'" + printable(word) + "'")
      .try_this(word == kOnlyFromSource
                    ? "Only the program that is built from source has it: make build"
                    : did_you_mean(word, candidates, "see fp4moe help"));
}

}  // namespace fp4moe::cli
