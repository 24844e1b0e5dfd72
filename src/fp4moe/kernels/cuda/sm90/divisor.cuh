// Division by a number that is known before the dividends: a multiplication and a correction.
#pragma once
#include <cstdint>

namespace fp4moe::kernels::cuda::sm90 {

class Divisor {
 public:
  Divisor() = default;
  __device__ explicit Divisor(std::uint32_t by) : by_(by), part_(0xFFFFFFFFu / by) {}
  __device__ std::uint32_t by() const { return by_; }
  __device__ std::uint32_t of(std::uint32_t number) const {
    const std::uint32_t result = __umulhi(number, part_);  // the quotient, or one less
    return result + (number - result * by_ >= by_ ? 1 : 0);
  }

 private:
  std::uint32_t by_, part_;
};

}  // namespace fp4moe::kernels::cuda::sm90
