// Where CUDA kernels run: on a GPU, or on the emulator of tests/cuda/emulator, ten thousand times slower.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace fp4moe {

#ifdef FP4MOE_EMULATED_DEVICE
inline constexpr bool kIsEmulated = true;
#else
inline constexpr bool kIsEmulated = false;
#endif

// The first two on the emulator, all on a GPU.
template <class T>
std::vector<T> some(std::vector<T> all) {
  if (kIsEmulated) all.resize(std::min<std::size_t>(all.size(), 2));
  return all;
}

}  // namespace fp4moe
