// What a Device holds of the driver's: for the files that implement it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/kernels/cuda/entry_points.hpp"

namespace fp4moe::kernels::cuda {

struct Device::State {
  std::shared_ptr<const EntryPoints> driver{};
  int handle = 0;
  Context context = nullptr;  // the primary one, retained
  std::vector<Module> modules{};
  std::map<std::string, Module, std::less<>> module_of{};  // of each kernel, by name

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();
};

// The device's context is this thread's as long as this lives. Frameworks have made it so before
// most calls: then nothing is pushed.
class Current {
 public:
  Current(const EntryPoints& driver, Context context) : driver_(driver) {
    Context now = nullptr;
    code_ = driver_.current_context(&now);
    if (code_ != code_success || now == context) return;
    code_ = driver_.push_context(context);
    is_pushed_ = code_ == code_success;
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    if (Context ours = nullptr; is_pushed_) driver_.pop_context(&ours);
  }
  Code code() const { return code_; }

 private:
  const EntryPoints& driver_;
  Code code_ = code_success;
  bool is_pushed_ = false;
};

// Calls the driver in the device's context; the code of whatever failed.
template <class Call>
Code in_context(const EntryPoints& driver, Context context, const Call& call) {
  const Current current(driver, context);
  return current.code() != code_success ? current.code() : call(driver);
}

// The same, with the failure in words.
template <class Call>
Result<Done> in_context(const EntryPoints& driver, Context context, std::string_view doing,
                        const Call& call) {
  const Code code = in_context(driver, context, call);
  if (code != code_success) return failure(driver, code, doing);
  return Done{};
}

}  // namespace fp4moe::kernels::cuda
