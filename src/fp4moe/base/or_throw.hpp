// For programs that use exceptions: the value of a result, or its error thrown. The library itself
// throws nothing.
//
//   runtime::MoeLayer layer = or_throw(runtime::MoeLayer::create(*checkpoint, 0));
//   or_throw(layer.load());
#pragma once
#include <stdexcept>
#include <utility>

#include "fp4moe/base/result.hpp"

namespace fp4moe {

// what() is the error's text: what, found, what to do.
class ErrorThrown : public std::runtime_error {
 public:
  explicit ErrorThrown(const Error& why) : std::runtime_error(text(why)), why_(why) {}
  const Error& why() const { return why_; }

 private:
  Error why_;
};

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw ErrorThrown(result.why());
  return *std::move(result);
}

}  // namespace fp4moe
