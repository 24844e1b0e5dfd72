// The way of weights onto a device: through two pieces of pinned memory by turns, so that one is
// filled while the other travels.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"
#include "fp4moe/weights/expert.hpp"

namespace fp4moe::moe::cuda {

class Staging {
 public:
  static Result<Staging> make(std::shared_ptr<const kernels::cuda::Device> device);
  Staging(Staging&& other) noexcept = default;
  Staging& operator=(Staging&& other) noexcept = delete;
  ~Staging();

  // Bytes to the device's address `to`; rows one behind the other, without their gaps. What is
  // read may change after the call; what is written is there after finish().
  Result<Done> put(std::byte* to, std::span<const std::byte> from);
  Result<Done> put(std::byte* to, const weights::RowsView& rows);
  Result<Done> finish();

  kernels::cuda::Stream stream() const { return lanes_[0].stream; }

 private:
  struct Lane {
    kernels::cuda::Pinned memory{};
    kernels::cuda::Stream stream = nullptr;
  };
  Staging() = default;
  Result<Done> send(std::byte* to, std::size_t bytes);

  std::shared_ptr<const kernels::cuda::Device> device_{};
  std::array<Lane, 2> lanes_{};
  std::size_t current_ = 0;
};

}  // namespace fp4moe::moe::cuda
