// fp4moe man [COMMAND]: manual pages in roff, made from the same options as --help.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/base/version.hpp"
#include "fp4moe/cli/command.hpp"
#include "fp4moe/cli/help_text.hpp"
#include "fp4moe/cli/options.hpp"
#include "fp4moe/cli/parse.hpp"
#include "fp4moe/cli/program.hpp"
#include "fp4moe/tensor/files/atomic_file.hpp"

namespace fp4moe::cli {

Run declare_man(OptionSet& set);

namespace {

using Sets = std::vector<const OptionSet*>;

struct ManPage {
  std::string file{}, text{};
};

// Backslashes and dashes as themselves; no line begins with a request.
std::string roff(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if ((letter == '.' || letter == '\'') && (result.empty() || result.back() == '\n'))
      result += "\\&";
    if (letter == '-' || letter == '\\') result += '\\';
    result += letter == '\\' ? 'e' : letter;
  }
  return result;
}

std::string dashed(const Sets& sets) {
  std::string result;
  for (const OptionSet* set : sets) result += (result.empty() ? "" : "-") + set->name;
  return result;
}

void add_list(std::string& out, const std::vector<OptionLine>& lines) {
  for (const OptionLine& line : lines) {
    out += fmt::format(".TP\n\\fB{}\\fR\n", roff(line.spelling));
    bool is_first = true;
    for (const std::string_view paragraph : split(line.help, '\n')) {
      if (!is_first) out += ".br\n";
      is_first = false;
      out += roff(paragraph) + "\n";
    }
  }
}

void add_statuses(std::string& out) {
  struct Status {
    ErrorCode code;
    std::string_view means;
  };
  constexpr Status kStatuses[] = {
      {ErrorCode::failed, "the work could not be done; a path is not there"},
      {ErrorCode::usage, "the request itself is wrong"},
      {ErrorCode::invalid_input, "a file or tensor breaks its format"},
      {ErrorCode::no_backend, "no backend supports the configuration"},
      {ErrorCode::mismatch, "verification or golden data disagree"},
      {ErrorCode::exhausted, "out of memory or disk"},
      {ErrorCode::unavailable, "this machine or build lacks what is needed"},
      {ErrorCode::interrupted, "interrupted"},
  };
  out += ".SH EXIT STATUS\n.TP\n\\fB0\\fR\ndone\n";
  for (const Status& status : kStatuses)
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", static_cast<int>(status.code), status.means);
}

std::string upper(std::string text) {
  for (char& letter : text)
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  return text;
}

std::string page_of(const Sets& sets) {
  const OptionSet& last = *sets.back();
  std::string out =
      fmt::format(".TH {} 1 \"\" \"fp4moe {}\" \"User Commands\"\n", upper(dashed(sets)), kVersion);
  out += fmt::format(".SH NAME\n{} \\- {}\n", roff(dashed(sets)), roff(last.summary));
  out += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR\n", roff(usage_line(sets)));
  if (!last.subcommands.empty()) {
    out += ".SH COMMANDS\n";
    std::vector<OptionLine> lines;
    for (const OptionSet& each : last.subcommands) lines.push_back({each.name, each.summary});
    add_list(out, lines);
  }
  for (const OptionGroup& group : option_groups(last)) {
    out += fmt::format(".SH {}\n", upper(group.heading));
    add_list(out, group.lines);
  }
  for (const OptionSet& each : last.subcommands)
    for (const OptionGroup& group : option_groups(each)) {
      if (sets.size() == 1) break;  // each has its own page
      out += fmt::format(".SH {} OF {}\n", upper(group.heading), upper(each.name));
      add_list(out, group.lines);
    }
  add_statuses(out);
  if (!last.footer.empty()) out += fmt::format(".SH EXAMPLE\n.nf\n{}\n.fi\n", roff(last.footer));
  if (sets.size() > 1) out += ".SH SEE ALSO\n\\fBfp4moe\\fR(1)\n";
  return out;
}

Result<int> write_man_pages(const OptionSet& root, const std::string& folder, const Io& io) {
  std::vector<ManPage> pages{{"fp4moe.1", page_of({&root})}};
  for (const OptionSet& command : root.subcommands)
    pages.push_back({dashed({&root, &command}) + ".1", page_of({&root, &command})});
  for (const ManPage& page : pages) {
    const auto bytes = std::as_bytes(std::span(page.text.data(), page.text.size()));
    if (const auto done = tensor::write_file(folder + "/" + page.file, bytes); !done)
      return done.why();
  }
  if (io.json)
    io.print({{"command", "man"}, {"folder", folder}, {"pages", pages.size()}});
  else
    io.out << fmt::format("{} pages in {}\n", pages.size(), folder);
  return kDone;
}

struct ManOptions {
  std::string command{}, folder{};
};

Result<int> run_man(const ManOptions& options, const Io& io) {
  const Program program(io.commands);
  const OptionSet& root = program.options();
  if (!options.folder.empty()) return write_man_pages(root, options.folder, io);
  Sets sets{&root};
  if (!options.command.empty()) {
    sets.push_back(root.find(options.command));
    if (sets.back() == nullptr) return unknown_command(root, options.command);
  }
  const std::string page = page_of(sets);
  if (io.json)
    io.print({{"command", "man"}, {"page", page}});
  else
    io.out << page;
  return kDone;
}

}  // namespace

Run declare_man(OptionSet& set) {
  const auto options = std::make_shared<ManOptions>();
  set.add("COMMAND", options->command, "One command's page (default: the program's)")
      .as(Form::command);
  set.add("--folder", options->folder, "Write every page into this folder").existing_folder();
  return [options](const Io& io) { return run_man(*options, io); };
}

}  // namespace fp4moe::cli
