#include "fp4moe/cli/command.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <unistd.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::cli {
namespace {

int report(const Error& why, std::string_view command, const Io& io) {
  if (io.json) io.print({{"error", to_json(why)}});
  io.err << "fp4moe " << command << ": " << text(why) << "\n";
  return static_cast<int>(why.code);
}

// The one place where exceptions (memory, the standard library) become errors.
Result<int> guarded(const Run& run, const Io& io) {
  try {
    return run(io);
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
  } catch (const std::exception& thrown) {
    return error(ErrorCode::failed, "internal", thrown.what());
  }
}

// The environment counts for every such command; a wrong value is refused before any work.
Result<int> with_settings(const Run& run, Io io) {
  const Result<platform::Settings> settings = platform::read_settings();
  if (!settings) return settings.why();
  const auto usable =
      kernels::cpu::usable_features(platform::detect_cpu_features(), settings->cpu_isa);
  if (!usable) return usable.why();
  io.threads = platform::choose_threads(std::nullopt, *settings);
  return run(io);
}

// CLI11 only says that a command is missing; people want to see the word they mistyped.
bool is_known(std::string_view word) {
  if (word.starts_with('-')) return true;
  for (const Command& command : commands())
    if (command.name == word) return true;
  return false;
}

Error unknown_command(std::string_view word) {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return usage("command.unknown", "there is no such command")
      .expects("one of " + join(names, ", "), printable(word))
      .try_this("See fp4moe --help");
}

// Before anything is parsed: whether an object is wanted instead of words.
bool wants_json(std::span<const char* const> words) {
  return std::any_of(words.begin(), words.end(),
                     [](std::string_view word) { return word == "--json"; });
}

// What CLI11 says of a command line that it does not understand: its words for people, and an
// error for programs. Help and the version are no errors.
int not_parsed(const CLI::App& app, const CLI::ParseError& thrown, const Io& io) {
  if (app.exit(thrown, io.out, io.err) == 0) return kDone;
  if (io.json) io.print({{"error", to_json(usage("command.words", thrown.what()))}});
  return static_cast<int>(ErrorCode::usage);
}

Json fact_of(const CLI::Option& option) {
  const bool positional = option.get_positional();
  return {{"name", option.get_single_name()},
          {"positional", positional},
          {"takes_value", option.get_items_expected_max() > 0},
          {"takes_many", option.get_items_expected_max() > 1},
          {"required", option.get_required()},
          {"help", option.get_description()}};
}

Json facts_of(const CLI::App& app) {
  Json all = Json::array();
  for (const CLI::Option* option : app.get_options())
    if (option != app.get_help_ptr()) all.push_back(fact_of(*option));
  return all;
}

// A full disk or a closed pipe must not look like success.
int written(std::ostream& out, std::ostream& err, int status) {
  out.flush();
  if (out) return status;
  err << "fp4moe: cannot write the output\n";
  return static_cast<int>(ErrorCode::failed);
}

}  // namespace

void Io::print(const Json& report) const {
  Json whole{{"schema_version", 1}};
  whole.update(report);
  out << whole.dump(2) << "\n";
}

Result<Json> option_facts(std::string_view name) {
  const auto found = std::find_if(commands().begin(), commands().end(),
                                  [name](const Command& command) { return command.name == name; });
  if (found == commands().end()) return unknown_command(name);
  CLI::App app;
  const Run run = found->declare(app);
  Json questions = Json::array();
  for (const CLI::App* question : app.get_subcommands([](const CLI::App*) { return true; }))
    questions.push_back({{"name", question->get_name()}, {"options", facts_of(*question)}});
  return Json{{"summary", found->summary},
              {"example", found->example},
              {"options", facts_of(app)},
              {"questions", std::move(questions)}};
}

int run_main(int argc, const char* const* argv, const Outlet& to) {
  std::ostream& out = to.out;
  std::ostream& err = to.err;
  const std::span words(argv, static_cast<std::size_t>(std::max(argc, 0)));
  CLI::App app("fp4moe: select, convert and run the Mixture-of-Experts layers of FP4 models");
  app.set_version_flag("--version", std::string("fp4moe ") + std::string(kVersion));
  app.require_subcommand(1);
  app.fallthrough(false);
  const bool to_terminal = &out == &std::cout && isatty(STDOUT_FILENO) != 0;
  Io io{.out = out,
        .err = err,
        .show_progress = &err == &std::cerr && isatty(STDERR_FILENO) != 0,
        .color = to_terminal && std::getenv("NO_COLOR") == nullptr,
        .on_progress = to.on_progress};
  if (argc > 1 && !is_known(argv[1])) {
    io.json = wants_json(words);
    return report(unknown_command(argv[1]), printable(argv[1]), io);
  }

  std::string chosen;
  Run run;
  for (const Command& command : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->footer("Example:\n  " + std::string(command.example));
    sub->add_flag("--json", io.json, "Print one JSON object instead of text");
    sub->callback([&chosen, &run, &command, declared = command.declare(*sub)] {
      chosen = command.name;
      run = declared;
      if (command.settings == Settings::check)
        run = [declared](const Io& all) { return with_settings(declared, all); };
    });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& thrown) {
    io.json = wants_json(words);
    return written(out, err, not_parsed(app, thrown, io));
  }
  const Result<int> status = guarded(run, io);
  if (!status) return report(status.why(), chosen, io);
  return written(out, err, *status);
}

}  // namespace fp4moe::cli
