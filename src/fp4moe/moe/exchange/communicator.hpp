// Ranks that take the same steps together: each sends bytes to the others and waits for theirs.
//
//   all_gather   every rank gets every rank's bytes, in rank order
//   all_to_all   every rank gets the bytes meant for it, in rank order
//
// No rank waits for ever. A step ends with an error on every rank when one of them leaves, reports
// an error of its own (abort), takes another step or other sizes than the rest, or does nothing
// until the deadline; from then on every step fails at once with the same error. Nothing is summed
// here: see sums.hpp.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/tensor/buffer.hpp"

namespace fp4moe::moe::exchange {

struct CommunicatorOptions {
  std::chrono::milliseconds deadline{30'000};  // of a step in which nothing moves
};

// The messages that a rank sends and receives in one step. The memory is kept between steps and grows. While
// bytes are under way it belongs to the communicator: after a failed step a parcel may be empty.
struct Parcel {
  std::string_view step{};  // a literal; ranks that take different steps are told so
  tensor::Buffer send{};
  std::vector<std::uint64_t> send_bytes{};  // for each rank in turn; all_gather: the same for all
  tensor::Buffer receive{};
  std::vector<std::uint64_t> receive_bytes{};  // from each rank in turn

  std::span<const std::byte> received() const;
  std::span<const std::byte> received_from(std::uint64_t rank) const;
};

// At least `bytes` of memory; what it held before is lost when it grows.
Result<Done> reserve(tensor::Buffer& buffer, std::uint64_t bytes);

// Bytes that this rank sent to others and got from them.
struct Traffic {
  std::uint64_t steps = 0;
  std::uint64_t sent = 0, received = 0;  // bytes
};

class Communicator {
 public:
  Communicator(std::uint64_t rank, std::uint64_t size) : rank_(rank), size_(size) {}
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual std::string_view name() const = 0;  // "solo", "threads", "mpi"
  std::uint64_t rank() const { return rank_; }
  std::uint64_t size() const { return size_; }
  const Traffic& traffic() const { return traffic_; }

  // Errors: comm.sizes (a rank sends other sizes than the receiver expects), comm.order (ranks take
  // different steps), comm.left, comm.aborted, comm.deadline, those of the kind.
  Result<Done> all_gather(Parcel& parcel);  // send_bytes: this rank's, alone
  Result<Done> all_to_all(Parcel& parcel);
  Result<Done> barrier();

  // Fails on all ranks with comm.disagree unless all of them say the same. Parts between "; " are
  // compared one by one: the error names the first that differs, and two ranks.
  Result<Done> agree(std::string_view description);

  // Gives up: whatever the others wait for ends with comm.aborted and these words.
  void abort(const Error& why);

 protected:
  struct Step {
    Parcel& parcel;
    bool to_all = false;
    std::span<const std::byte> outgoing(std::uint64_t rank) const;
    std::span<std::byte> incoming(std::uint64_t rank) const;
  };
  // Brings the bytes over; sizes and memory are in order, the part for this rank is copied already.
  virtual Result<Done> carry(const Step& step) = 0;
  virtual void tell_others(const Error& why) = 0;

 private:
  Result<Done> take(Parcel& parcel, bool to_all);

  std::uint64_t rank_ = 0, size_ = 1;
  Traffic traffic_{};
  std::optional<Error> broken_{};
};

// A group of one.
std::unique_ptr<Communicator> make_solo();

// The same number of values from every rank, in rank order.
template <class T>
requires std::is_trivially_copyable_v<T> Result<std::vector<T>> all_gather_values(
    Communicator& ranks, std::string_view step, std::span<const T> mine) {
  Parcel parcel{.step = step, .send_bytes = {mine.size_bytes()}};
  parcel.receive_bytes.assign(ranks.size(), mine.size_bytes());
  if (const auto done = reserve(parcel.send, mine.size_bytes()); !done) return done.why();
  if (!mine.empty()) std::memcpy(parcel.send.data(), mine.data(), mine.size_bytes());
  if (const auto done = ranks.all_gather(parcel); !done) return done.why();
  std::vector<T> all(mine.size() * ranks.size());
  if (!all.empty()) std::memcpy(all.data(), parcel.receive.data(), all.size() * sizeof(T));
  return all;
}

// The errors of groups, in the same words for all kinds.
Error not_the_same_step(std::uint64_t rank, std::string_view mine, std::string_view theirs);
Error not_the_same_size(std::uint64_t rank, std::string_view step, std::uint64_t expected,
                        std::uint64_t sent);
Error rank_left(std::uint64_t rank, std::string_view step);
Error rank_aborted(std::uint64_t rank, ErrorCode code, std::string_view words);
Error past_deadline(std::span<const std::uint64_t> ranks, std::string_view step,
                    std::chrono::milliseconds deadline);

}  // namespace fp4moe::moe::exchange
