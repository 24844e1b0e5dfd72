#include "errors.hpp"

#include <string>

#include <nanobind/stl/string.h>

namespace fp4moe::python {
namespace {

// An error's text may hold bytes of a file that are not UTF-8.
nb::object as_text(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

}  // namespace

void raise(const Error& why) {
  const nb::object make = nb::module_::import_("fp4moe.errors").attr("make");
  const nb::object result =
      make(static_cast<int>(why.code), as_text(why.id), as_text(why.message),
           nb::arg("path") = as_text(why.path), nb::arg("tensor") = as_text(why.tensor),
           nb::arg("expected") = as_text(why.expected), nb::arg("found") = as_text(why.found),
           nb::arg("remedy") = as_text(why.remedy), nb::arg("line") = as_text(text(why)));
  PyErr_SetObject(result.type().ptr(), result.ptr());
  throw nb::python_error();
}

void raise_type(std::string_view what, std::string_view expected, nb::handle found) {
  const std::string line = std::string(what) + ": expected " + std::string(expected) + ", found " +
                           nb::cast<std::string>(nb::str(found.type().attr("__qualname__")));
  PyErr_SetString(PyExc_TypeError, line.c_str());
  throw nb::python_error();
}

}  // namespace fp4moe::python
