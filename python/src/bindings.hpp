// The parts of the module `fp4moe._core`: one function per file of the same name.
#pragma once
#include <nanobind/nanobind.h>

namespace fp4moe::python {

namespace nb = nanobind;

struct Model;
class Layer;

nb::class_<Model> bind_model(nb::module_& module);
nb::class_<Layer> bind_layer(nb::module_& module, nb::class_<Model>& model);  // Model.layer, too
void bind_tensors(nb::class_<Model>& model);                                  // Model.from_tensors
void bind_adapters(nb::module_& module, nb::class_<Layer>& layer);            // Layer.adapters, too
void bind_weights(nb::class_<Layer>& layer);                                  // Layer.from_weights
void bind_command(nb::module_& module);
void bind_formats(nb::module_& module);
void bind_quantize(nb::module_& module);
void bind_vllm(nb::module_& module);

}  // namespace fp4moe::python
