// A command: it declares its options and returns the function that does the work. To add
// one: write cli/<name>.cpp with `Run declare_<name>(OptionSet&)` and add its row to
// cli/commands.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "fp4moe/base/error_json.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::cli {

struct Io;
struct OptionSet;

using Run = std::function<Result<int>(const Io&)>;

// `check`: a wrong FP4MOE_* value is refused before the command begins. Only a command that reports
// such values itself leaves them alone.
enum class Settings : std::uint8_t { check, leave_alone };

struct Command {
  std::string_view name;
  std::string_view summary;  // one line
  std::string_view example;  // shown by --help
  Run (*declare)(OptionSet& set);
  Settings settings = Settings::check;
  // The next step to propose after success, with {PATH} and {OUT} for what the command line
  // names so: "fp4moe lint {PATH} (defects)". Empty: the command says it itself.
  std::string_view next{};
};

// The library's commands; a program may have more.
std::span<const Command> commands();

// Told where long work stands: bytes that are done of all, and a word for the work. Called by any
// thread, never by two at once.
using OnProgress =
    std::function<void(std::string_view title, std::uint64_t done, std::uint64_t total)>;

// The streams of a command. People read `out`; with --json nothing but one object is printed
// there. Progress and warnings go to `err`.
struct Io {
  std::ostream& out;
  std::ostream& err;
  std::size_t threads = 1;  // to use where the command line names no number
  bool json = false;
  bool show_progress = false;           // `err` is a terminal that can erase a line
  bool color = false;                   // `out` is a terminal and NO_COLOR is unset
  std::size_t columns = 0;              // of the terminal that reads `out`; 0: none does
  std::size_t err_columns = 0;          // the same of `err`
  OnProgress on_progress{};             // for hosts that show it themselves
  std::span<const Command> commands{};  // all of the program's

  // The same, with its answer going elsewhere.
  Io to(std::ostream& other) const {
    return {other, err,     threads,     json,        show_progress,
            color, columns, err_columns, on_progress, commands};
  }
  // For the line that matters, where colors are shown.
  std::string bold(const std::string& text) const {
    return color ? "\x1b[1m" + text + "\x1b[0m" : text;
  }
  // Prints `report` as the command's one JSON object, with its schema_version in front.
  void print(const Json& report) const;
};

// Exit statuses of the command line; an Error's code is its exit status.
inline constexpr int kDone = 0;

// The options of a command, as `fp4moe help --json` prints them. Errors: command.unknown.
Result<Json> option_facts(std::string_view command);

// The streams and terminal facts that the program gives the command line.
struct Outlet {
  std::ostream& out;
  std::ostream& err;
  OnProgress on_progress{};
  std::span<const Command> further_commands{};  // of the program, beside the library's
};

// The whole command line: parses, runs, prints errors; returns the exit status. With --json a
// command line that cannot be parsed gives an error object, too.
int run_main(int argc, const char* const* argv, const Outlet& to);
inline int run_main(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  return run_main(argc, argv, {.out = out, .err = err});
}

}  // namespace fp4moe::cli
