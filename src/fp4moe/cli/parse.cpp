// The one file that includes CLI11, which costs seconds in every file that does.
#include "fp4moe/cli/parse.hpp"

#include <sstream>
#include <variant>

#include <CLI/CLI.hpp>

namespace fp4moe::cli {
namespace {

CLI::Option* add_to(CLI::App& app, const Option& option) {
  return std::visit(
      [&](auto* value) -> CLI::Option* {
        if constexpr (std::is_same_v<decltype(value), bool*>)
          return app.add_flag(option.names, *value, option.help);
        else
          return app.add_option(option.names, *value, option.help);
      },
      option.target);
}

void declare(CLI::App& app, const Option& option) {
  CLI::Option* made = add_to(app, option);
  made->required(option.is_required);
  if (!option.choices.empty()) made->check(CLI::IsMember(option.choices));
  if (const auto* range = std::get_if<Range<std::uint64_t>>(&option.range))
    made->check(CLI::Range(range->low, range->high));
  if (const auto* range = std::get_if<Range<double>>(&option.range))
    made->check(CLI::Range(range->low, range->high));
  if (option.is_existing_folder) made->check(CLI::ExistingDirectory);
  if (!option.item.empty()) made->delimiter(',')->type_name(option.item + ",...");
  if (option.is_in_bytes) made->transform(CLI::AsSizeValue(true));
  if (!option.default_text.empty()) made->default_str(option.default_text);
}

void declare(CLI::App& app, const OptionSet& set) {
  for (const Option& option : set.options) declare(app, option);
  if (!set.subcommands.empty()) app.require_subcommand(1);
  for (const OptionSet& subcommand : set.subcommands) {
    CLI::App* made = app.add_subcommand(subcommand.name, subcommand.summary);
    if (!subcommand.footer.empty()) made->footer(subcommand.footer);  // else the command's
    // The program's own options stand before the command, the command's anywhere behind it.
    made->fallthrough(app.get_parent() != nullptr);
    if (subcommand.chosen) made->callback(subcommand.chosen);
    declare(*made, subcommand);
  }
}

}  // namespace

Result<std::optional<std::string>> parse(const OptionSet& set, std::span<const char* const> words,
                                         const std::string& version) {
  CLI::App app(set.summary);
  if (!version.empty()) app.set_version_flag("--version", version);
  declare(app, set);
  try {
    app.parse(static_cast<int>(words.size()), words.data());
    return std::optional<std::string>();
  } catch (const CLI::ParseError& thrown) {
    std::ostringstream out, err;
    if (app.exit(thrown, out, err) == 0) return std::optional(out.str());
    return usage("command.words", thrown.what());
  }
}

}  // namespace fp4moe::cli
