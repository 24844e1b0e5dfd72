// The driver's handles that a Device holds, for the files that implement it.
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

// Calls the driver in the device's context. Returns the code of the call that failed, if any.
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
