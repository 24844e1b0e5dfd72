// Small kernels with which the driver's own work is tested.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda {

// to[i] = from[i] * factor + add, each element by one thread.
struct ScaleParams {
  const std::uint32_t* from;
  std::uint32_t* to;
  std::uint32_t count, factor, add;
};

// Each block adds 1 to the counter, waits for all the others, and keeps what it then reads: only
// blocks that are all there at once get past.
struct MeetParams {
  std::uint32_t* counter;
  std::uint32_t* seen;  // [blocks]
};

}  // namespace fp4moe::kernels::cuda
