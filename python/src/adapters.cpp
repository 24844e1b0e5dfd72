#include "adapters.hpp"

#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "arrays.hpp"
#include "errors.hpp"
#include "model.hpp"

namespace fp4moe::python {
namespace {

using tensor::DType;

std::vector<std::string> folders_of(nb::handle folders) {
  // One folder is a list of one; a str is a sequence, too, of letters.
  if (nb::isinstance<nb::str>(folders) || nb::hasattr(folders, "__fspath__"))
    return {path_of(folders)};
  if (!nb::hasattr(folders, "__iter__"))
    raise_type("folders", "the path of an adapter, or a sequence of them", folders);
  std::vector<std::string> result;
  for (const nb::handle folder : nb::iter(folders)) result.push_back(path_of(folder));
  if (result.empty())
    raise(usage("lora.folders", "there are no adapters to load").expects("a folder", "none"));
  return result;
}

Adapters load_adapters(const Layer& layer, nb::handle folders) {
  const std::shared_ptr<const OpenLayer> open = layer.get();
  if (!open->model.open)
    raise(usage("layer.source", "adapters name the tensors of a model")
              .expects("a layer of a model", "one of from_weights"));
  Adapters result{.layer = open, .folders = folders_of(folders)};
  result.set = std::make_shared<const moe::LoraSet>(value_or_raise(without_gil([&] {
    return open->model.open->adapters(open->number, result.folders, open->layer.slice());
  })));
  return result;
}

template <class T>
void copy_numbers(const Array& from, std::vector<std::int32_t>& to, std::size_t adapters) {
  const auto* data = static_cast<const std::byte*>(from.data());
  for (std::int64_t token = 0; token < from.shape(0); ++token) {
    T number{};
    std::memcpy(&number, data + token * from.stride(0), sizeof number);
    if (number < -1 || number >= static_cast<std::int64_t>(adapters))
      raise(usage("lora.tokens", "a token asks for an adapter that is not loaded")
                .at("lora_of_token")
                .expects(fmt::format("-1 (none) to {}", adapters - 1), fmt::format("{}", number)));
    to.push_back(static_cast<std::int32_t>(number));
  }
}

void take_numbers(nb::handle of_token, std::uint64_t tokens, Additions& to) {
  const Array array = Array::take(of_token, "lora_of_token");
  const bool is_narrow = array.dtype() == DType::i32;
  if (array.dimensions() != 1 || (!is_narrow && array.dtype() != DType::i64) ||
      static_cast<std::uint64_t>(array.shape(0)) != tokens)
    raise(usage("lora.tokens", "the tokens' adapters cannot be read")
              .at("lora_of_token")
              .expects(fmt::format("[{}] of I32 or I64", tokens),
                       fmt::format("{} of {}", array.shape_text(), array.dtype_text())));
  to.of_token.reserve(tokens);
  if (is_narrow)
    copy_numbers<std::int32_t>(array, to.of_token, to.view.adapters());
  else
    copy_numbers<std::int64_t>(array, to.of_token, to.view.adapters());
}

}  // namespace

Additions take_additions(const std::shared_ptr<OpenLayer>& layer, std::uint64_t tokens,
                         nb::handle lora, nb::handle of_token) {
  Additions result;
  if (lora.is_none()) {
    if (!of_token.is_none())
      raise(usage("lora.tokens", "tokens have adapters, but there are none")
                .at("lora_of_token")
                .expects("lora=layer.adapters(folders) beside it", "lora=None"));
    return result;
  }
  if (!nb::isinstance<Adapters>(lora)) raise_type("lora", "what Layer.adapters() made", lora);
  const Adapters& given = *nb::inst_ptr<Adapters>(lora);
  if (given.layer.lock() != layer)
    raise(usage("lora.layer", "the adapters were loaded for another layer")
              .expects("those of this layer's adapters()", "those of another"));
  result.set = given.set;
  result.view = result.set->view();
  if (of_token.is_none())
    result.of_token.assign(tokens, 0);
  else
    take_numbers(of_token, tokens, result);
  return result;
}

void bind_adapters(nb::module_& module, nb::class_<Layer>& layer) {
  nb::class_<Adapters>(module, "Adapters", "LoRA adapters, loaded for one layer.")
      .def("__len__", [](const Adapters& result) { return result.folders.size(); })
      .def("__repr__", [](const Adapters& result) {
        return fmt::format("<fp4moe.Adapters {}>", fmt::join(result.folders, ", "));
      });
  layer.def("adapters", &load_adapters, nb::arg("folders"),
            nb::sig("def adapters(self, folders: str | os.PathLike[str] | "
                    "collections.abc.Iterable[str | os.PathLike[str]]) -> Adapters"),
            "Load LoRA adapters (PEFT's folders) for this layer's experts; tokens name them by "
            "their order.");
}

}  // namespace fp4moe::python
