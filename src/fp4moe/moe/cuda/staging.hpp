// Uploads weights through two pinned buffers, alternating: one is filled while the other is copied.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/expert.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::moe::cuda {

class Staging {
 public:
  static Result<Staging> make(std::shared_ptr<const kernels::cuda::Device> device);
  Staging(Staging&& other) noexcept = default;
  Staging& operator=(Staging&& other) noexcept = delete;
  ~Staging();

  // Copies bytes, or rows without the gaps between them, to the device address `to`. The source may
  // change after the call; the copy is complete after finish().
  Result<Done> put(std::byte* to, std::span<const std::byte> from);
  Result<Done> put(std::byte* to, const checkpoint::RowsView& rows);
  Result<Done> finish();

  kernels::cuda::Stream stream() const { return buffers_[0].stream; }

 private:
  struct Buffer {
    kernels::cuda::Pinned memory{};
    kernels::cuda::Stream stream = nullptr;
  };
  Staging() = default;
  Result<Done> send(std::byte* to, std::size_t bytes);

  std::shared_ptr<const kernels::cuda::Device> device_{};
  std::array<Buffer, 2> buffers_{};
  std::size_t current_ = 0;
};

}  // namespace fp4moe::moe::cuda
