#include "fp4moe/cli/program.hpp"

#include <utility>
#include <vector>

#include "fp4moe/base/version.hpp"
#include "fp4moe/cli/parse.hpp"

namespace fp4moe::cli {
namespace {

constexpr std::string_view kExample = "Example:\n  ";

struct TypeName {
  bool is_in_bytes = false;

  std::string_view operator()(const bool*) const { return "flag"; }
  std::string_view operator()(const std::string*) const { return "text"; }
  std::string_view operator()(const std::uint64_t*) const {
    return is_in_bytes ? "bytes" : "integer";
  }
  std::string_view operator()(const std::optional<std::uint64_t>*) const { return "integer"; }
  std::string_view operator()(const std::optional<double>*) const { return "number"; }
  std::string_view operator()(const std::vector<std::string>*) const { return "list"; }
};

struct RangeJson {
  Json operator()(std::monostate) const { return nullptr; }
  template <typename T>
  Json operator()(const Range<T>& range) const {
    return Json::array({range.low, range.high});
  }
};

Json option_json(const Option& option) {
  return {{"name", option.name()},
          {"names", option.spellings()},
          {"positional", option.is_positional()},
          {"type", std::visit(TypeName{option.is_in_bytes}, option.target)},
          {"form", kFormNames[static_cast<std::size_t>(option.form)]},
          {"item", option.item.empty() ? Json() : Json(option.item)},
          {"required", option.is_required},
          {"default", option.default_text.empty() ? Json() : Json(option.default_text)},
          {"listed_in", option.listed_in.empty() ? Json() : Json(option.listed_in)},
          {"implied", option.implied.empty() ? Json() : Json(option.implied)},
          {"choices", option.choices},
          {"range", std::visit(RangeJson{}, option.range)},
          {"group", option.group.empty() ? Json() : Json(option.group)},
          {"help", option.help}};
}

}  // namespace

Program::Program(std::span<const Command> commands) {
  root_.name = "fp4moe";
  root_.summary = "Select, convert and run the Mixture-of-Experts layers of FP4 models";
  root_.footer =
      "fp4moe help COMMAND shows what a command takes, fp4moe list what it knows by name.";
  for (const Command& command : commands) {
    OptionSet& set = root_.add_subcommand(command.name, command.summary);
    set.footer = std::string(kExample).append(command.example);
    set.add("--json", json_, "Print one JSON object instead of text");
    set.chosen = [this, &command, declared = command.declare(set)] {
      chosen_ = &command;
      run_ = declared;
    };
  }
}

Result<std::optional<std::string>> Program::parse(std::span<const char* const> words,
                                                  std::size_t columns) const {
  return cli::parse(root_, words, std::string("fp4moe ").append(kVersion), columns);
}

Json facts(const OptionSet& set) {
  Json options = Json::array(), subcommands = Json::array();
  for (const Option& option : set.options) options.push_back(option_json(option));
  for (const OptionSet& subcommand : set.subcommands) subcommands.push_back(facts(subcommand));
  Json result{{"name", set.name}, {"summary", set.summary}};
  if (set.footer.starts_with(kExample)) result["example"] = set.footer.substr(kExample.size());
  result["options"] = std::move(options);
  result["subcommands"] = std::move(subcommands);
  return result;
}

}  // namespace fp4moe::cli
