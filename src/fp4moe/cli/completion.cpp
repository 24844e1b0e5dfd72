// fp4moe completion bash|zsh|fish: a script that completes commands, options and choices, and files
// everywhere else.
//
// All three scripts find the place first: the command and subcommand that the line names so far.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/list.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/program.hpp"

namespace fp4moe::cli {

Run declare_completion(OptionSet& set);

namespace {

struct Suggestion {
  std::string word{}, help{};
  bool beside_files = false;  // files may be typed there, too
};

// The words that may be typed at one position.
struct CompletionPoint {
  std::string words{};                    // "bench layer"; empty: no command yet
  std::vector<Suggestion> suggestions{};  // subcommands, and choices of arguments
  std::vector<Option> options{};          // those of the command, too
};

// Values that are worth offering: the choices, or names that are listed.
std::vector<std::string> values_of(const Option& option) {
  if (!option.choices.empty()) return option.choices;
  if (!option.offered.empty() || option.listed_in.empty()) return option.offered;
  return listed_names(option.listed_in);
}

void add_arguments(const OptionSet& set, const OptionSet& root, CompletionPoint& place) {
  for (const OptionSet& subcommand : set.subcommands)
    place.suggestions.push_back({subcommand.name, subcommand.summary});
  for (const Option& option : set.options) {
    if (!option.is_positional()) continue;
    for (const std::string& value : values_of(option))
      place.suggestions.push_back({value, "", option.choices.empty()});
    if (option.form != Form::command) continue;
    for (const OptionSet& command : root.subcommands)
      place.suggestions.push_back({command.name, command.summary});
  }
}

void add_options(const OptionSet& set, CompletionPoint& place) {
  for (const Option& option : set.options)
    if (!option.is_positional()) place.options.push_back(option);
}

std::vector<CompletionPoint> places(const OptionSet& root) {
  const Option help{.names = "--help", .help = "Show what it takes"};
  std::vector<CompletionPoint> result;
  CompletionPoint& first = result.emplace_back();
  add_arguments(root, root, first);
  first.options = {help, {.names = "-V,--version", .help = "Show the version"}};
  for (const OptionSet& command : root.subcommands) {
    CompletionPoint place{.words = command.name, .options = {help}};
    add_options(command, place);
    CompletionPoint& known = result.emplace_back(place);
    add_arguments(command, root, known);
    for (const OptionSet& subcommand : command.subcommands) {
      CompletionPoint& inner = result.emplace_back(place);
      inner.words += " " + subcommand.name;
      add_arguments(subcommand, root, inner);
      add_options(subcommand, inner);
    }
  }
  return result;
}

// 'it'\''s', as sh, zsh and fish read it.
std::string shell_quoted(std::string_view text) {
  std::string result = "'";
  for (const char letter : text.substr(0, text.find('\n')))
    result += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return result + "'";
}

// Every place but the first: 'bench'|'bench layer'.
std::string known_places(std::span<const CompletionPoint> all, std::string_view separator) {
  std::vector<std::string> names;
  for (const CompletionPoint& place : all.subspan(1)) names.push_back(shell_quoted(place.words));
  return fmt::format("{}", fmt::join(names, separator));
}

// "'convert -o'|'convert --out'": the option where it is typed.
std::string typed_at(const CompletionPoint& place, const Option& option) {
  std::vector<std::string> result;
  for (const std::string& name : option.spellings())
    result.push_back(shell_quoted(place.words + " " + name));
  return fmt::format("{}", fmt::join(result, "|"));
}

std::string bash_script(std::span<const CompletionPoint> all) {
  std::string words, options, values;
  for (const CompletionPoint& place : all) {
    std::string row;
    for (const Suggestion& suggestion : place.suggestions) row += suggestion.word + " ";
    if (!row.empty())
      words += fmt::format("    {}) echo '{}' ;;\n", shell_quoted(place.words), row);
    row.clear();
    for (const Option& option : place.options)
      row += fmt::format("{} ", fmt::join(option.spellings(), " "));
    options += fmt::format("    {}) echo '{}' ;;\n", shell_quoted(place.words), row);
    for (const Option& option : place.options)
      if (!option.is_flag())
        values += fmt::format("    {}) echo '{}' ;;\n", typed_at(place, option),
                              fmt::join(values_of(option), " "));
  }
  return fmt::format(R"(# Completes fp4moe in bash:  source <(fp4moe completion bash)
_fp4moe_words() {{
  case $1 in
{}  esac
}}
_fp4moe_options() {{
  case $1 in
{}  esac
}}
_fp4moe_values() {{  # fails where the option takes none
  case "$1 $2" in
{}    *) return 1 ;;
  esac
}}
_fp4moe() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before= place= at next offered
  for ((at = 1; at < COMP_CWORD; ++at)); do
    before=${{COMP_WORDS[at]}} next="${{place:+$place }}${{COMP_WORDS[at]}}"
    case $next in {}) place=$next ;; esac
  done
  # bash splits --option=value at the sign.
  if [[ $word == = ]]; then word=; fi
  if [[ $before == = ]]; then before=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  if ! offered=$(_fp4moe_values "$place" "$before"); then
    if [[ $word == -* ]]; then
      offered=$(_fp4moe_options "$place")
    else
      offered=$(_fp4moe_words "$place")
    fi
  fi
  COMPREPLY=($(compgen -W "$offered" -- "$word"))
  if [[ ${{COMPREPLY[0]-}} == *= ]]; then compopt -o nospace 2> /dev/null; fi
}}
complete -o bashdefault -o default -F _fp4moe fp4moe
)",
                     words, options, values, known_places(all, "|"));
}

// A word and its help, as _describe reads them.
std::string described(const std::string& word, const std::string& help) {
  std::string escaped;
  for (const char letter : word) escaped += letter == ':' ? "\\:" : std::string(1, letter);
  return shell_quoted(help.empty() ? escaped : escaped + ":" + help);
}

std::string zsh_script(std::span<const CompletionPoint> all) {
  std::string words, options, values;
  for (const CompletionPoint& place : all) {
    std::string row;
    for (const Suggestion& suggestion : place.suggestions)
      row += " " + described(suggestion.word, suggestion.help);
    if (!row.empty())
      words += fmt::format("    {}) offered=({} ) ;;\n", shell_quoted(place.words), row);
    row.clear();
    for (const Option& option : place.options)
      for (const std::string& name : option.spellings()) row += " " + described(name, option.help);
    options += fmt::format("    {}) offered=({} ) ;;\n", shell_quoted(place.words), row);
    for (const Option& option : place.options)
      if (!option.is_flag())
        values += fmt::format("    {}) offered=({}) takes_value=1 ;;\n", typed_at(place, option),
                              fmt::join(values_of(option), " "));
  }
  return fmt::format(R"(#compdef fp4moe
# Completes fp4moe in zsh: write it to a file _fp4moe in a folder of $fpath.
_fp4moe() {{
  local place before=$words[CURRENT-1] word next takes_value
  local -a offered
  for word in ${{words[2,CURRENT-1]}}; do
    next="${{place:+$place }}$word"
    case $next in ({}) place=$next ;; esac
  done
  if [[ $words[CURRENT] == --*=* ]]; then
    before=${{words[CURRENT]%%=*}}
    compset -P '*='
  fi
  case "$place $before" in
{}  esac
  if [[ -z $takes_value && $words[CURRENT] == -* ]]; then
    case $place in
{}    esac
  elif [[ -z $takes_value ]]; then
    case $place in
{}    esac
  fi
  if (( ! $#offered )) || ! _describe fp4moe offered; then
    _files
  fi
}}
if [[ $funcstack[1] == _fp4moe ]]; then
  _fp4moe "$@"
else
  compdef _fp4moe fp4moe
fi
)",
                     known_places(all, "|"), values, options, words);
}

std::string fish_script(std::span<const CompletionPoint> all) {
  std::string rows;
  for (const CompletionPoint& place : all) {
    const std::string at =
        fmt::format("complete -c fp4moe -n {}", shell_quoted("__fp4moe_at " + place.words));
    for (const Suggestion& suggestion : place.suggestions)
      rows += fmt::format("{}{} -a {} -d {}\n", at, suggestion.beside_files ? "" : " -f",
                          shell_quoted(suggestion.word), shell_quoted(suggestion.help));
    for (const Option& option : place.options) {
      rows += at;
      for (const std::string& name : option.spellings())
        rows += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (const std::vector<std::string> values = values_of(option); !values.empty())
        rows += fmt::format(" -x -a {}", shell_quoted(fmt::format("{}", fmt::join(values, " "))));
      else if (!option.is_flag())
        rows += " -r";
      rows += fmt::format(" -d {}\n", shell_quoted(option.help));
    }
  }
  return fmt::format(R"(# Completes fp4moe in fish:  fp4moe completion fish | source
function __fp4moe_at
  set -l place
  for word in (commandline -opc)[2..-1]
    set -l next (string join -- ' ' $place $word)
    switch $next
      case {}
        set place $next
    end
  end
  test "$place" = "$argv"
end
{})",
                     known_places(all, " "), rows);
}

struct Shell {
  std::string_view name;
  std::string (*script)(std::span<const CompletionPoint> all);
};
constexpr Shell kShells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};

Result<int> run_completion(const std::string& name, const Io& io) {
  const Program program(io.commands);
  for (const Shell& shell : kShells) {
    if (shell.name != name) continue;
    const std::string script = shell.script(places(program.options()));
    if (io.json)
      io.print({{"shell", name}, {"script", script}});
    else
      io.out << script;
  }
  return kDone;
}

}  // namespace

Run declare_completion(OptionSet& set) {
  const auto shell = std::make_shared<std::string>();
  std::vector<std::string> names;
  for (const Shell& known : kShells) names.emplace_back(known.name);
  set.add("SHELL", *shell, "Whose completion").required().one_of(names);
  return [shell](const Io& io) { return run_completion(*shell, io); };
}

}  // namespace fp4moe::cli
