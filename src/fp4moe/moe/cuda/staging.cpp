#include "fp4moe/moe/cuda/staging.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fp4moe::moe::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

}  // namespace

Result<Staging> Staging::make(std::shared_ptr<const kernels::cuda::Device> device) {
  Staging made;
  made.device_ = std::move(device);
  for (Lane& lane : made.lanes_) {
    Result<kernels::cuda::Pinned> memory = made.device_->pin(kPieceBytes);
    if (!memory) return memory.why();
    lane.memory = std::move(*memory);
    const Result<kernels::cuda::Stream> stream = made.device_->make_stream();
    if (!stream) return stream.why();
    lane.stream = *stream;
  }
  return made;
}

Staging::~Staging() {
  if (!device_) return;  // moved from
  for (Lane& lane : lanes_) {
    if (lane.stream == nullptr) continue;
    // Memory that still travels must not be freed. Whoever cares for errors has called finish().
    static_cast<void>(device_->wait(lane.stream));
    device_->drop_stream(lane.stream);
  }
}

// The current piece goes on its way; the other one is free when this returns.
Result<Done> Staging::send(std::byte* to, std::size_t bytes) {
  const Lane& lane = lanes_[current_];
  const auto sent = device_->upload(to, {lane.memory.data(), bytes}, lane.stream);
  if (!sent) return sent.why();
  current_ = 1 - current_;
  return device_->wait(lanes_[current_].stream);
}

Result<Done> Staging::put(std::byte* to, std::span<const std::byte> from) {
  while (!from.empty()) {
    const std::size_t bytes = std::min(from.size(), kPieceBytes);
    std::memcpy(lanes_[current_].memory.data(), from.data(), bytes);
    if (const auto sent = send(to, bytes); !sent) return sent.why();
    from = from.subspan(bytes);
    to += bytes;
  }
  return Done{};
}

Result<Done> Staging::put(std::byte* to, const weights::RowsView& rows) {
  if (rows.is_dense()) return put(to, std::span(rows.data, rows.rows * rows.row_bytes));
  if (rows.row_bytes > kPieceBytes) {
    for (std::uint64_t row = 0; row < rows.rows; ++row)
      if (const auto sent = put(to + row * rows.row_bytes, rows.row(row)); !sent) return sent.why();
    return Done{};
  }
  const std::uint64_t at_once = kPieceBytes / std::max<std::uint64_t>(1, rows.row_bytes);
  for (std::uint64_t first = 0; first < rows.rows; first += at_once) {
    const std::uint64_t count = std::min(at_once, rows.rows - first);
    std::byte* next = lanes_[current_].memory.data();
    for (std::uint64_t row = first; row < first + count; ++row, next += rows.row_bytes)
      std::memcpy(next, rows.row(row).data(), rows.row_bytes);
    if (const auto sent = send(to + first * rows.row_bytes, count * rows.row_bytes); !sent)
      return sent.why();
  }
  return Done{};
}

Result<Done> Staging::finish() {
  for (const Lane& lane : lanes_)
    if (const auto done = device_->wait(lane.stream); !done) return done.why();
  return Done{};
}

}  // namespace fp4moe::moe::cuda
