#include "fp4moe/cli/command.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <unistd.h>

#include "fp4moe/base/mapping_guard.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/base/thrown.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/output_watch.hpp"
#include "fp4moe/cli/parse.hpp"
#include "fp4moe/cli/program.hpp"
#include "fp4moe/cli/run_words.hpp"
#include "fp4moe/cli/terminal.hpp"
#include "fp4moe/kernels/cpu/isa.hpp"
#include "fp4moe/platform/settings.hpp"

namespace fp4moe::cli {
namespace {

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
Result<int> guarded(const Command& command, const Run& run, const Io& io, const std::string& out) {
  const OutputWatch watch(out);
  try {
    const MappingGuard guard;
    Result<int> status = command.settings == Settings::check ? with_settings(run, io) : run(io);
    // The first cause of whatever came of it.
    if (const auto same = check_mappings(); !same) return same.why();
    if (!status) return with_what_stands(status.why(), watch);
    return status;
  } catch (...) {
    try {
      return with_what_stands(thrown_error(), watch);
    } catch (const std::bad_alloc&) {
      if (watch.look() == OutputWatch::Found::nothing) throw;
      throw OutputStands(watch);
    }
  }
}

// A full disk must not look like success. A closed pipe (`... | head -1`) is success.
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

Result<Json> option_facts(std::string_view name) {
  const Program program(commands());
  const OptionSet* found = program.options().find(name);
  if (found == nullptr) return unknown_command(program.options(), name);
  return facts(*found);
}

namespace {

int run_all(std::span<const char* const> words, const Outlet& to) {
  std::vector<Command> all(commands().begin(), commands().end());
  all.insert(all.end(), to.further_commands.begin(), to.further_commands.end());
  const Io io = make_io(to, all);
  return written(io, run_words(words, io, guarded));
}

// Out of memory outside the command: while options are read or an error is printed.
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
    return run_all({argv, static_cast<std::size_t>(std::max(argc, 0))}, to);
  } catch (const OutputStands& stands) {
    stands.print(to.err);
    return static_cast<int>(ErrorCode::exhausted);
  } catch (...) {
    return print_thrown(to);
  }
}

}  // namespace fp4moe::cli
