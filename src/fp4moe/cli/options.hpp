// The options of a command, as data. The parser, --help, shell completion, docs/commands.md and
// Python's keywords are all made from it.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fp4moe/base/result.hpp"

namespace fp4moe::cli {

// The destination of the value. The pointer's type is the type of the value; a bool is a flag.
using Target = std::variant<bool*, std::string*, std::uint64_t*, std::optional<std::uint64_t>*,
                            std::optional<double>*, std::vector<std::string>*>;

// The kind of a text value. Programs that give values need it; the parser does not.
enum class Form : std::uint8_t {
  word,     // a name
  path,     // of a file or folder
  number,   // a number, or a word or path instead
  rank,     // R/N: rank R of N
  pair,     // NAME=VALUE
  command,  // of the program
};

// In the order of Form.
inline constexpr std::string_view kFormNames[] = {"word", "path", "number",
                                                  "rank", "pair", "command"};

template <typename T>
struct Range {
  T low, high;
};

struct Option {
  std::string names{};  // "-o,--out", or "PATH" for an argument without one
  std::string help{};
  Target target{};
  std::string group{};  // the heading of --help that it stands under
  Form form = Form::word;
  bool is_required = false;
  bool is_existing_folder = false;
  bool is_in_bytes = false;    // takes 5GB for 5000000000
  std::string default_text{};  // shown by --help; empty: nothing is shown
  std::string implied{};       // the number that the option means without one
  // Empty: anything. A word that differs in case, '-' and '_' alone is taken for the choice.
  std::vector<std::string> choices{};
  std::vector<std::string> offered{};  // worth offering where it is typed; others are taken, too
  std::string listed_in{};             // a subject of `fp4moe list` that has names for it
  std::string item{};                  // of a list separated by commas: --help shows ITEM,...
  std::variant<std::monostate, Range<std::uint64_t>, Range<double>> range{};

  // Demands, to be chained.
  Option& required();
  Option& show_default();  // the value that the variable has now
  Option& one_of(std::vector<std::string> words);
  Option& between(std::uint64_t low, std::uint64_t high);
  Option& between(double low, double high);
  Option& existing_folder();
  Option& separated_by_commas(std::string what);
  Option& in_bytes(std::string shown_default);
  Option& as(Form what);
  Option& or_alone(std::string number);
  Option& listed(std::string subject);
  Option& offering(std::vector<std::string> words);

  bool is_flag() const { return std::holds_alternative<bool*>(target); }
  bool is_list() const { return std::holds_alternative<std::vector<std::string>*>(target); }
  bool is_positional() const { return !names.starts_with('-'); }
  std::vector<std::string> spellings() const;  // {"-o", "--out"}, {"PATH"}
  std::string name() const;                    // "out", "PATH"
};

// Gives the option the value that `text` says; a list gets one or, at commas, several more.
// Errors: command.value, with what the option takes; file.open (a folder that is not there).
Result<Done> assign(const Option& option, std::string_view text);

// "PATH", "N", "NAME,...": what stands for the value where the option is described.
std::string value_name(const Option& option);

// The options of a command and its subcommands. One of the subcommands, where there are any, must
// follow the command; the command's options may stand behind it.
struct OptionSet {
  std::string name{}, summary{};
  std::string footer{};  // shown at the end of --help
  std::string group{};   // of options that are added from here on
  std::list<Option> options{};
  std::list<OptionSet> subcommands{};
  std::function<void()> chosen{};  // called when the command line names it

  // The parsed value goes to `value`, which must outlive the parsing; without the option it stays
  // as it is.
  template <typename T>
  Option& add(std::string_view names, T& value, std::string_view help) {
    return options.emplace_back(Option{
        .names = std::string(names), .help = std::string(help), .target = &value, .group = group});
  }
  // --threads, within what FP4MOE_THREADS may say.
  Option& add_threads(std::uint64_t& value);
  OptionSet& add_subcommand(std::string_view called, std::string_view does,
                            std::function<void()> on_choice = {});
  // Nothing where there is no such subcommand.
  const OptionSet* find(std::string_view called) const;
  // The option that is spelled so: "-o", "--out". Nothing where there is none.
  const Option* find_option(std::string_view spelling) const;
};

}  // namespace fp4moe::cli
