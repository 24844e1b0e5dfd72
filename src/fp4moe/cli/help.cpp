// fp4moe help [COMMAND...]: what COMMAND --help prints; with --json every command with its options.
#include <memory>
#include <string>
#include <vector>

#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/parse.hpp"
#include "fp4moe/cli/program.hpp"

namespace fp4moe::cli {

Run declare_help(OptionSet& set);

namespace {

Result<int> run_help(const std::vector<std::string>& words, const Io& io) {
  const Program program(io.commands);
  const OptionSet* asked = &program.options();
  std::vector<const char*> line{"fp4moe"};
  for (const std::string& word : words) {
    const OptionSet* next = asked->find(word);
    if (next == nullptr) return unknown_command(*asked, word);
    asked = next;
    line.push_back(word.c_str());
  }
  if (io.json) {
    Json result = Json::array();
    if (words.empty())
      for (const OptionSet& command : asked->subcommands) result.push_back(facts(command));
    else
      result.push_back(facts(*asked));
    io.print({{"commands", std::move(result)}});
    return kDone;
  }
  line.push_back("--help");
  const Result<std::optional<std::string>> shown = program.parse(line, io.columns);
  if (!shown) return shown.why();
  io.out << shown->value_or("");
  return kDone;
}

}  // namespace

Run declare_help(OptionSet& set) {
  const auto words = std::make_shared<std::vector<std::string>>();
  set.add("COMMAND", *words, "One command, e.g. bench layer (default: list all)").as(Form::command);
  return [words](const Io& io) { return run_help(*words, io); };
}

}  // namespace fp4moe::cli
