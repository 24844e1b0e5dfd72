// Kernels of the family sm80 on a CPU: their own sources, compiled with builtins.hpp. What a device
// would compute comes out, up to the order in which tensor cores add.
#pragma once
#include <cstdint>

#include "cuda/emulator/block.hpp"
#include "cuda/fake_driver.hpp"

namespace fp4moe::emulator {

// How the following launches run.
struct Options {
  Copies copies = Copies::lazy;
  std::uint64_t seed = 1;
};
Options& options();

// What FakeDriver::run wants. Ends the test program where a launch writes beyond its shared memory, or
// is of a kernel that is not here.
void run(const kernels::cuda::FakeLaunch& launch, const void* params);

}  // namespace fp4moe::emulator
