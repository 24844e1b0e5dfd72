#include "fp4moe/moe/exchange/communicator.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/checked.hpp"
#include "fp4moe/base/text.hpp"

namespace fp4moe::moe::exchange {
namespace {

constexpr std::size_t kLongestDescription = 64u << 10;

std::uint64_t begin_of(std::span<const std::uint64_t> bytes, std::uint64_t rank) {
  std::uint64_t begin = 0;
  for (std::uint64_t r = 0; r < rank; ++r) begin += bytes[r];
  return begin;
}

std::optional<std::uint64_t> total(std::span<const std::uint64_t> bytes) {
  std::optional<std::uint64_t> sum = 0;
  for (const std::uint64_t part : bytes)
    if (sum) sum = checked_add(*sum, part);
  return sum;
}

// The first of the parts between "; " in which two descriptions differ.
std::pair<std::string_view, std::string_view> difference(std::string_view a, std::string_view b) {
  constexpr std::string_view kBetween = "; ";
  while (true) {
    const std::size_t a_end = a.find(kBetween), b_end = b.find(kBetween);
    const std::string_view a_part = a.substr(0, a_end), b_part = b.substr(0, b_end);
    const bool last = a_end == std::string_view::npos || b_end == std::string_view::npos;
    if (a_part != b_part || last)
      return a_part != b_part ? std::pair(a_part, b_part) : std::pair(a, b);
    a.remove_prefix(a_end + kBetween.size());
    b.remove_prefix(b_end + kBetween.size());
  }
}

class Solo final : public Communicator {
 public:
  Solo() : Communicator(0, 1) {}
  std::string_view name() const override { return "solo"; }

 protected:
  Result<Done> carry(const Step&) override { return Done{}; }
  void tell_others(const Error&) override {}
};

}  // namespace

std::span<const std::byte> Parcel::received() const {
  return receive.bytes().first(total(receive_bytes).value_or(0));
}

std::span<const std::byte> Parcel::received_from(std::uint64_t rank) const {
  return receive.bytes().subspan(begin_of(receive_bytes, rank), receive_bytes[rank]);
}

Result<Done> reserve(tensor::Buffer& buffer, std::uint64_t bytes) {
  if (buffer.size() >= bytes) return Done{};
  buffer = tensor::Buffer{};  // first: the old one is freed before the new one is allocated
  auto grown = tensor::Buffer::allocate(bytes);
  if (!grown) return grown.why();
  buffer = *std::move(grown);
  return Done{};
}

std::span<const std::byte> Communicator::Step::outgoing(std::uint64_t rank) const {
  const auto& bytes = parcel.send_bytes;
  const std::span<const std::byte> all = std::as_const(parcel.send).bytes();
  return to_all ? all.first(bytes[0]) : all.subspan(begin_of(bytes, rank), bytes[rank]);
}

std::span<std::byte> Communicator::Step::incoming(std::uint64_t rank) const {
  return parcel.receive.bytes().subspan(begin_of(parcel.receive_bytes, rank),
                                        parcel.receive_bytes[rank]);
}

Result<Done> Communicator::all_gather(Parcel& parcel) { return take(parcel, true); }
Result<Done> Communicator::all_to_all(Parcel& parcel) { return take(parcel, false); }

Result<Done> Communicator::take(Parcel& parcel, bool to_all) {
  if (broken_) return *broken_;
  const auto sent = total(parcel.send_bytes), received = total(parcel.receive_bytes);
  const std::uint64_t sends = to_all ? 1 : size_;
  if (parcel.send_bytes.size() != sends || parcel.receive_bytes.size() != size_ || !sent ||
      !received || *sent > parcel.send.size())
    return usage("comm.parcel", "a parcel's sizes do not fit the group")
        .at(parcel.step)
        .expects(fmt::format("{} sizes to send and {} to receive, within the memory", sends, size_),
                 fmt::format("{} and {} sizes, {} of {} bytes", parcel.send_bytes.size(),
                             parcel.receive_bytes.size(), sent.value_or(0), parcel.send.size()));
  if (const auto done = reserve(parcel.receive, *received); !done) return done.why();
  const Step step{parcel, to_all};
  const auto own = step.outgoing(rank_);
  const auto back = step.incoming(rank_);
  if (own.size() != back.size())
    return usage("comm.parcel", "a rank expects other bytes from itself than it sends")
        .at(parcel.step)
        .expects(fmt::format("{} bytes", own.size()), fmt::format("{}", back.size()));
  if (!own.empty()) std::memcpy(back.data(), own.data(), own.size());
  const std::uint64_t to_others = to_all ? own.size() * (size_ - 1) : *sent - own.size();
  const std::uint64_t from_others = *received - back.size();

  if (auto done = carry(step); !done) {
    broken_ = done.why();
    return done;
  }
  ++traffic_.steps;
  traffic_.sent += to_others;
  traffic_.received += from_others;
  return Done{};
}

Result<Done> Communicator::barrier() {
  Parcel nothing{.step = "barrier", .send_bytes = {0}};
  nothing.receive_bytes.assign(size_, 0);
  return all_gather(nothing);
}

Result<Done> Communicator::agree(std::string_view description) {
  const std::uint64_t length = std::min(description.size(), kLongestDescription);
  auto lengths = all_gather_values<std::uint64_t>(*this, "agree on a length", {&length, 1});
  if (!lengths) return lengths.why();
  for (const std::uint64_t theirs : *lengths)
    if (theirs > kLongestDescription)
      return invalid("comm.text", "a rank's description is too long")
          .expects(fmt::format("at most {} bytes", kLongestDescription), fmt::format("{}", theirs));
  Parcel parcel{.step = "agree", .send_bytes = {length}, .receive_bytes = *std::move(lengths)};
  if (const auto done = reserve(parcel.send, length); !done) return done.why();
  if (length > 0) std::memcpy(parcel.send.data(), description.data(), length);
  if (const auto done = all_gather(parcel); !done) return done.why();

  const auto said_by = [&parcel](std::uint64_t rank) {
    const auto bytes = parcel.received_from(rank);
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (std::uint64_t rank = 1; rank < size_; ++rank) {
    if (said_by(rank) == said_by(0)) continue;
    const auto [first, other] = difference(said_by(0), said_by(rank));
    // All ranks have seen it: none needs a message.
    broken_ =
        error(ErrorCode::mismatch, "comm.disagree", "the ranks do not agree")
            .expects(fmt::format("{} (rank 0)", first), fmt::format("{} (rank {})", other, rank))
            .try_this("Start all ranks with the same model and the same options");
    return *broken_;
  }
  return Done{};
}

void Communicator::abort(const Error& why) {
  if (broken_) return;  // the others know already
  broken_ = rank_aborted(rank_, why.code, text(why));
  tell_others(why);
}

std::unique_ptr<Communicator> make_solo() { return std::make_unique<Solo>(); }

Error not_the_same_step(std::uint64_t rank, std::string_view mine, std::string_view theirs) {
  return error(ErrorCode::mismatch, "comm.order", "the ranks do not take the same step")
      .expects(fmt::format("'{}'", mine), fmt::format("'{}' on rank {}", theirs, rank))
      .try_this("Start all ranks with the same options");
}

Error not_the_same_size(std::uint64_t rank, std::string_view step, std::uint64_t expected,
                        std::uint64_t sent) {
  return error(ErrorCode::mismatch, "comm.sizes",
               fmt::format("rank {} sends other sizes in '{}' than are expected", rank, step))
      .expects(fmt::format("{} bytes", expected), fmt::format("{}", sent))
      .try_this("Start all ranks with the same model and the same options");
}

Error rank_left(std::uint64_t rank, std::string_view step) {
  return error(ErrorCode::failed, "comm.left",
               fmt::format("rank {} left while others wait for it in '{}'", rank, step))
      .try_this("Its own output says why");
}

Error rank_aborted(std::uint64_t rank, ErrorCode code, std::string_view words) {
  return error(code, "comm.aborted", fmt::format("rank {} gave up: {}", rank, words));
}

Error past_deadline(std::span<const std::uint64_t> ranks, std::string_view step,
                    std::chrono::milliseconds deadline) {
  return error(ErrorCode::failed, "comm.deadline",
               fmt::format("waiting in '{}' is over: {} {} did not answer", step,
                           ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", ")))
      .expects(
          fmt::format("an answer within {:.3g} s", static_cast<double>(deadline.count()) / 1000.0),
          "none")
      .try_this("If the ranks are alive but slow, raise the deadline (--deadline)");
}

}  // namespace fp4moe::moe::exchange
