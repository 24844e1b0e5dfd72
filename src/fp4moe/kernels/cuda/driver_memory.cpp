// Memory of the device and pinned memory of the host.
#include <array>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"
#include "fp4moe/kernels/cuda/device_state.hpp"

namespace fp4moe::kernels::cuda {
namespace {

std::string_view described(MemoryType type) {
  switch (type) {
    case MemoryType::host:
      return "pinned memory of the host";
    case MemoryType::device:
      return "memory of another device";
    case MemoryType::unknown:
      break;
  }
  return "memory of the host that the driver does not know";
}

}  // namespace

Memory::Memory(Memory&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  Memory taken(std::move(other));  // and frees what this held
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  const Device::State& state = *device_->state_;
  in_context(*state.driver, state.context,
             [this](const EntryPoints& calls) { return calls.free(data_); });
}

Pinned::Pinned(Pinned&& other) noexcept
    : device_(std::move(other.device_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Pinned& Pinned::operator=(Pinned&& other) noexcept {
  Pinned taken(std::move(other));  // and frees what this held
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

Pinned::~Pinned() {
  if (data_ == nullptr) return;
  const Device::State& state = *device_->state_;
  in_context(*state.driver, state.context,
             [this](const EntryPoints& calls) { return calls.free_host(data_); });
}

Result<Memory> Device::allocate(std::size_t bytes) const {
  Memory memory;
  if (bytes == 0) return memory;
  Address address = nullptr;
  const auto done =
      in_context(*state_->driver, state_->context,
                 fmt::format("allocate {} on the device", human_bytes(bytes)),
                 [&](const EntryPoints& calls) { return calls.allocate(&address, bytes); });
  if (!done) {
    Error why = done.why();
    if (why.code != ErrorCode::exhausted) return why;
    const auto left = free_bytes();
    return std::move(why)
        .expects(fmt::format("{} bytes free on device {}", bytes, facts_.ordinal),
                 left ? fmt::format("{} of {}", *left, facts_.memory_bytes) : "an unknown number")
        .try_this("free memory of the device, or split the model over more of them");
  }
  memory.device_ = shared_from_this();
  memory.data_ = address;
  memory.size_ = bytes;
  return memory;
}

Result<Pinned> Device::pin(std::size_t bytes) const {
  Pinned pinned;
  if (bytes == 0) return pinned;
  void* address = nullptr;
  const auto done = in_context(*state_->driver, state_->context,
                               fmt::format("pin {} of the host", human_bytes(bytes)),
                               [&](const EntryPoints& calls) {
                                 return calls.allocate_host(&address, bytes, kPinnedPortable);
                               });
  if (!done) {
    Error why = done.why();
    if (why.code != ErrorCode::exhausted) return why;
    return std::move(why)
        .expects(fmt::format("{} bytes of the host that can be pinned", bytes), "fewer")
        .try_this("free memory of the host, or raise its limit of locked memory (ulimit -l)");
  }
  pinned.device_ = shared_from_this();
  pinned.data_ = static_cast<std::byte*>(address);
  pinned.size_ = bytes;
  return pinned;
}

Result<std::uint64_t> Device::free_bytes() const {
  std::size_t left = 0, total = 0;
  const auto done =
      in_context(*state_->driver, state_->context, "ask how much memory is free",
                 [&](const EntryPoints& calls) { return calls.memory_info(&left, &total); });
  if (!done) return done.why();
  return std::uint64_t{left};
}

Result<Done> Device::check_pointer(const void* at, const char* what) const {
  const auto refused = [&](std::string_view found) {
    return usage("cuda.pointer", fmt::format("the device cannot read {}", what))
        .expects(fmt::format("memory of device {}, managed or pinned", facts_.ordinal), found);
  };
  if (at == nullptr) return refused("null");
  auto type = MemoryType::unknown;
  unsigned is_managed = 0;
  int ordinal = -1;
  constexpr std::array kAsked{PointerAttribute::memory_type, PointerAttribute::is_managed,
                              PointerAttribute::device_ordinal};
  std::array<void*, kAsked.size()> values{&type, &is_managed, &ordinal};
  const EntryPoints& driver = *state_->driver;
  const Code code = in_context(driver, state_->context, [&](const EntryPoints& calls) {
    return calls.pointer_attributes(kAsked.size(), kAsked.data(), values.data(), at);
  });
  if (code != code_success) return failure(driver, code, fmt::format("look at {}", what));
  const bool is_readable = is_managed != 0 || type == MemoryType::host ||
                           (type == MemoryType::device && ordinal == facts_.ordinal);
  if (!is_readable) return refused(described(type));
  return Done{};
}

}  // namespace fp4moe::kernels::cuda
