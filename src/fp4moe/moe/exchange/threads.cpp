// A step has two parts. First all ranks arrive with a parcel; as long as one is missing, none
// touches another's memory, and waiting can end with an error. Once all are there, each copies from
// the others and none leaves before the last one has copied: that part cannot fail and takes no
// longer than the copying.
#include "fp4moe/moe/exchange/threads.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"

namespace fp4moe::moe::exchange {
namespace {

using Clock = std::chrono::steady_clock;

struct Group {
  struct Seat {
    std::uint64_t steps = 0;  // begun by this rank
    bool gone = false;
    std::string_view step{};
    bool to_all = false;
    std::vector<std::span<const std::byte>> outgoing{};  // to each rank
  };
  struct Failure {
    std::uint64_t rank = 0;  // who says so
    Error why{};             // in its own words
    bool is_abort = false;
    std::uint64_t step = 0;  // in which copying failed; 0: it failed between steps
  };

  Group(std::uint64_t size, const CommunicatorOptions& chosen) : seats(size), options(chosen) {}

  std::vector<std::uint64_t> missing(std::uint64_t step) const {
    std::vector<std::uint64_t> ranks;
    for (std::uint64_t rank = 0; rank < seats.size(); ++rank)
      if (seats[rank].steps <= step) ranks.push_back(rank);
    return ranks;
  }
  Error failure_for(std::uint64_t rank) const {
    if (!failure->is_abort || failure->rank == rank) return failure->why;
    return rank_aborted(failure->rank, failure->why.code, text(failure->why));
  }
  void fail(Failure found) {
    if (!failure) failure = std::move(found);
    changed.notify_all();
  }

  std::mutex mutex{};
  std::condition_variable changed{};
  std::vector<Seat> seats;
  const CommunicatorOptions options;
  std::uint64_t arrived = 0, opened = 0;  // ranks that are there; steps for which all were
  std::uint64_t copied = 0, closed = 0;
  std::optional<Failure> failure{};
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Group> group, std::uint64_t rank)
      : Communicator(rank, group->seats.size()), group_(std::move(group)) {}
  ~ThreadRank() override {
    const std::lock_guard lock(group_->mutex);
    group_->seats[rank()].gone = true;
    group_->changed.notify_all();
  }
  std::string_view name() const override { return "threads"; }

 protected:
  Result<Done> carry(const Step& step) override {
    std::unique_lock lock(group_->mutex);
    if (const auto all_here = arrive(step, lock); !all_here) return all_here.why();
    lock.unlock();
    const std::uint64_t mine = group_->seats[rank()].steps;
    const auto close = [&] {
      if (++group_->copied < size()) return;
      group_->copied = 0;
      ++group_->closed;
      group_->changed.notify_all();
    };
    Result<Done> copied = Done{};
    try {
      copied = copy(step);
      lock.lock();
      if (!copied) group_->fail({.rank = rank(), .why = copied.why(), .step = mine});
    } catch (...) {  // no memory for an error's words; the others must not wait for this rank
      if (!lock.owns_lock()) lock.lock();
      close();
      group_->changed.wait(lock, [&] { return group_->closed >= mine; });  // they may still copy
      throw;
    }
    close();
    group_->changed.wait(lock, [&] { return group_->closed >= mine; });
    if (!copied) return copied.why();
    // A rank that gave up after this step does not fail it.
    if (group_->failure && group_->failure->step == mine) return group_->failure->why;
    return Done{};
  }

  void tell_others(const Error& why) override {
    const std::lock_guard lock(group_->mutex);
    group_->fail({.rank = rank(), .why = why, .is_abort = true});
  }

 private:
  Result<Done> arrive(const Step& step, std::unique_lock<std::mutex>& lock) {
    if (group_->failure) return group_->failure_for(rank());
    std::vector<std::span<const std::byte>> outgoing;
    for (std::uint64_t to = 0; to < size(); ++to) outgoing.push_back(step.outgoing(to));
    Group::Seat& seat = group_->seats[rank()];
    const std::uint64_t number = seat.steps++;
    seat.step = step.parcel.step;
    seat.to_all = step.to_all;
    seat.outgoing = std::move(outgoing);
    if (++group_->arrived == size()) {
      group_->arrived = 0;
      ++group_->opened;
      group_->changed.notify_all();
      return Done{};
    }
    try {
      return wait_for_all(number, lock);
    } catch (...) {  // no memory: it goes as if it had not come, for the others would wait for it
      --group_->arrived;
      --seat.steps;
      throw;
    }
  }

  Result<Done> wait_for_all(std::uint64_t number, std::unique_lock<std::mutex>& lock) {
    const std::string_view step = group_->seats[rank()].step;
    constexpr auto kLook = std::chrono::milliseconds(100);  // between two checks for an interrupt
    const auto deadline = Clock::now() + group_->options.deadline;
    while (group_->opened <= number) {
      if (group_->failure) return group_->failure_for(rank());
      const auto missing = group_->missing(number);
      const auto gone = std::ranges::find_if(
          missing, [&](std::uint64_t other) { return group_->seats[other].gone; });
      Result<Done> fine = check_interrupt();
      if (gone != missing.end())
        fine = rank_left(*gone, step);
      else if (Clock::now() >= deadline)
        fine = past_deadline(missing, step, group_->options.deadline);
      if (!fine) {
        group_->fail({.rank = rank(), .why = fine.why()});
        return fine;
      }
      group_->changed.wait_until(lock, std::min(deadline, Clock::now() + kLook));
    }
    return Done{};
  }

  // Without the lock: seats do not change before all ranks have copied.
  Result<Done> copy(const Step& step) const {
    for (std::uint64_t from = 0; from < size(); ++from) {
      if (from == rank()) continue;
      const Group::Seat& seat = group_->seats[from];
      if (seat.step != step.parcel.step || seat.to_all != step.to_all)
        return not_the_same_step(from, step.parcel.step, seat.step);
      const auto sent = seat.outgoing[rank()];
      const auto place = step.incoming(from);
      if (sent.size() != place.size())
        return not_the_same_size(from, seat.step, place.size(), sent.size());
      if (!sent.empty()) std::memcpy(place.data(), sent.data(), sent.size());
    }
    return Done{};
  }

  std::shared_ptr<Group> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_threads(std::uint64_t size,
                                                        const CommunicatorOptions& options) {
  const auto group = std::make_shared<Group>(std::max<std::uint64_t>(size, 1), options);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::uint64_t rank = 0; rank < group->seats.size(); ++rank)
    ranks.push_back(std::make_unique<ThreadRank>(group, rank));
  return ranks;
}

}  // namespace fp4moe::moe::exchange
