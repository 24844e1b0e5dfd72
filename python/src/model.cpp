#include "model.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "errors.hpp"
#include "fp4moe/runtime/describe.hpp"

namespace fp4moe::python {

nb::object to_python(const Json& json) {
  const std::string text = json.dump();
  return nb::module_::import_("json").attr("loads")(text);
}

std::string path_of(nb::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &bytes) == 0) throw nb::python_error();
  const nb::object held = nb::steal(bytes);
  return {PyBytes_AsString(bytes), static_cast<std::size_t>(PyBytes_Size(bytes))};
}

Model open_model(nb::handle path) {
  const std::string where = path_of(path);
  Result<runtime::Model> opened = without_gil([&] { return runtime::Model::open(where); });
  return {std::make_shared<const runtime::Model>(value_or_raise(std::move(opened)))};
}

nb::class_<Model> bind_model(nb::module_& module) {
  nb::class_<Model> model(module, "Model",
                          "A checkpoint or converted folder, opened; headers only.");
  model
      .def_static("open", &open_model, nb::arg("path"),
                  nb::sig("def open(path: str | os.PathLike[str]) -> Model"),
                  "Open a checkpoint (folder, index, file, GGUF) or a converted folder.")
      .def("__len__", [](const Model& self) { return self.open->layers(); })
      .def_prop_ro(
          "path", [](const Model& self) { return self.open->path(); }, "Where it was opened.")
      .def(
          "info", [](const Model& self) { return to_python(runtime::describe(*self.open)); },
          nb::sig("def info(self) -> dict[str, typing.Any]"),
          "Its layers: shapes, activations, routing.")
      .def("__repr__", [](const Model& self) {
        return fmt::format("<fp4moe.Model {} with {} MoE layers>",
                           self.sources ? "in memory" : self.open->path(), self.open->layers());
      });
  return model;
}

}  // namespace fp4moe::python
