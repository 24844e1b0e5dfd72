#include <string_view>

#include "bindings.hpp"
#include "fp4moe/base/version.hpp"
#include "layer.hpp"
#include "model.hpp"

NB_MODULE(_core, module) {  // NOLINT(readability-identifier-naming)
  // The interpreter's end is not the place to count what it still holds.
  nanobind::set_leak_warnings(false);
  module.doc() = "The compiled part of fp4moe.";
  const std::string_view version = fp4moe::kVersion;
  module.attr("VERSION") = nanobind::str(version.data(), version.size());
  auto model = fp4moe::python::bind_model(module);
  auto layer = fp4moe::python::bind_layer(module, model);
  fp4moe::python::bind_tensors(model);
  fp4moe::python::bind_weights(layer);
  fp4moe::python::bind_adapters(module, layer);
  fp4moe::python::bind_command(module);
  fp4moe::python::bind_formats(module);
  fp4moe::python::bind_quantize(module);
  fp4moe::python::bind_vllm(module);
}
