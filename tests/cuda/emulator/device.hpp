// A device whose kernels run on the CPU.
#pragma once
#include <memory>
#include <string>

#include "cuda/emulator/kernels.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::emulator {

// The family that is compiled in.
#ifdef FP4MOE_EMULATED_SM80
inline constexpr kernels::cuda::Family kFamily = kernels::cuda::Family::sm80;
#else
inline constexpr kernels::cuda::Family kFamily = kernels::cuda::Family::sm90;
#endif

// Its driver. A test may change it, and opens a device then.
kernels::cuda::FakeDriver& driver();
// An RTX 4090, or a small H200: blocks that wait for each other are threads here.
void reset_driver();
Result<std::shared_ptr<const kernels::cuda::Device>> open_device();
// The kernels launched since the last call.
std::string launched();

}  // namespace fp4moe::emulator
