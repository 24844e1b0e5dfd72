// The command line in this process: with texts for its streams, and as the program itself.
#include "fp4moe/cli/command.hpp"

#include <csignal>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "errors.hpp"
#include "model.hpp"

namespace fp4moe::python {
namespace {

// Paths need not be text.
std::vector<std::string> words_of(const nb::sequence& given) {
  std::vector<std::string> made;
  for (const nb::handle word : given) made.push_back(path_of(word));
  return made;
}

std::vector<const char*> pointers(const std::vector<std::string>& words) {
  std::vector<const char*> made{"fp4moe"};
  for (const std::string& word : words) made.push_back(word.c_str());
  return made;
}

nb::tuple command(const nb::sequence& given) {
  const std::vector<std::string> words = words_of(given);
  const std::vector<const char*> argv = pointers(words);
  std::ostringstream out, err;
  const int status = value_or_raise(without_gil([&]() -> Result<int> {
    return cli::run_main(static_cast<int>(argv.size()), argv.data(), out, err);
  }));
  const auto text = [](const std::string& bytes) {
    return nb::steal(
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
  };
  return nb::make_tuple(status, text(out.str()), text(err.str()));
}

int main_of(const nb::sequence& given) {
  const std::vector<std::string> words = words_of(given);
  const std::vector<const char*> argv = pointers(words);
  return value_or_raise(without_gil([&]() -> Result<int> {
    // As the program has it: lost readers and full disks are write errors, Ctrl-C ends at once what
    // does not watch for it.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    std::signal(SIGINT, SIG_DFL);
    return cli::run_main(static_cast<int>(argv.size()), argv.data(), std::cout, std::cerr);
  }));
}

}  // namespace

void bind_command(nb::module_& module) {
  module.def("command", &command, nb::arg("words"),
             nb::sig("def command(words: typing.Sequence[str]) -> tuple[int, str, str]"),
             "Run a command; its exit status, output and errors.");
  module.def("main", &main_of, nb::arg("words"),
             nb::sig("def main(words: typing.Sequence[str]) -> int"),
             "Run a command on the process's own streams; its exit status.");
}

}  // namespace fp4moe::python
