// Commands with a listener: progress goes to a callable of Python, and options are told as data.
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/string.h>

#include "errors.hpp"
#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/cli/command.hpp"
#include "model.hpp"

namespace fp4moe::python {
namespace {

// What the callable raises stops the work, as Ctrl-C does, and is raised again once it has ended.
class Listener {
 public:
  explicit Listener(nb::object told) : told_(std::move(told)) {}

  cli::OnProgress on_progress() {
    if (told_.is_none()) return {};
    guard_.emplace();
    return [this](std::string_view title, std::uint64_t done, std::uint64_t total) {
      const nb::gil_scoped_acquire held;
      if (raised_) return;
      try {
        told_(nb::str(title.data(), title.size()), done, total);
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
  nb::object told_;
  std::optional<InterruptGuard> guard_{};
  std::optional<nb::python_error> raised_{};
};

nb::object as_text(const std::string& bytes) {
  return nb::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

nb::tuple run_verb(const nb::sequence& given, nb::object on_progress) {
  if (!on_progress.is_none() && PyCallable_Check(on_progress.ptr()) == 0)
    raise_type("progress", "a callable", on_progress);
  std::vector<std::string> words{"fp4moe"};
  for (const nb::handle word : given) words.push_back(path_of(word));  // paths need not be text
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::ostringstream out, err;
  Listener listener(std::move(on_progress));
  const cli::Outlet outlet{.out = out, .err = err, .on_progress = listener.on_progress()};
  const int status = value_or_raise(without_gil([&]() -> Result<int> {
    return cli::run_main(static_cast<int>(argv.size()), argv.data(), outlet);
  }));
  listener.finish(status);
  return nb::make_tuple(status, as_text(out.str()), as_text(err.str()));
}

}  // namespace

void bind_verbs(nb::module_& module) {
  module.def("run_verb", &run_verb, nb::arg("words"), nb::arg("on_progress").none(),
             nb::sig("def run_verb(words: typing.Sequence[str], on_progress: "
                     "typing.Callable[[str, int, int], object] | None) -> tuple[int, str, str]"),
             "Run a command and tell a callable where it stands; its status, output and errors.");
  module.def(
      "options",
      [](const std::string& verb) { return to_python(value_or_raise(cli::option_facts(verb))); },
      nb::arg("verb"), nb::sig("def options(verb: str) -> dict[str, typing.Any]"),
      "What a command takes: its options and questions.");
}

}  // namespace fp4moe::python
