// One rank of a group that mpirun started, doing what the test asks for:
//
//   exchange    every exchange against the formula
//   large       a message of more bytes than an int counts, when the memory is there
//   disagree    rank 1 has another hidden size
//   gives_up    rank 1's experts fail
//   leaves      rank 1 ends in the middle, in order
//   dies        rank 1 ends in the middle, without a word
//   silent      rank 1 waits for the others to end
//   no_memory   every rank ends MPI without memory
//   stuck       rank 1 does not start MPI; rank 0 has no memory to say so
//
// An error is printed as "rank R: ..." before MPI ends, because mpirun stops all ranks as soon as
// one of them ends with a status other than 0.
#include "support/ranks.hpp"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/moe/exchange/mpi.hpp"
#include "fp4moe/moe/exchange/sums.hpp"

namespace {

using namespace fp4moe;
using namespace fp4moe::moe;
using namespace fp4moe::moe::exchange;
using exchange::testing::Case;
using exchange::testing::Input;

Result<Done> check_case(Communicator& ranks, const Case& given) {
  auto result = exchange::testing::make(given, ranks);
  if (!result) return result.why();
  for (std::uint64_t round = 0; round < 3; ++round) {
    const Input input(given, ranks.rank() + 10 * round,
                      exchange::testing::tokens_of(ranks.rank() + round));
    const auto out = exchange::testing::call(given, **result, {ranks.rank(), ranks.size()}, input);
    if (!out) return out.why();
    if (*out != input.answer(given))
      return error(ErrorCode::mismatch, "test.values",
                   fmt::format("{} gives another result than the formula", given.exchange));
  }
  return Done{};
}

Result<Done> exchange_all(Communicator& ranks) {
  for (Case given : exchange::testing::travelling_cases())
    for (const ActivationKey key : {ActivationKey::none, ActivationKey::nvfp4}) {
      given.quantizer = {key, 2.0f};
      given.hidden = 2048;  // some messages are larger than what MPI sends without asking
      if (const auto done = check_case(ranks, given); !done) return done;
    }
  std::vector<float> sum(7, static_cast<float>(ranks.rank() + 1));
  Parcel parcel;
  if (const auto done = all_reduce(ranks, parcel, dense_rows(std::span(sum), DType::f32, 7, 1));
      !done)
    return done;
  const auto wanted = static_cast<float>(ranks.size() * (ranks.size() + 1) / 2);
  if (sum[6] != wanted)
    return error(ErrorCode::mismatch, "test.values", fmt::format("{} is not {}", sum[6], wanted));
  return Done{};
}

Result<Done> send_much(Communicator& ranks) {
  constexpr std::uint64_t kMany = (std::uint64_t{1} << 31) + 12345;
  Parcel parcel{.step = "large"};
  parcel.send_bytes.assign(ranks.size(), 0);
  parcel.receive_bytes.assign(ranks.size(), 0);
  if (ranks.rank() == 0) {
    parcel.send_bytes[1] = kMany;
    if (const auto done = reserve(parcel.send, kMany); !done) return done;
    parcel.send.data()[kMany - 1] = std::byte{42};
    parcel.send.data()[std::uint64_t{1} << 30] = std::byte{43};
  }
  if (ranks.rank() == 1) parcel.receive_bytes[0] = kMany;
  if (const auto done = ranks.all_to_all(parcel); !done) return done;
  if (ranks.rank() != 1) return Done{};
  if (parcel.received()[kMany - 1] != std::byte{42} ||
      parcel.received()[std::uint64_t{1} << 30] != std::byte{43})
    return error(ErrorCode::mismatch, "test.values", "the last byte is another");
  return Done{};
}

// Calls until something goes wrong, which rank 1 sees to in its second one.
Result<Done> fail(Communicator& ranks, const std::string& how) {
  Case given{.exchange = "all_to_all", .hidden = 2048};
  if (how == "disagree" && ranks.rank() == 1) given.hidden = 1024;
  auto result = exchange::testing::make(given, ranks);
  if (!result) return result.why();
  for (std::uint64_t round = 0; round < 100; ++round) {
    const Input input(given, ranks.rank() + round, 3);
    if (round == 1 && ranks.rank() == 1) {
      if (how == "leaves") return Done{};
      if (how == "dies") std::raise(SIGKILL);
      if (how == "silent")  // until the others are tired of waiting and mpirun stops this one, too
        while (!interrupt_requested()) std::this_thread::yield();
      const auto in = (*result)->prepare(input.tokens(), {});
      if (!in) return in.why();
      const Error why = error(ErrorCode::exhausted, "test.memory", "the experts have no memory");
      (*result)->abandon(why);
      return why;
    }
    const auto out = exchange::testing::call(given, **result, {ranks.rank(), ranks.size()}, input);
    if (!out) return out.why();
  }
  return Done{};
}

std::atomic<bool> g_has_no_memory{false};

// Ends MPI while no allocation of C++ succeeds.
int end_without_memory(std::unique_ptr<Communicator> ranks) {
  const std::uint64_t rank = ranks->rank();
  g_has_no_memory = true;
  ranks.reset();
  g_has_no_memory = false;
  fmt::print("rank {}: ended without memory\n", rank);
  std::fflush(stdout);
  return 1;
}

// True in the process that Open MPI's or MPICH's mpirun calls rank 1.
bool is_rank_1() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(name); rank != nullptr) return std::string(rank) == "1";
  return false;
}

}  // namespace

void* operator new(std::size_t size) {
  void* const memory = g_has_no_memory ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

int main(int argc, char** argv) {
  const InterruptGuard guard;
  const std::string what = argc > 1 ? argv[1] : "exchange";
  MpiOptions options;
  options.argc = &argc;
  options.argv = &argv;
  options.deadline = std::chrono::milliseconds(argc > 2 ? std::atoi(argv[2]) : 20'000);
  if (!has_mpi()) return 77;
  if (what == "stuck") {
    options.start_deadline = std::chrono::milliseconds(500);
    options.on_stuck = [](const Error&) { throw std::bad_alloc(); };
    while (is_rank_1() && !interrupt_requested()) std::this_thread::yield();
  }
  auto ranks = open_mpi(options);
  if (!ranks) {
    fmt::print("{}\n", text(ranks.why()));
    return 1;
  }
  if (what == "no_memory") return end_without_memory(*std::move(ranks));
  const auto done = what == "exchange" ? exchange_all(**ranks)
                    : what == "large"  ? send_much(**ranks)
                                       : fail(**ranks, what);
  if (done) {
    fmt::print("rank {}: done\n", (*ranks)->rank());
  } else {
    fmt::print("rank {}: {}\n", (*ranks)->rank(), text(done.why()));
  }
  std::fflush(stdout);
  return done ? 0 : static_cast<int>(done.why().code);
}
