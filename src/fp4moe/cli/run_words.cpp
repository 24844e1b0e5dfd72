#include "fp4moe/cli/run_words.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "fp4moe/cli/error_text.hpp"
#include "fp4moe/cli/program.hpp"

namespace fp4moe::cli {
namespace {

int print_error(const Error& why, std::string_view command, const Io& io) {
  if (io.json) io.print({{"error", to_json(why)}});
  io.err << error_text(why, command, io.err_columns);
  return static_cast<int>(why.code);
}

// Of a command line that was not understood: whether an object is wanted beside the words.
bool asks_for_json(std::span<const char* const> words) {
  return std::ranges::any_of(words, [](std::string_view word) { return word == "--json"; });
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
  const Result<int> status = run(program.chosen(), program.run(), io);
  if (!status) return print_error(status.why(), program.chosen().name, io);
  return *status;
}

}  // namespace fp4moe::cli
