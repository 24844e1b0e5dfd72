#include "fp4moe/cli/command.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/base/thrown.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/parse.hpp"
#include "fp4moe/cli/program.hpp"
#include "fp4moe/cli/terminal.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::cli {
namespace {

int print_error(const Error& why, std::string_view command, const Io& io) {
  if (io.json) io.print({{"error", to_json(why)}});
  io.err << error_text(why, command, io.err_columns);
  return static_cast<int>(why.code);
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

// The one place where exceptions (memory, the standard library) become errors.
Result<int> guarded(const Command& command, const Run& run, const Io& io) {
  try {
    const MappingGuard guard;
    Result<int> status = command.settings == Settings::check ? with_settings(run, io) : run(io);
    // The first cause of whatever came of it.
    if (const auto same = check_mappings(); !same) return same.why();
    return status;
  } catch (...) {
    return thrown_error();
  }
}

// Of a command line that was not understood: whether an object is wanted beside the words.
bool asks_for_json(std::span<const char* const> words) {
  return std::ranges::any_of(words, [](std::string_view word) { return word == "--json"; });
}

// A full disk must not look like success. A reader that has gone away (`fp4moe matrix | head -1`)
// had what it wanted.
int written(const Io& io, int status) {
  io.out.flush();
  if (io.out || (&io.out == &std::cout && is_reader_gone(STDOUT_FILENO))) return status;
  io.err << "fp4moe: cannot write the output\n";
  return static_cast<int>(ErrorCode::failed);
}

Io make_io(const Outlet& to, std::span<const Command> commands) {
  const bool is_out = &to.out == &std::cout, is_err = &to.err == &std::cerr;
  return {.out = to.out,
          .err = to.err,
          .show_progress = is_err && is_live_terminal(STDERR_FILENO),
          .color = is_out && is_live_terminal(STDOUT_FILENO) && std::getenv("NO_COLOR") == nullptr,
          .columns = is_out ? terminal_columns(STDOUT_FILENO) : 0,
          .err_columns = is_err ? terminal_columns(STDERR_FILENO) : 0,
          .on_progress = to.on_progress,
          .commands = commands};
}

}  // namespace

void Io::print(const Json& report) const {
  Json whole{{"schema_version", 1}};
  whole.update(report);
  out << whole.dump(2) << "\n";
}

Result<Json> option_facts(std::string_view name) {
  const Program program(commands());
  const OptionSet* found = program.options().find(name);
  if (found == nullptr) return unknown_command(program.options(), name);
  return facts(*found);
}

namespace {

// The text that the command line gave to the first option of this name; the name where it gave none.
std::string given_text(const OptionSet& set, bool (*is_it)(const Option&), std::string_view none) {
  const auto found = std::ranges::find_if(set.options, is_it);
  if (found == set.options.end()) return std::string(none);
  const auto* text = std::get_if<std::string*>(&found->target);
  return text == nullptr || (*text)->empty() ? std::string(none) : printable(**text);
}

void print_next(const Command& command, const OptionSet& set, const Io& io) {
  if (io.json || command.next.empty()) return;
  const auto is_path = [](const Option& option) { return option.is_positional(); };
  const auto is_out = [](const Option& option) { return option.name() == "out"; };
  const std::string out = given_text(set, is_out, "");
  if (out.empty() && command.next.find("{OUT}") != std::string_view::npos) {
    io.out << "Next: the same with -o OUT\n";  // nothing was written
    return;
  }
  io.out << "Next: "
         << fmt::format(fmt::runtime(command.next),
                        fmt::arg("PATH", given_text(set, is_path, "PATH")), fmt::arg("OUT", out))
         << "\n";
}

int run_words(std::span<const char* const> words, const Outlet& to) {
  std::vector<Command> all(commands().begin(), commands().end());
  all.insert(all.end(), to.further_commands.begin(), to.further_commands.end());
  Io io = make_io(to, all);
  const Program program(all);
  const Result<std::optional<std::string>> shown = program.parse(words, io.columns);
  if (!shown) {
    io.json = asks_for_json(words);
    const std::string_view first = words.size() > 1 ? words[1] : "";
    const bool is_named = program.options().find(first) != nullptr;
    return written(io, print_error(shown.why(), is_named ? first : "", io));
  }
  if (*shown) {
    io.out << **shown;
    return written(io, kDone);
  }
  io.json = program.wants_json();
  const Result<int> status = guarded(program.chosen(), program.run(), io);
  if (!status) return written(io, print_error(status.why(), program.chosen().name, io));
  if (*status == kDone) {
    try {
      print_next(program.chosen(), *program.options().find(program.chosen().name), io);
    } catch (const std::bad_alloc&) {  // the work is done, and advice may be left out
    }
  }
  return written(io, *status);
}

// Memory that lacks outside the command: for its options, or for the words of an error.
int print_thrown(const Outlet& to) {
  try {
    const Error why = thrown_error();
    to.err << error_text(why, "", 0);
    return static_cast<int>(why.code);
  } catch (...) {
    to.err << "fp4moe: out of memory [memory.exhausted]\n";
    return static_cast<int>(ErrorCode::exhausted);
  }
}

}  // namespace

int run_main(int argc, const char* const* argv, const Outlet& to) {
  try {
    return run_words({argv, static_cast<std::size_t>(std::max(argc, 0))}, to);
  } catch (...) {
    return print_thrown(to);
  }
}

}  // namespace fp4moe::cli
