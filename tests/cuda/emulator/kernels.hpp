// Kernels on a CPU: their own sources, compiled with builtins.hpp. What a device would compute comes
// out, up to the order in which tensor cores add.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/emulator/block.hpp"
#include "cuda/fake_driver.hpp"

namespace fp4moe::emulator {

// How the following launches run.
struct Options {
  Copies copies = Copies::lazy;
  std::uint64_t seed = 1;
  // Gets what kernels do wrong; null: that ends the test program.
  std::vector<std::string>* found = nullptr;
};
Options& options();

// What FakeDriver::run wants. What a launch may not do ends the test program: a race in shared memory, a
// deadlock, a write beyond its shared memory, a kernel that is not here.
void run(const kernels::cuda::FakeLaunch& launch, const void* params);

// A kernel of the family that is compiled in, and its dynamic shared memory in this thread of the system.
struct KernelRow {
  std::string_view name;
  void (*call)(const void* params);
  void* (*memory)();
};
// The names without their prefix.
std::string_view prefix();
std::span<const KernelRow> kernels();

inline constexpr std::size_t kSharedBytes = 227 * 1024;

template <auto kernel>
struct Call;
template <class Params, void (*kernel)(Params)>
struct Call<kernel> {
  static void call(const void* params) { kernel(*static_cast<const Params*>(params)); }
};

}  // namespace fp4moe::emulator
