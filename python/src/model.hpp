// A checkpoint or converted folder, opened. Layers keep what they read of it.
#pragma once
#include <memory>

#include "bindings.hpp"
#include "fp4moe/base/json.hpp"
#include "fp4moe/runtime/run.hpp"

namespace fp4moe::python {

// Arrays that a model reads, which belong to others.
class Sources {
 public:
  virtual ~Sources() = default;
  // Those whose names begin so, with the GIL held. Errors: tensors.resized.
  virtual void check(std::string_view prefix) const = 0;
};

struct Model {
  std::shared_ptr<const runtime::Model> open{};
  std::shared_ptr<const Sources> sources{};  // null: files
};

// JSON as Python's own dictionaries, lists and numbers.
nb::object to_python(const Json& json);
// A str, bytes or os.PathLike as a path. Errors: TypeError.
std::string path_of(nb::handle path);
Model open_model(nb::handle path);

}  // namespace fp4moe::python
