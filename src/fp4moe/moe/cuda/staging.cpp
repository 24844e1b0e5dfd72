#include "fp4moe/moe/cuda/staging.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fp4moe::moe::cuda {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;

}  // namespace

Result<Staging> Staging::make(std::shared_ptr<const kernels::cuda::Device> device) {
  Staging result;
  result.device_ = std::move(device);
  for (Buffer& buffer : result.buffers_) {
    Result<kernels::cuda::Pinned> memory = result.device_->pin(kBufferBytes);
    if (!memory) return memory.why();
    buffer.memory = std::move(*memory);
    const Result<kernels::cuda::Stream> stream = result.device_->make_stream();
    if (!stream) return stream.why();
    buffer.stream = *stream;
  }
  return result;
}

Staging::~Staging() {
  if (!device_) return;  // moved from
  for (Buffer& buffer : buffers_) {
    if (buffer.stream == nullptr) continue;
    // Memory that is still being copied must not be freed. finish() reports errors.
    static_cast<void>(device_->wait(buffer.stream));
    device_->drop_stream(buffer.stream);
  }
}

// Sends the current buffer; the other one is free when this returns.
Result<Done> Staging::send(std::byte* to, std::size_t bytes) {
  const Buffer& buffer = buffers_[current_];
  const auto sent = device_->upload(to, {buffer.memory.data(), bytes}, buffer.stream);
  if (!sent) return sent.why();
  current_ = 1 - current_;
  return device_->wait(buffers_[current_].stream);
}

Result<Done> Staging::put(std::byte* to, std::span<const std::byte> from) {
  while (!from.empty()) {
    const std::size_t bytes = std::min(from.size(), kBufferBytes);
    std::memcpy(buffers_[current_].memory.data(), from.data(), bytes);
    if (const auto sent = send(to, bytes); !sent) return sent.why();
    from = from.subspan(bytes);
    to += bytes;
  }
  return Done{};
}

Result<Done> Staging::put(std::byte* to, const checkpoint::RowsView& rows) {
  if (rows.is_dense()) return put(to, std::span(rows.data, rows.rows * rows.row_bytes));
  if (rows.row_bytes > kBufferBytes) {
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      if (const auto sent = put(to + row * rows.row_bytes, rows.row(row)); !sent) return sent.why();
    return Done{};
  }
  const std::uint64_t at_once = kBufferBytes / std::max<std::uint64_t>(1, rows.row_bytes);
  for (std::uint64_t first = 0; first < rows.rows; first += at_once) {
    const std::uint64_t count = std::min(at_once, rows.rows - first);
    std::byte* next = buffers_[current_].memory.data();
    for (std::uint64_t row = first; row < first + count; ++row, next += rows.row_bytes)
      std::memcpy(next, rows.row(row).data(), rows.row_bytes);
    if (const auto sent = send(to + first * rows.row_bytes, count * rows.row_bytes); !sent)
      return sent.why();
  }
  return Done{};
}

Result<Done> Staging::finish() {
  for (const Buffer& buffer : buffers_)
    if (const auto done = device_->wait(buffer.stream); !done) return done.why();
  return Done{};
}

}  // namespace fp4moe::moe::cuda
