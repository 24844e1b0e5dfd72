// Division by a number that is known sooner than what is divided.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90 {

class Divisor {
 public:
  Divisor() = default;
  __device__ explicit Divisor(std::uint32_t by) : by_(by), part_(0xFFFFFFFFu / by) {}
  __device__ std::uint32_t by() const { return by_; }
  __device__ std::uint32_t of(std::uint32_t number) const {
    const std::uint32_t made = __umulhi(number, part_);  // or one more
    return made + (number - made * by_ >= by_ ? 1 : 0);
  }

 private:
  std::uint32_t by_, part_;
};

}  // namespace fp4moe::kernels::cuda::sm90
