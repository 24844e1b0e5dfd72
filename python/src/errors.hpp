// An Error of the library becomes an exception of fp4moe.errors, parts and all.
#pragma once
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "bindings.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::python {

// With the GIL held.
[[noreturn]] void raise(const Error& why);
// TypeError: "tokens: expected a 2-D array, found list".
[[noreturn]] void raise_type(std::string_view what, std::string_view expected, nb::handle found);

template <class T>
T value_or_raise(Result<T>&& result) {
  if (!result) raise(result.why());
  return *std::move(result);
}
inline void done_or_raise(const Result<Done>& result) {
  if (!result) raise(result.why());
}

// The library's work without the GIL, whose exceptions (memory, the standard library) are errors.
template <class Work>
auto without_gil(const Work& work) -> decltype(work()) {
  const nb::gil_scoped_release released;
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
  } catch (const std::length_error&) {  // more than a container can ever hold
    return error(ErrorCode::exhausted, "memory.exhausted", "out of memory");
  } catch (const std::exception& thrown) {
    return error(ErrorCode::failed, "internal", thrown.what());
  }
}

}  // namespace fp4moe::python
