// Streams, events and graphs of a device that end with their owner.
#pragma once
#include <memory>
#include <utility>

#include "fp4moe/base/result.hpp"
#include "fp4moe/kernels/cuda/driver.hpp"

namespace fp4moe::moe::cuda {

// `drop` gives the handle back to its device.
template <void (kernels::cuda::Device::*drop)(void*) const>
class Handle {
 public:
  Handle() = default;
  Handle(std::shared_ptr<const kernels::cuda::Device> device, void* handle)
      : device_(std::move(device)), handle_(handle) {}
  Handle(Handle&& other) noexcept
      : device_(std::move(other.device_)), handle_(std::exchange(other.handle_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Handle() {
    if (device_ && handle_ != nullptr) ((*device_).*drop)(handle_);
  }
  void* get() const { return handle_; }

 private:
  std::shared_ptr<const kernels::cuda::Device> device_{};
  void* handle_ = nullptr;
};

using OwnStream = Handle<&kernels::cuda::Device::drop_stream>;
using OwnEvent = Handle<&kernels::cuda::Device::drop_event>;
using OwnGraph = Handle<&kernels::cuda::Device::drop_graph>;

inline Result<OwnStream> own_stream(const std::shared_ptr<const kernels::cuda::Device>& device) {
  const Result<kernels::cuda::Stream> result = device->make_stream();
  if (!result) return result.why();
  return OwnStream(device, *result);
}
inline Result<OwnEvent> own_event(const std::shared_ptr<const kernels::cuda::Device>& device) {
  const Result<void*> result = device->make_event();
  if (!result) return result.why();
  return OwnEvent(device, *result);
}

}  // namespace fp4moe::moe::cuda
