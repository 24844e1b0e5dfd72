#include "fp4moe/moe/exchange/communicator.hpp"

#include <atomic>
#include <latch>
#include <numeric>

#include <gtest/gtest.h>

#include "fp4moe/base/interrupt.hpp"
#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/exchange/mpi.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "support/ranks.hpp"

namespace fp4moe::moe::exchange {
namespace communicator_test {

using formats::Bf16;
using testing::run_ranks;

// Rank a sends (a + 2 b) % 5 bytes of value 10 a + b to rank b.
std::uint64_t size_between(std::uint64_t from, std::uint64_t to) { return (from + 2 * to) % 5; }

Parcel everyone_to_everyone(const Communicator& ranks) {
  Parcel parcel{.step = "test"};
  std::vector<std::byte> bytes;
  for (std::uint64_t other = 0; other < ranks.size(); ++other) {
    parcel.send_bytes.push_back(size_between(ranks.rank(), other));
    parcel.receive_bytes.push_back(size_between(other, ranks.rank()));
    bytes.insert(bytes.end(), size_between(ranks.rank(), other),
                 static_cast<std::byte>(10 * ranks.rank() + other));
  }
  EXPECT_TRUE(reserve(parcel.send, bytes.size()));
  if (!bytes.empty()) std::memcpy(parcel.send.data(), bytes.data(), bytes.size());
  return parcel;
}

class Sizes : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Sizes, AllToAllBringsEveryRankItsBytesInRankOrder) {
  run_ranks(GetParam(), {}, [](std::unique_ptr<Communicator> ranks) {
    for (int round = 0; round < 20; ++round) {
      Parcel parcel = everyone_to_everyone(*ranks);
      ASSERT_TRUE(ranks->all_to_all(parcel));
      for (std::uint64_t from = 0; from < ranks->size(); ++from)
        for (const std::byte got : parcel.received_from(from))
          ASSERT_EQ(got, static_cast<std::byte>(10 * from + ranks->rank()));
    }
    EXPECT_EQ(ranks->traffic().steps, 20u);
    std::uint64_t sent = 0;
    for (std::uint64_t to = 0; to < ranks->size(); ++to)
      if (to != ranks->rank()) sent += 20 * size_between(ranks->rank(), to);
    EXPECT_EQ(ranks->traffic().sent, sent);
  });
}

TEST_P(Sizes, AllGatherBringsTheSameToEveryRank) {
  run_ranks(GetParam(), {}, [](std::unique_ptr<Communicator> ranks) {
    const std::vector<std::uint64_t> mine{ranks->rank(), 7 * ranks->rank()};

    const auto all = all_gather_values<std::uint64_t>(*ranks, "values", mine);

    ASSERT_TRUE(all);
    for (std::uint64_t rank = 0; rank < ranks->size(); ++rank)
      EXPECT_EQ((*all)[2 * rank + 1], 7 * rank);
    EXPECT_TRUE(ranks->barrier());
    EXPECT_TRUE(ranks->agree("hidden 64; top_k 2"));
  });
}

TEST_P(Sizes, SumsAreTakenInRankOrderAndRoundedOnce) {
  const std::uint64_t size = GetParam();
  constexpr std::uint64_t kRows = 5, kColumns = 3;
  const auto value = [](std::uint64_t rank, std::uint64_t i) {
    return SplitMix64(31 * rank + i).unit() * (rank % 2 == 0 ? 1.0f : -300.0f);
  };
  run_ranks(size, {}, [&](std::unique_ptr<Communicator> ranks) {
    std::vector<std::uint16_t> rows;
    for (std::uint64_t i = 0; i < kRows * kColumns; ++i)
      rows.push_back(Bf16::encode(value(ranks->rank(), i)));
    Parcel parcel;

    ASSERT_TRUE(
        all_reduce(*ranks, parcel, dense_rows(std::span(rows), DType::bf16, kRows, kColumns)));

    for (std::uint64_t i = 0; i < rows.size(); ++i) {
      float sum = Bf16::decode(Bf16::encode(value(0, i)));
      for (std::uint64_t rank = 1; rank < size; ++rank)
        sum += Bf16::decode(Bf16::encode(value(rank, i)));
      EXPECT_EQ(rows[i], Bf16::encode(sum)) << "element " << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sizes, ::testing::Values(1, 2, 3, 4, 8));

TEST(Communicator, ReduceScatterTakesUnevenPartsAndCutsColumns) {
  run_ranks(3, {}, [](std::unique_ptr<Communicator> ranks) {
    const std::vector<std::uint64_t> tokens{2, 0, 1};
    std::vector<float> partial(3 * 4, static_cast<float>(ranks->rank() + 1));  // one spare column
    std::vector<double> out(tokens[ranks->rank()] * 3, -1.0);
    Parcel parcel;

    ASSERT_TRUE(reduce_scatter(
        *ranks, parcel, dense_rows(std::span<const float>(partial), DType::f32, 3, 4), tokens,
        dense_rows(std::span(out), DType::f64, tokens[ranks->rank()], 3)));

    for (const double sum : out) EXPECT_EQ(sum, 6.0);
  });
}

TEST(Communicator, DisagreementNamesBothValuesOnAllRanks) {
  run_ranks(4, {}, [](std::unique_ptr<Communicator> ranks) {
    const auto said =
        ranks->agree(ranks->rank() == 2 ? "hidden 64; top_k 8; bf16" : "hidden 64; top_k 2; bf16");

    ASSERT_FALSE(said);
    EXPECT_EQ(said.why().id, "comm.disagree");
    EXPECT_EQ(said.why().expected, "top_k 2 (rank 0)");
    EXPECT_EQ(said.why().found, "top_k 8 (rank 2)");
    EXPECT_EQ(ranks->barrier().why().id, "comm.disagree");  // it stays so
  });
  run_ranks(2, {}, [](std::unique_ptr<Communicator> ranks) {
    const auto said = ranks->agree(ranks->rank() == 0 ? "a; b" : "a");
    ASSERT_FALSE(said);
    EXPECT_EQ(said.why().expected, "a; b (rank 0)");
  });
}

TEST(Communicator, ARankThatGivesUpWakesTheOthersWithItsWords) {
  run_ranks(4, {}, [](std::unique_ptr<Communicator> ranks) {
    if (ranks->rank() == 3) {
      ranks->abort(invalid("weights.broken", "the file is cut"));
      EXPECT_EQ(ranks->barrier().why().id, "comm.aborted");
      return;
    }
    const auto done = ranks->barrier();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "comm.aborted");
    EXPECT_EQ(done.why().code, ErrorCode::invalid_input);
    EXPECT_NE(done.why().message.find("rank 3 gave up: weights.broken: the file is cut"),
              std::string::npos);
  });
}

TEST(Communicator, ARankThatLeavesIsMissedOnlyByThoseWhoWaitForIt) {
  run_ranks(4, {}, [](std::unique_ptr<Communicator> ranks) {
    ASSERT_TRUE(ranks->barrier());
    if (ranks->rank() == 1) return;
    const auto done = ranks->barrier();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "comm.left");
    EXPECT_NE(done.why().message.find("rank 1 left"), std::string::npos);
  });
}

TEST(Communicator, ARankThatDoesNotComeIsNamedAfterTheDeadline) {
  std::latch others_gave_up(2);
  run_ranks(3, {.deadline = std::chrono::milliseconds(500)},
            [&](std::unique_ptr<Communicator> ranks) {
              if (ranks->rank() == 1) {
                others_gave_up.wait();
                EXPECT_EQ(ranks->barrier().why().id, "comm.deadline");
                return;
              }
              const auto done = ranks->barrier();
              others_gave_up.count_down();
              ASSERT_FALSE(done);
              EXPECT_EQ(done.why().id, "comm.deadline");
              EXPECT_NE(done.why().message.find("rank 1"), std::string::npos) << done.why().message;
            });
}

TEST(Communicator, DifferentStepsAndSizesAreErrorsEverywhere) {
  run_ranks(3, {}, [](std::unique_ptr<Communicator> ranks) {
    Parcel parcel{.step = ranks->rank() == 0 ? "left" : "right", .send_bytes = {0}};
    parcel.receive_bytes.assign(3, 0);
    const auto done = ranks->all_gather(parcel);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "comm.order");
  });
  run_ranks(3, {}, [](std::unique_ptr<Communicator> ranks) {
    const std::vector<std::uint64_t> mine(ranks->rank() == 2 ? 2 : 1);
    const auto done = all_gather_values<std::uint64_t>(*ranks, "values", mine);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "comm.sizes");
  });
}

TEST(Communicator, AWishToStopEndsWaiting) {
  const InterruptGuard guard;
  std::latch gave_up(1);
  run_ranks(2, {}, [&](std::unique_ptr<Communicator> ranks) {
    if (ranks->rank() == 1) return gave_up.wait();
    request_interrupt();
    const auto done = ranks->barrier();
    gave_up.count_down();
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().code, ErrorCode::interrupted);
  });
}

TEST(Communicator, AParcelMustFitTheGroup) {
  const auto solo = make_solo();
  EXPECT_EQ(solo->name(), "solo");
  Parcel parcel{.step = "test", .send_bytes = {4}, .receive_bytes = {4}};
  EXPECT_EQ(solo->all_gather(parcel).why().id, "comm.parcel");  // no memory to send from
  ASSERT_TRUE(reserve(parcel.send, 4));
  parcel.receive_bytes = {3};
  EXPECT_EQ(solo->all_gather(parcel).why().id, "comm.parcel");
  parcel.receive_bytes = {4, 4};
  EXPECT_EQ(solo->all_to_all(parcel).why().id, "comm.parcel");
  parcel.receive_bytes = {4};
  EXPECT_TRUE(solo->all_to_all(parcel));
  EXPECT_EQ(solo->traffic().sent, 0u);
}

TEST(Communicator, AGroupOfNoRanksIsAGroupOfOne) { EXPECT_EQ(make_threads(0).size(), 1u); }

TEST(Mpi, ABuildWithoutItSaysWhatToInstall) {
  if (has_mpi()) {
    EXPECT_FALSE(mpi_version().empty());
    return;  // joining needs mpirun: tests/mpi
  }
  const auto opened = open_mpi();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.why().code, ErrorCode::unavailable);
  EXPECT_NE(opened.why().remedy.find("libopenmpi-dev"), std::string::npos);
}

}  // namespace communicator_test
}  // namespace fp4moe::moe::exchange
