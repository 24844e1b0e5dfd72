// torch's tensors as memory, and new ones, with as few calls of Python as can be: those take longer
// than everything else a call does before its kernel.
#pragma once
#include <cstdint>
#include <optional>

#include <nanobind/ndarray.h>

#include "bindings.hpp"

namespace fp4moe::python {

// For how long the memory is needed. For a call: until the tensor gets other memory.
enum class Hold : std::uint8_t { for_a_call, for_long };

class Torch {
 public:
  // Null until someone else has imported torch.
  static const Torch* imported();

  bool is_tensor(nb::handle object) const;
  bool records_gradients() const;
  bool wants_gradient(nb::handle tensor) const;

  struct Memory {
    nb::dlpack::dltensor view{};  // its shape and strides belong to the tensor or to `held`
    nb::object held{};            // none: the tensor itself is enough
  };
  // Errors: rows.memory (not dense, not numbers, without memory).
  Memory memory(nb::handle tensor, const char* what, Hold hold) const;

  // A new tensor of the same type and shape, on the same device.
  nb::object empty_like(nb::handle tensor) const;
  // "int32", "float32"
  nb::object empty(nb::handle like, const nb::tuple& shape, const char* dtype) const;

 private:
  struct Exchange;
  explicit Torch(nb::handle module);
  static const Exchange* exchange_of(nb::handle type);

  nb::object module_, tensor_, to_dlpack_, is_grad_enabled_, empty_like_;
  nb::object requires_grad_, new_empty_;  // names
  const Exchange* exchange_ = nullptr;    // null: this torch has none, as 2.9
};

}  // namespace fp4moe::python
