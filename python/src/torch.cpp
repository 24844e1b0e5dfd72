#include "torch.hpp"

#include <fmt/format.h>

#include "errors.hpp"

namespace fp4moe::python {
namespace {

constexpr std::uint32_t kExchangeMajor = 1;

// Calls without keywords. Null is an exception of Python's.
template <class... Arguments>
nb::object call(nb::handle function, Arguments... arguments) {
  PyObject* const result =
      PyObject_CallFunctionObjArgs(function.ptr(), arguments.ptr()..., nullptr);
  if (result == nullptr) throw nb::python_error();
  return nb::steal(result);
}

}  // namespace

// DLPack's table of C functions (DLPackExchangeAPI, since its version 1.3), which a type shows as
// the capsule __dlpack_c_exchange_api__.
struct Torch::Exchange {
  std::uint32_t major, minor;
  const Exchange* older;
  void (*others[3])();
  // Fills in the view, which owns nothing; not 0: an exception of Python's.
  int (*view)(void* object, nb::dlpack::dltensor* to);
};

Torch::Torch(nb::handle module)
    : module_(nb::borrow(module)),
      tensor_(module.attr("Tensor")),
      to_dlpack_(nb::module_::import_("torch.utils.dlpack").attr("to_dlpack")),
      is_grad_enabled_(module.attr("is_grad_enabled")),
      empty_like_(module.attr("empty_like")),
      requires_grad_(nb::str("requires_grad")),
      new_empty_(nb::str("new_empty")),
      exchange_(exchange_of(tensor_)) {}

const Torch::Exchange* Torch::exchange_of(nb::handle type) {
  constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
  if (!nb::hasattr(type, kAttribute)) return nullptr;
  const nb::object capsule = type.attr(kAttribute);
  const void* const found = PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api");
  if (found == nullptr) {
    PyErr_Clear();  // something else of this name
    return nullptr;
  }
  const auto* table = static_cast<const Exchange*>(found);
  while (table != nullptr && table->major != kExchangeMajor) table = table->older;
  return table != nullptr && table->view != nullptr ? table : nullptr;
}

const Torch* Torch::imported() {
  // Never torn down: the interpreter may be gone by then.
  static const Torch* result =
      nullptr;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
  if (result != nullptr) return result;
  const nb::handle modules(PyImport_GetModuleDict());
  const nb::handle found(PyDict_GetItemString(modules.ptr(), "torch"));
  // One that is only half imported has not all of them.
  for (const char* name : {"Tensor", "is_grad_enabled", "empty_like"})
    if (!found.is_valid() || !nb::hasattr(found, name)) return nullptr;
  result = new Torch(found);
  return result;
}

bool Torch::is_tensor(nb::handle object) const {
  if (object.type().is(tensor_)) return true;
  const int found = PyObject_IsInstance(object.ptr(), tensor_.ptr());
  if (found < 0) throw nb::python_error();
  return found == 1;
}

bool Torch::records_gradients() const { return call(is_grad_enabled_).is(Py_True); }

bool Torch::wants_gradient(nb::handle tensor) const {
  return nb::object(tensor.attr(requires_grad_)).is(Py_True);
}

Torch::Memory Torch::memory(nb::handle tensor, const char* what, Hold hold) const {
  Memory result;
  // Tensors of other types, which are no plain memory, say so by the longer way.
  if (hold == Hold::for_a_call && exchange_ != nullptr && tensor.type().is(tensor_)) {
    if (exchange_->view(tensor.ptr(), &result.view) == 0) return result;
    PyErr_Clear();  // told again, in fewer words
  }
  // Its own __dlpack__ asks about streams and gradients in Python. A capsule that was not renamed
  // frees its tensor when it is destroyed.
  PyObject* const capsule = PyObject_CallFunctionObjArgs(to_dlpack_.ptr(), tensor.ptr(), nullptr);
  if (capsule == nullptr) {
    const nb::python_error thrown;
    raise(usage("rows.memory", fmt::format("{} have no memory to read", what))
              .expects("a dense tensor of numbers", thrown.what()));
  }
  result.held = nb::steal(capsule);
  const void* const managed = PyCapsule_GetPointer(capsule, "dltensor");
  if (managed == nullptr) throw nb::python_error();
  result.view = *static_cast<const nb::dlpack::dltensor*>(managed);  // begins with it
  return result;
}

nb::object Torch::empty_like(nb::handle tensor) const { return call(empty_like_, tensor); }

nb::object Torch::empty(nb::handle like, const nb::tuple& shape, const char* dtype) const {
  return like.attr(new_empty_)(shape, nb::arg("dtype") = module_.attr(dtype));
}

}  // namespace fp4moe::python
