// Model.from_tensors: a checkpoint whose tensors lie in arrays already. Nothing is copied; the
// model holds the arrays until it and its layers are gone.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "errors.hpp"
#include "fp4moe/runtime/facts.hpp"
#include "model.hpp"

namespace fp4moe::python {
namespace {

using tensor::DType;

// Types of torch that not every version hands out by DLPack: seen through bytes.
struct TorchType {
  const char* name;
  DType dtype;
};
constexpr TorchType kTorchTypes[] = {
    {"torch.float8_e4m3fn", DType::f8_e4m3},
    {"torch.float8_e5m2", DType::f8_e5m2},
    {"torch.float8_e8m0fnu", DType::f8_e8m0},
    {"torch.float4_e2m1fn_x2", DType::f4},
};

// The address of a torch tensor's memory; its owner may resize it meanwhile.
struct Storage {
  nb::object object;
  std::size_t bytes = 0;
  std::uintptr_t address = 0;
  std::string tensor{};

  bool is_as_it_was() const {
    return nb::cast<std::size_t>(object.attr("nbytes")()) == bytes &&
           nb::cast<std::uintptr_t>(object.attr("data_ptr")()) == address;
  }
};

// The arrays of a model, which go with the GIL held.
struct Held : Sources {
  void check(std::string_view prefix) const override {
    for (auto storage = std::ranges::lower_bound(storages, prefix, {}, &Storage::tensor);
         storage != storages.end() && storage->tensor.starts_with(prefix); ++storage)
      if (!storage->is_as_it_was())
        raise(usage("tensors.resized", "the tensor's memory is not where it was")
                  .at(storage->tensor)
                  .expects("memory that stays while a model reads it", "a storage that was resized")
                  .try_this("make a model of the tensor as it is now"));
  }

  std::vector<Array> arrays{};
  std::vector<Storage> storages{};        // by name
  std::optional<runtime::Model> model{};  // goes first
};
void let_go(Held* held) {
  // At the interpreter's end the arrays' owners are gone already.
  if (Py_IsInitialized() == 0) return;
  const nb::gil_scoped_acquire acquired;
  delete held;
}

struct Source {
  nb::object object;
  bool is_torch = false;
  std::optional<DType> dtype{};  // what its bytes are, where the array cannot say
};
Source source_of(nb::handle object) {
  if (!nb::hasattr(object, "requires_grad")) return {nb::borrow(object)};
  // Weights are read, whoever trains them.
  const nb::object plain = object.attr("detach")();
  const nb::object dtype = plain.attr("dtype");
  const auto name = nb::cast<std::string>(nb::str(dtype));
  for (const TorchType& row : kTorchTypes)
    if (name == row.name)
      return {plain.attr("view")(nb::module_::import_("torch").attr("uint8")), true, row.dtype};
  return {plain, true};
}

void hold(const std::string& name, const Source& source, Held& held) {
  const std::string what = fmt::format("tensor \"{}\"", name);
  held.arrays.push_back(Array::take(source.object, what.c_str(), {.hold = Hold::for_long}));
  if (!source.is_torch) return;
  Storage storage{.object = source.object.attr("untyped_storage")(), .tensor = name};
  storage.bytes = nb::cast<std::size_t>(storage.object.attr("nbytes")());
  storage.address = nb::cast<std::uintptr_t>(storage.object.attr("data_ptr")());
  held.storages.push_back(std::move(storage));
}

tensor::MemoryTensor described(const std::string& name, const Array& array,
                               std::optional<DType> named) {
  const std::optional<DType> dtype = named ? named : array.dtype();
  if (!dtype)
    raise(usage("tensors.type", "the array has a type that no checkpoint has")
              .at(name)
              .expects("a type of safetensors", array.dtype_text()));
  tensor::MemoryTensor result{.name = name, .dtype = *dtype};
  // The bytes of an element, before FP4's are counted by twos.
  std::int64_t step = static_cast<std::int64_t>(tensor::row(*dtype).block_bytes);
  std::uint64_t bytes = static_cast<std::uint64_t>(step);
  bool is_dense = true;
  std::string strides;
  for (std::size_t i = array.dimensions(); i-- > 0;) {
    is_dense = is_dense && (array.shape(i) <= 1 || array.stride(i) == step);
    step *= std::max<std::int64_t>(1, array.shape(i));
    bytes *= static_cast<std::uint64_t>(array.shape(i));
    result.shape.insert(result.shape.begin(), static_cast<std::uint64_t>(array.shape(i)));
    strides = fmt::format("{}{}{}", array.stride(i), strides.empty() ? "" : ", ", strides);
  }
  if (bytes != 0 && !is_dense)
    raise(usage("tensors.stride", "the array has gaps or another order")
              .at(name)
              .expects("a contiguous array",
                       fmt::format("shape {}, strides of {} bytes", array.shape_text(), strides))
              .try_this("copy it: numpy.ascontiguousarray(x), x.contiguous()"));
  if (*dtype == DType::f4 && !result.shape.empty()) result.shape.back() *= 2;
  result.bytes = {static_cast<const std::byte*>(array.data()), static_cast<std::size_t>(bytes)};
  return result;
}

// JSON text, or what json.dumps makes one of.
void add_document(nb::handle given, const char* name, std::vector<tensor::Document>& to) {
  if (given.is_none()) return;
  const nb::object text = nb::isinstance<nb::str>(given)
                              ? nb::borrow(given)
                              : nb::module_::import_("json").attr("dumps")(given);
  to.push_back({name, nb::cast<std::string>(text)});
}

Model model_from_tensors(nb::handle tensors, nb::handle config, nb::handle quant_config) {
  if (PyMapping_Check(tensors.ptr()) == 0 || !nb::hasattr(tensors, "items"))
    raise_type("tensors", "a mapping from names to arrays", tensors);
  std::vector<tensor::Document> documents;
  add_document(config, "config.json", documents);
  add_document(quant_config, "hf_quant_config.json", documents);
  std::shared_ptr<Held> held(new Held, &let_go);
  std::vector<tensor::MemoryTensor> described_all;
  for (nb::handle item : tensors.attr("items")()) {
    const auto [key, value] = nb::cast<std::pair<nb::object, nb::object>>(item);
    if (!nb::isinstance<nb::str>(key)) raise_type("a tensor's name", "str", key);
    const auto name = nb::cast<std::string>(key);
    const Source source = source_of(value);
    hold(name, source, *held);
    described_all.push_back(described(name, held->arrays.back(), source.dtype));
  }
  std::ranges::sort(held->storages, {}, &Storage::tensor);
  held->model = value_or_raise(without_gil([&]() -> Result<runtime::Model> {
    Result<tensor::Store> store = tensor::Store::of(std::move(described_all), std::move(documents));
    if (!store) return store.why();
    Result<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::of(*std::move(store));
    if (!checkpoint) return checkpoint.why();
    return runtime::Model::of(*std::move(checkpoint));
  }));
  return {std::shared_ptr<const runtime::Model>(held, &*held->model), held};
}

nb::object floats(const std::vector<float>& values, nb::tuple shape) {
  const nb::module_ numpy = nb::module_::import_("numpy");
  const nb::bytes copied(values.data(), values.size() * sizeof(float));
  return numpy.attr("frombuffer")(copied, "float32").attr("reshape")(shape).attr("copy")();
}

// The linear map from tokens to logits: weight [experts, hidden], and bias [experts] or None.
nb::tuple router_of(const Model& model, std::int64_t number) {
  if (number < 0 || static_cast<std::size_t>(number) >= model.open->layers())
    raise(usage("layer.number", "the model has no such MoE layer")
              .expects(fmt::format("below {}", model.open->layers()), fmt::format("{}", number)));
  const auto loaded = value_or_raise(without_gil([&]() -> Result<runtime::RouterWeights> {
    const Result<runtime::LayerFacts> facts = model.open->facts(static_cast<std::size_t>(number));
    if (!facts) return facts.why();
    return runtime::load_router(*facts, model.open->finder());
  }));
  nb::object bias = nb::none();
  if (!loaded.bias.empty()) bias = floats(loaded.bias, nb::make_tuple(loaded.experts));
  return nb::make_tuple(floats(loaded.weight, nb::make_tuple(loaded.experts, loaded.hidden)),
                        std::move(bias));
}

}  // namespace

void bind_tensors(nb::class_<Model>& model) {
  model
      .def_static(
          "from_tensors", &model_from_tensors, nb::arg("tensors").none(),
          nb::arg("config").none() = nb::none(), nb::arg("quant_config").none() = nb::none(),
          nb::sig("def from_tensors(tensors: collections.abc.Mapping[str, typing.Any], "
                  "config: collections.abc.Mapping[str, typing.Any] | str | None = None, "
                  "quant_config: collections.abc.Mapping[str, typing.Any] | str | None = None) "
                  "-> Model"),
          "A checkpoint whose tensors are arrays already: names as in its files, config.json and "
          "hf_quant_config.json as dictionaries or text. Nothing is copied.")
      .def("router", &router_of, nb::arg("number"),
           nb::sig("def router(self, number: int) -> tuple[numpy.typing.NDArray[numpy.float32], "
                   "numpy.typing.NDArray[numpy.float32] | None]"),
           "The router's weight [experts, hidden] and bias [experts], or None for no bias.");
}

}  // namespace fp4moe::python
