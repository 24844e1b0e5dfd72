// A value, or why there is none. Functions that can fail return Result<T>; nothing throws.
#pragma once
#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fp4moe {

// The numbers are the exit codes of the command line and the status codes of the C API.
enum class ErrorCode : int {
  failed = 1,         // the work could not be done: input/output error, bug
  usage = 2,          // the request itself is wrong
  invalid_input = 3,  // a file or tensor breaks its format
  no_backend = 4,     // no backend supports the configuration
  mismatch = 5,       // verification or golden data disagree
  exhausted = 6,      // out of memory or disk
  unavailable = 7,    // this machine or build lacks what is needed
  interrupted = 130,
};

// A failure, in words a user can act on. `id` is stable ("safetensors.overlap"): tests and
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

  // Defined in result.cpp, as everything here that is not a line: each function that can fail has
  // some of it, and seven strings made and destroyed in place are most of such a function.
  Error();
  Error(ErrorCode code, std::string_view id, std::string_view message);
  Error(const Error& other);
  Error(Error&& other) noexcept;
  Error& operator=(const Error& other);
  Error& operator=(Error&& other) noexcept;
  ~Error();

  Error&& in(std::string_view file) &&;
  Error&& at(std::string_view name) &&;
  Error&& expects(std::string_view requirement, std::string_view fact) &&;
  Error&& try_this(std::string_view what) &&;
};

Error error(ErrorCode code, std::string_view id, std::string_view message);
Error invalid(std::string_view id, std::string_view message);
Error usage(std::string_view id, std::string_view message);

// One human-readable line: "safetensors.overlap: model.safetensors: tensor "a": ... ; expected ...,
// found ...".
std::string text(const Error& why);

// An Error from errno: full disks, quotas and memory become ErrorCode::exhausted, the rest failed.
Error system_error(std::string_view id, std::string_view action, int errno_value);

// An Error on the heap, or none: what a Result carries, in the size of a pointer.
class ErrorPointer {
 public:
  ErrorPointer() = default;
  explicit ErrorPointer(Error&& why);
  ErrorPointer(const ErrorPointer& other) : why_(other.why_ ? copy(*other.why_) : nullptr) {}
  ErrorPointer(ErrorPointer&& other) noexcept : why_(std::exchange(other.why_, nullptr)) {}
  ErrorPointer& operator=(ErrorPointer other) noexcept {
    std::swap(why_, other.why_);
    return *this;
  }
  ~ErrorPointer() {
    if (why_ != nullptr) destroy();
  }
  const Error& operator*() const { return *why_; }

 private:
  static Error* copy(const Error& why);
  void destroy() noexcept;

  Error* why_ = nullptr;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error why) : why_(std::move(why)) {}

  explicit operator bool() const { return value_.has_value(); }
  T& operator*() & {
    assert(*this);
    return *value_;
  }
  const T& operator*() const& {
    assert(*this);
    return *value_;
  }
  T&& operator*() && {
    assert(*this);
    return *std::move(value_);
  }
  T* operator->() { return &**this; }
  const T* operator->() const { return &**this; }
  const Error& why() const {
    assert(!*this);
    return *why_;
  }

 private:
  std::optional<T> value_{};
  ErrorPointer why_{};
};

// The value of a function that only does something.
struct Done {};

}  // namespace fp4moe
