#include "fp4moe/cli/run_words.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "fp4moe/base/phrase.hpp"
#include "fp4moe/base/shell_word.hpp"
#include "fp4moe/base/text.hpp"
#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/program.hpp"
#include "fp4moe/cli/rank_folders.hpp"

namespace fp4moe::cli {
namespace {

int print_error(const Error& why, std::string_view command, const Io& io) {
  try {
    if (io.json) io.print({{"error", to_json(with_usual_remedy(why))}});
    io.err << error_text(why, command, io.err_columns);
  } catch (const std::bad_alloc&) {
    print_plain_error(io.err, why.path, {why.message}, why.id);
  }
  return static_cast<int>(why.code);
}

// True if a command line that was not understood asks for a JSON object, too.
bool asks_for_json(std::span<const char* const> words) {
  return std::ranges::any_of(words, [](std::string_view word) { return word == "--json"; });
}

// The text that the command line gave to the first option of this name; the name where it gave none.
std::string given_text(const OptionSet& set, bool (*is_it)(const Option&), std::string_view none) {
  const auto found = std::ranges::find_if(set.options, is_it);
  if (found == set.options.end()) return std::string(none);
  const auto* text = std::get_if<std::string*>(&found->target);
  return text == nullptr || (*text)->empty() ? std::string(none) : **text;
}

// As it is typed again.
std::string word(const std::string& path) { return shell_word(printable(path)); }

bool is_dry_run(const OptionSet& set) {
  return std::ranges::any_of(set.options, [](const Option& option) {
    const auto* flag = std::get_if<bool*>(&option.target);
    return option.name() == "dry-run" && flag != nullptr && **flag;
  });
}

std::string given_out(const OptionSet& set) {
  return given_text(
      set, [](const Option& option) { return option.name() == "out"; }, "");
}

void print_next(const Command& command, const OptionSet& set, const std::string& out,
                const Io& io) {
  if (io.json || command.next.empty()) return;
  const auto is_path = [](const Option& option) { return option.is_positional(); };
  if (out.empty() && command.next.find("{OUT}") != std::string_view::npos) {
    io.out << "Next: the same with -o OUT\n";  // nothing was written
    return;
  }
  if (is_dry_run(set)) {
    io.out << "Next: the same without --dry-run\n";
    return;
  }
  const std::string next = fmt::format(
      fmt::runtime(command.next), fmt::arg("PATH", word(given_text(set, is_path, "PATH"))),
      fmt::arg("OUT", word(out)), fmt::arg("RANK", word(rank_folders(out).front())));
  constexpr std::size_t kIndent = 6;
  io.out << wrapped("Next: " + next, io.columns, kIndent) << "\n";
}

}  // namespace

void Io::print(const Json& report) const {
  Json whole{{"schema_version", 1}};
  whole.update(report);
  out << whole.dump(2) << "\n";
}

int run_words(std::span<const char* const> words, Io io, RunCommand run) {
  const Program program(io.commands);
  const Result<std::optional<std::string>> shown = program.parse(words, io.columns);
  if (!shown) {
    io.json = asks_for_json(words);
    const std::string_view first = words.size() > 1 ? words[1] : "";
    const bool is_named = program.options().find(first) != nullptr;
    return print_error(shown.why(), is_named ? first : "", io);
  }
  if (*shown) {
    io.out << **shown;
    return kDone;
  }
  io.json = program.wants_json();
  const OptionSet& set = *program.options().find(program.chosen().name);
  const std::string out = given_out(set);
  const Result<int> status = run(program.chosen(), program.run(), io, out);
  if (!status) return print_error(status.why(), program.chosen().name, io);
  if (*status == kDone) {
    try {
      print_next(program.chosen(), set, out, io);
    } catch (const std::bad_alloc&) {  // the work is done, and advice may be left out
    }
  }
  return *status;
}

}  // namespace fp4moe::cli
