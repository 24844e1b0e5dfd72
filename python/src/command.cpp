// The command line in this process: with texts for its streams and a listener for progress, and as
// the program itself.
#include "fp4moe/cli/command.hpp"

#include <csignal>
#include <cstdint>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>

#include "errors.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "model.hpp"

namespace fp4moe::python {
namespace {

// Paths need not be text.
std::vector<std::string> words_of(const nb::sequence& given) {
  std::vector<std::string> result;
  for (const nb::handle word : given) result.push_back(path_of(word));
  return result;
}

std::vector<const char*> pointers(const std::vector<std::string>& words) {
  std::vector<const char*> result{"fp4moe"};
  for (const std::string& word : words) result.push_back(word.c_str());
  return result;
}

// An exception of the callable stops the work, as Ctrl-C does, and is raised again once it has
// ended.
class Listener {
 public:
  explicit Listener(nb::object callable) : callable_(std::move(callable)) {}

  cli::OnProgress on_progress() {
    if (callable_.is_none()) return {};
    guard_.emplace();
    return [this](std::string_view title, std::uint64_t done, std::uint64_t total) {
      const nb::gil_scoped_acquire held;
      if (raised_) return;
      try {
        callable_(nb::str(title.data(), title.size()), done, total);
      } catch (nb::python_error& thrown) {
        raised_.emplace(std::move(thrown));
        request_interrupt();
      }
    };
  }

  // With the GIL held, when the work has ended with a status. A signal that came too late to stop
  // anything is still meant for the interpreter.
  void finish(int status) {
    const bool is_late =
        guard_ && interrupt_requested() && status != static_cast<int>(ErrorCode::interrupted);
    guard_.reset();
    if (raised_) throw std::move(*raised_);
    if (is_late) PyErr_SetInterrupt();
  }

 private:
  nb::object callable_;
  std::optional<InterruptGuard> guard_{};
  std::optional<nb::python_error> raised_{};
};

nb::tuple command(const nb::sequence& given, nb::object on_progress) {
  if (!on_progress.is_none() && PyCallable_Check(on_progress.ptr()) == 0)
    raise_type("progress", "a callable", on_progress);
  const std::vector<std::string> words = words_of(given);
  const std::vector<const char*> argv = pointers(words);
  std::ostringstream out, err;
  Listener listener(std::move(on_progress));
  const cli::Outlet outlet{.out = out, .err = err, .on_progress = listener.on_progress()};
  const int status = value_or_raise(without_gil([&]() -> Result<int> {
    return cli::run_main(static_cast<int>(argv.size()), argv.data(), outlet);
  }));
  listener.finish(status);
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
  module.def("command", &command, nb::arg("words"), nb::arg("on_progress").none() = nb::none(),
             nb::sig("def command(words: typing.Sequence[str], on_progress: "
                     "typing.Callable[[str, int, int], object] | None = None) -> "
                     "tuple[int, str, str]"),
             "Run a command and tell a callable where it stands; its status, output and errors.");
  module.def(
      "options",
      [](const std::string& verb) { return to_python(value_or_raise(cli::option_facts(verb))); },
      nb::arg("verb"), nb::sig("def options(verb: str) -> dict[str, typing.Any]"),
      "What a command takes: its options and questions.");
  module.def("main", &main_of, nb::arg("words"),
             nb::sig("def main(words: typing.Sequence[str]) -> int"),
             "Run a command on the process's own streams; its exit status.");
}

}  // namespace fp4moe::python
