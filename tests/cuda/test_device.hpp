// The first device, with the kernels that only tests launch.
#pragma once
#include <memory>

#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::kernels::cuda {

std::span<const Cubin> test_cubins();

inline Result<std::shared_ptr<const Device>> test_device() {
  return Device::open(0, {.kernels = test_cubins(), .family = Family::sm90});
}

}  // namespace fp4moe::kernels::cuda
