// A value, or why there is none. Functions that can fail return Result<T>; nothing throws.
#pragma once
#include <cassert>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace fp4moe {

// The numbers are the exit codes of the command line and the status codes of the C API.
enum class ErrorCode : int {
  failed = 1,         // the work could not be done: input/output error, bug
  usage = 2,          // the request itself is wrong
  invalid_input = 3,  // a file or tensor breaks its format
  no_backend = 4,     // no backend supports the configuration
  mismatch = 5,       // verification or golden data disagree
  exhausted = 6,      // out of memory or disk
  lacking = 7,        // this machine or build lacks what is needed
  interrupted = 130,
};

// What went wrong, in words a user can act on. `id` is stable ("safetensors.overlap"): tests and
// tools match on it. The other parts are empty when they do not apply.
struct Error {
  ErrorCode code = ErrorCode::failed;
  std::string id{};
  std::string message{};   // one sentence without a full stop
  std::string path{};      // the file
  std::string tensor{};    // the tensor or key inside it
  std::string expected{};  // the requirement
  std::string found{};     // the fact
  std::string remedy{};    // what to do next

  Error&& in(std::string_view file) && {
    path = file;
    return std::move(*this);
  }
  Error&& at(std::string_view name) && {
    tensor = name;
    return std::move(*this);
  }
  Error&& expects(std::string_view requirement, std::string_view fact) && {
    expected = requirement;
    found = fact;
    return std::move(*this);
  }
  Error&& try_this(std::string_view what) && {
    remedy = what;
    return std::move(*this);
  }
};

inline Error error(ErrorCode code, std::string_view id, std::string_view message) {
  return {.code = code, .id = std::string(id), .message = std::string(message)};
}
inline Error invalid(std::string_view id, std::string_view message) {
  return error(ErrorCode::invalid_input, id, message);
}
inline Error usage(std::string_view id, std::string_view message) {
  return error(ErrorCode::usage, id, message);
}

// One line for people: "safetensors.overlap: model.safetensors: tensor "a": ... ; expected ...,
// found ...".
std::string text(const Error& why);

// An Error from errno: full disks, quotas and memory become ErrorCode::exhausted, the rest failed.
Error system_error(std::string_view id, std::string_view action, int errno_value);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error why) : state_(std::in_place_index<1>, std::move(why)) {}

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() & {
    assert(*this);
    return *std::get_if<0>(&state_);
  }
  const T& operator*() const& {
    assert(*this);
    return *std::get_if<0>(&state_);
  }
  T&& operator*() && {
    assert(*this);
    return std::move(*std::get_if<0>(&state_));
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }
  const Error& why() const {
    assert(!*this);
    return *std::get_if<1>(&state_);
  }

 private:
  std::variant<T, Error> state_;
};

// The value of a function that only does something.
struct Done {};

}  // namespace fp4moe
