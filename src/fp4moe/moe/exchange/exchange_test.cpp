#include "fp4moe/moe/exchange.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include <gtest/gtest.h>

#include "fp4moe/formats/bf16.hpp"
#include "fp4moe/moe/exchange/cost.hpp"
#include "fp4moe/moe/exchange/sums.hpp"
#include "support/ranks.hpp"

namespace fp4moe::moe::exchange {
namespace exchange_test {

using formats::Bf16;
using testing::call;
using testing::Case;
using testing::FakeExperts;
using testing::Input;
using testing::run_ranks;
using testing::tokens_of;

std::string said(const Case& given) {
  return given.exchange + ", form " + std::to_string(static_cast<int>(given.form)) +
         (given.is_weighted ? ", weighted" : "") + ", seed " + std::to_string(given.seed);
}

// Every rank calls twice, with other tokens the second time, and gets what the formula says.
void expect_the_formula(const Case& given, std::uint64_t size, float tolerance = 0.0f) {
  run_ranks(size, {}, [&](std::unique_ptr<Communicator> ranks) {
    const auto exchange = testing::make(given, *ranks);
    ASSERT_TRUE(exchange) << text(exchange.why());
    for (std::uint64_t round = 0; round < 2; ++round) {
      const Input input(given, ranks->rank() + 10 * round, tokens_of(ranks->rank() + round));
      const auto out = call(given, **exchange, {ranks->rank(), size}, input);
      ASSERT_TRUE(out) << said(given) << ": " << text(out.why());
      const auto answer = input.answer(given);
      ASSERT_EQ(out->size(), answer.size());
      for (std::size_t i = 0; i < answer.size(); ++i)
        ASSERT_NEAR((*out)[i], answer[i], tolerance)
            << said(given) << ", rank " << ranks->rank() << " of " << size << ", element " << i;
    }
  });
}

class Ranks : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Ranks, EveryExchangeGivesTheFormulasResult) {
  for (const Case& given : testing::travelling_cases()) expect_the_formula(given, GetParam());
}

TEST_P(Ranks, QuantizedTokensArriveAsIfTheyHadNotTravelled) {
  for (const Case& travelling : testing::travelling_cases())
    for (const RowQuantizer how :
         {RowQuantizer{ActivationKey::mxfp8}, RowQuantizer{ActivationKey::mxfp4},
          RowQuantizer{ActivationKey::nvfp4, 2.0f},
          RowQuantizer{ActivationKey::fp8_static_tensor, 0.5f},
          RowQuantizer{ActivationKey::fp8_block128}, RowQuantizer{ActivationKey::fp8_token},
          RowQuantizer{ActivationKey::nvfp4_token}}) {
      if (travelling.placement != checkpoint::Placement::linear) continue;
      Case given = travelling;
      given.quantizer = how;
      // Dynamic scales in float32 are no powers of two: sums in another order differ in the last
      // bits.
      const bool is_exact = how.key != ActivationKey::fp8_block128 &&
                            how.key != ActivationKey::fp8_token &&
                            how.key != ActivationKey::nvfp4_token;
      expect_the_formula(given, GetParam(), is_exact ? 0.0f : 1e-3f);
    }
}

TEST_P(Ranks, AWeightOnTheInputIsAppliedOnceAndBeforeQuantizing) {
  for (const Case& travelling : testing::travelling_cases())
    for (const ActivationKey key : {ActivationKey::none, ActivationKey::mxfp4}) {
      Case given = travelling;
      given.top_k = 1;
      given.weight_on_input = true;
      given.quantizer.key = key;
      expect_the_formula(given, GetParam());
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Ranks, ::testing::Values(1, 2, 3, 4, 8));

TEST(Exchange, NoTokensAnywhereIsNoError) {
  for (const Case& given : testing::travelling_cases())
    run_ranks(3, {}, [&](std::unique_ptr<Communicator> ranks) {
      const auto exchange = testing::make(given, *ranks);
      ASSERT_TRUE(exchange);
      const auto out = call(given, **exchange, {ranks->rank(), 3}, Input(given, 0, 0));
      EXPECT_TRUE(out) << said(given);
    });
}

TEST(Exchange, AdaptersTravelWithTheirTokens) {
  for (const Case& travelling : testing::travelling_cases()) {
    Case given = travelling;
    given.adapters = true;
    run_ranks(3, {}, [&](std::unique_ptr<Communicator> ranks) {
      const auto exchange = testing::make(given, *ranks);
      ASSERT_TRUE(exchange);
      Input input(given, ranks->rank(), 3);
      if (ranks->rank() == 1) input.adapters.clear();  // none of its tokens has one
      for (std::uint64_t row = 0; row < 3; ++row)      // a mark that travels with the row
        input.x[row * given.hidden] = static_cast<float>(100 * ranks->rank() + row);

      const auto in = (*exchange)->prepare(input.tokens(), {});

      ASSERT_TRUE(in);
      ASSERT_EQ(in->adapters.size(), in->x.rows);
      const auto check = [&](std::uint64_t row) {
        float mark = 0;
        read_row(in->x, row, std::span<float>(&mark, 1));
        const auto adapter = static_cast<std::int32_t>(mark);
        EXPECT_EQ(in->adapters[row], adapter / 100 == 1 ? -1 : adapter) << said(given);
      };
      if (in->format == TokenFormat::standard)
        for (std::uint64_t row = 0; row < in->x.rows; ++row) check(row);
      else
        for (std::uint64_t e = 0; e < in->counts.size(); ++e)
          for (std::int32_t i = 0; i < in->counts[e]; ++i)
            check(e * in->capacity + static_cast<std::uint64_t>(i));
      FakeExperts experts(given, {ranks->rank(), 3});
      std::vector<float> out(3 * given.hidden);
      EXPECT_TRUE((*exchange)->finalize(experts.compute(*in),
                                        dense_rows(std::span(out), DType::f32, 3, given.hidden)));
    });
  }
}

TEST(Gather, CarriesLogitsToKernelsThatRoute) {
  run_ranks(3, {}, [](std::unique_ptr<Communicator> ranks) {
    const Case given{.exchange = "gather"};
    const auto exchange = testing::make(given, *ranks);
    ASSERT_TRUE(exchange);
    const std::uint64_t rows = ranks->rank();
    const std::vector<float> x(rows * 4, 1.0f);
    std::vector<std::uint16_t> logits(rows * 9, Bf16::encode(static_cast<float>(ranks->rank())));

    const auto in = (*exchange)->prepare(
        {.x = dense_rows(std::span<const float>(x), DType::f32, rows, 4),
         .logits = dense_rows(std::span<const std::uint16_t>(logits), DType::bf16, rows, 9)},
        {});

    ASSERT_TRUE(in) << text(in.why());
    ASSERT_EQ(in->logits.rows, 3u);
    std::vector<float> row(9);
    for (const auto& [index, rank] : {std::pair(0, 1), std::pair(1, 2), std::pair(2, 2)}) {
      read_row(in->logits, static_cast<std::uint64_t>(index), std::span<float>(row));
      EXPECT_EQ(row[8], static_cast<float>(rank));
    }
    const std::vector<float> sums(3 * 4, static_cast<float>(ranks->rank() + 1));
    std::vector<float> out(rows * 4);
    ASSERT_TRUE((*exchange)->finalize(
        {OutputForm::summed, dense_rows(std::span<const float>(sums), DType::f32, 3, 4)},
        dense_rows(std::span(out), DType::f32, rows, 4)));
    for (const float sum : out) EXPECT_EQ(sum, 6.0f);
  });
}

TEST(AllToAll, SendsATokenOncePerRankWithTheIdsOfThatRank) {
  run_ranks(2, {}, [](std::unique_ptr<Communicator> ranks) {
    const Case given{.exchange = "all_to_all", .experts = 4, .top_k = 3, .hidden = 4};
    const auto exchange = testing::make(given, *ranks);
    ASSERT_TRUE(exchange);
    Input input(given, 0, ranks->rank() == 0 ? 2 : 0);
    if (ranks->rank() == 0) input.ids = {3, 0, 2, -1, 3, 9};

    const auto in = (*exchange)->prepare(input.tokens(), {});

    ASSERT_TRUE(in);
    const std::vector<std::int32_t> ids(in->ids.begin(), in->ids.end());
    if (ranks->rank() == 0)
      EXPECT_EQ(ids, (std::vector<std::int32_t>{-1, 0, -1}));
    else
      EXPECT_EQ(ids, (std::vector<std::int32_t>{3, -1, 2, -1, 3, -1}));
  });
}

TEST(AllToAllBatched, PacksRanksInOrderAndATokenOncePerExpert) {
  run_ranks(2, {}, [](std::unique_ptr<Communicator> ranks) {
    const Case given{.exchange = "all_to_all_batched", .experts = 2, .top_k = 2, .hidden = 1};
    const auto exchange = testing::make(given, *ranks);
    ASSERT_TRUE(exchange);
    Input input(given, 0, 2);
    input.x = {10.0f * static_cast<float>(ranks->rank()) + 1.0f,
               10.0f * static_cast<float>(ranks->rank()) + 2.0f};
    input.ids = {0, 1, 1, 1};

    const auto in = (*exchange)->prepare(input.tokens(), {});

    ASSERT_TRUE(in);
    EXPECT_EQ(in->capacity, 2 * given.max_tokens);
    std::vector<float> batch;
    for (std::int32_t i = 0; i < in->counts[0]; ++i) {
      float value = 0;
      read_row(in->x, static_cast<std::uint64_t>(i), std::span<float>(&value, 1));
      batch.push_back(value);
    }
    if (ranks->rank() == 0)
      EXPECT_EQ(batch, (std::vector<float>{1, 11}));
    else
      EXPECT_EQ(batch, (std::vector<float>{1, 2, 11, 12}));
    // Weighted batches, or another form, are not what it takes.
    std::vector<float> out(2);
    const auto done = (*exchange)->finalize({OutputForm::batches, in->x, true},
                                            dense_rows(std::span(out), DType::f32, 2, 1));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.why().id, "exchange.form");
  });
}

// --- without ranks

Case local_case(const char* name, OutputForm form, bool is_weighted) {
  return {.exchange = name, .form = form, .is_weighted = is_weighted};
}

TEST(Local, SumsOfPartsOfTheExpertsMakeTheWhole) {
  for (const Case& given : {local_case("local", OutputForm::summed, true),
                            local_case("local", OutputForm::assignments, true),
                            local_case("local", OutputForm::assignments, false),
                            local_case("batched", OutputForm::batches, false)})
    for (const std::uint64_t size : {1u, 3u}) {
      const Input input(given, 0, 7);
      std::vector<float> total(7 * given.hidden, 0.0f);
      for (std::uint64_t rank = 0; rank < size; ++rank) {
        const auto exchange =
            make_exchange(*exchange_from_name(given.exchange), {.experts = given.experts,
                                                                .expert_parallel = {rank, size},
                                                                .max_tokens = given.max_tokens});
        ASSERT_TRUE(exchange) << text(exchange.why());
        const auto out = call(given, **exchange, {rank, size}, input);
        ASSERT_TRUE(out) << said(given) << ": " << text(out.why());
        for (std::size_t i = 0; i < total.size(); ++i) total[i] += (*out)[i];
      }
      EXPECT_EQ(total, input.answer(given)) << said(given);
    }
}

TEST(Local, LeavesRowsWhereTheyAreUnlessTheyChange) {
  const auto exchange = make_exchange(ExchangeKind::local, {.experts = 9});
  ASSERT_TRUE(exchange);
  const Case given{.exchange = "local"};
  const Input input(given, 0, 3);

  const auto in = (*exchange)->prepare(input.tokens(), {});
  ASSERT_TRUE(in);
  EXPECT_EQ(in->x.data, input.tokens().x.data);

  std::vector<float> out(3 * given.hidden, 5.0f);  // the experts wrote there already
  const auto rows = dense_rows(std::span(out), DType::f32, 3, given.hidden);
  ASSERT_TRUE((*exchange)->finalize({OutputForm::summed, rows}, rows));
  EXPECT_EQ(out[0], 5.0f);
  EXPECT_EQ((*exchange)->finalize({OutputForm::summed, rows}, rows).why().id, "exchange.order");
}

TEST(Local, AWeightOnTheInputIsRoundedToTheTypeOfTheInput) {
  const auto exchange = make_exchange(ExchangeKind::local, {.experts = 1});
  ASSERT_TRUE(exchange);
  const std::vector<std::uint16_t> x{Bf16::encode(3.0f), Bf16::encode(-1.0078125f)};
  const std::vector<std::int32_t> ids{0};
  const std::vector<float> weights{1.0f / 3.0f};

  const auto in = (*exchange)->prepare({.x = dense_rows(std::span(x), DType::bf16, 1, 2),
                                        .top_k = 1,
                                        .ids = ids,
                                        .weights = weights},
                                       {.weight_on_input = true});

  ASSERT_TRUE(in);
  EXPECT_EQ(in->weights[0], 1.0f);
  const float rounded = Bf16::decode(Bf16::encode(1.0f / 3.0f));
  std::vector<float> seen(2);
  read_row(in->x, 0, std::span<float>(seen));
  EXPECT_EQ(seen[0], Bf16::decode(Bf16::encode(3.0f * rounded)));
  EXPECT_EQ(seen[1], Bf16::decode(Bf16::encode(-1.0078125f * rounded)));
}

TEST(Batched, RefusesMoreTokensThanABatchHolds) {
  const auto exchange = make_exchange(ExchangeKind::batched, {.experts = 2, .max_tokens = 2});
  ASSERT_TRUE(exchange);
  const Case given{.experts = 2, .top_k = 1, .only_experts_below = 1};
  Input input(given, 0, 3);
  input.ids = {0, 0, 0};

  const auto in = (*exchange)->prepare(input.tokens(), {});

  ASSERT_FALSE(in);
  EXPECT_EQ(in.why().id, "exchange.capacity");
  EXPECT_EQ(in.why().found, "3");
  input.ids = {0, 1, 0};
  EXPECT_TRUE((*exchange)->prepare(input.tokens(), {}));
}

TEST(Batched, RefusesABatchThatDoesNotFit64Bits) {
  const auto exchange =
      make_exchange(ExchangeKind::batched, {.experts = 2, .max_tokens = UINT64_MAX / 2});
  ASSERT_TRUE(exchange);
  const Case given{.experts = 2, .top_k = 1};
  Input input(given, 0, 1);

  const auto in = (*exchange)->prepare(input.tokens(), {});

  ASSERT_FALSE(in);
  EXPECT_EQ(in.why().id, "exchange.capacity");
}

// --- what is wrong is said

TEST(Exchange, WrongOptionsAndInputsAreRefused) {
  const auto solo = make_solo();
  EXPECT_EQ(exchange_from_name("gater").why().id, "exchange.name");
  EXPECT_EQ(exchange_from_name("gater").why().remedy, "Did you mean gather?");
  EXPECT_EQ(make_exchange(ExchangeKind::gather, {.experts = 1}).why().id, "exchange.ranks");
  EXPECT_EQ(make_exchange(ExchangeKind::local, {}).why().id, "exchange.experts");
  EXPECT_EQ(make_exchange(ExchangeKind::batched, {.experts = 1}).why().id, "exchange.max_tokens");
  EXPECT_EQ(make_exchange(ExchangeKind::local, {.experts = 1, .expert_parallel = {2, 2}}).why().id,
            "slice.rank");

  const Case given{.exchange = "batched", .form = OutputForm::batches};
  const auto exchange = testing::make(given, *solo);
  ASSERT_TRUE(exchange);
  const Input input(given, 0, 2);
  const auto refused = [&](const Tokens& tokens, const PrepareOptions& options) {
    const auto in = (*exchange)->prepare(tokens, options);
    return in ? std::string("nothing") : in.why().id;
  };
  EXPECT_EQ(refused(input.tokens(), {.deferred = true}), "exchange.deferred");
  EXPECT_EQ(refused(input.tokens(), {.weight_on_input = true}), "exchange.weight_on_input");
  EXPECT_EQ(refused(input.tokens(), {.quantizer = {ActivationKey::nvfp4, 0.0f}}), "exchange.scale");
  Tokens tokens = input.tokens();
  tokens.ids = tokens.ids.first(1);
  EXPECT_EQ(refused(tokens, {}), "exchange.ids");
  tokens = input.tokens();
  tokens.adapters = tokens.ids.first(1);
  EXPECT_EQ(refused(tokens, {}), "exchange.adapters");
  tokens = input.tokens();
  tokens.logits = tokens.x;
  EXPECT_EQ(refused(tokens, {}), "exchange.logits");
  tokens = input.tokens();
  tokens.x.data = nullptr;
  EXPECT_EQ(refused(tokens, {}), "rows.memory");

  ASSERT_EQ(refused(input.tokens(), {}), "nothing");
  std::vector<float> out(3 * given.hidden);
  const auto three = dense_rows(std::span(out), DType::f32, 3, given.hidden);
  const auto two = dense_rows(std::span(out), DType::f32, 2, given.hidden);
  EXPECT_EQ((*exchange)->finalize({OutputForm::assignments, two}, two).why().id, "exchange.form");
  EXPECT_EQ((*exchange)->finalize({OutputForm::batches, two}, two).why().id, "exchange.output");
  EXPECT_EQ((*exchange)->finalize({OutputForm::summed, two}, three).why().id, "exchange.output");
  EXPECT_TRUE((*exchange)->finalize({OutputForm::summed, two}, two));
}

TEST(Exchange, LogitsAreCheckedWhereTheyAreTaken) {
  const auto exchange = make_exchange(ExchangeKind::local, {.experts = 9});
  ASSERT_TRUE(exchange);
  const std::vector<float> memory(64, 0.0f);
  Tokens tokens{.x = dense_rows(std::span(memory), DType::f32, 2, 4),
                .logits = dense_rows(std::span(memory), DType::f32, 3, 9)};
  EXPECT_EQ((*exchange)->prepare(tokens, {}).why().id, "exchange.logits");
  tokens.logits.rows = 2;
  EXPECT_EQ((*exchange)->prepare(tokens, {.weight_on_input = true}).why().id,
            "exchange.weight_on_input");
  EXPECT_TRUE((*exchange)->prepare(tokens, {}));
  std::vector<float> out(8);
  const auto rows = dense_rows(std::span(out), DType::f32, 2, 4);
  EXPECT_EQ((*exchange)->finalize({OutputForm::assignments, rows}, rows).why().id, "exchange.form");
  EXPECT_EQ((*exchange)->finalize({OutputForm::batches, rows}, rows).why().id, "exchange.form");
}

TEST(Exchange, EveryExchangeOfTheReferenceHasAStandIn) {
  using Theirs = oracle::Exchange;
  EXPECT_EQ(exchange_for(Theirs::none)->name, "local");
  EXPECT_EQ(exchange_for(Theirs::unknown), nullptr);
  for (const Theirs theirs :
       {Theirs::gather, Theirs::deepep_ht, Theirs::deepep_ll, Theirs::deepep_v2, Theirs::pplx,
        Theirs::mori, Theirs::nixl, Theirs::flashinfer_two_sided, Theirs::flashinfer_one_sided}) {
    ASSERT_NE(exchange_for(theirs), nullptr);
    EXPECT_TRUE(exchange_for(theirs)->needs_ranks);
    EXPECT_EQ(exchange_for(theirs)->format == TokenFormat::batched,
              oracle::is_batched(theirs, oracle::PolicyDate::january_27) || theirs == Theirs::nixl);
  }
}

TEST(Exchange, RanksThatDisagreeAreToldTheTwoValues) {
  struct Change {
    const char* expected;
    void (*change)(Case&);
  };
  const Change changes[] = {
      {"hidden size 64", [](Case& c) { c.hidden = 32; }},
      {"top_k 3", [](Case& c) { c.top_k = 2; }},
      {"9 experts", [](Case& c) { c.experts = 10; }},
      {"placement linear", [](Case& c) { c.placement = checkpoint::Placement::round_robin; }},
      {"quantizer none", [](Case& c) { c.quantizer.key = ActivationKey::mxfp8; }},
  };
  for (const char* name : {"gather", "all_to_all", "all_to_all_batched"})
    for (const Change& change : changes)
      run_ranks(3, {}, [&](std::unique_ptr<Communicator> ranks) {
        Case given{.exchange = name};
        if (ranks->rank() == 1) change.change(given);
        const auto exchange = testing::make(given, *ranks);
        ASSERT_TRUE(exchange);

        const auto in = (*exchange)->prepare(Input(given, 0, ranks->rank()).tokens(),
                                             {.quantizer = given.quantizer});

        ASSERT_FALSE(in);
        EXPECT_EQ(in.why().id, "comm.disagree") << text(in.why());
        EXPECT_EQ(in.why().expected, std::string(change.expected) + " (rank 0)");
        EXPECT_NE(in.why().found.find("(rank 1)"), std::string::npos);
      });
}

TEST(Exchange, ARankThatFailsAnywhereEndsTheCallOfAll) {
  enum class Failure { too_many_tokens, experts_fail, leaves_before, leaves_between };
  for (const char* name : {"gather", "all_to_all", "all_to_all_batched"})
    for (std::uint64_t seed = 0; seed < 16; ++seed) {
      SplitMix64 random(seed);
      const auto who = random.next() % 4, when = random.next() % 3;
      const auto how = static_cast<Failure>(random.next() % 4);
      run_ranks(4, {}, [&](std::unique_ptr<Communicator> ranks) {
        const Case given{.exchange = name,
                         .form = std::string_view(name) == "all_to_all_batched"
                                     ? OutputForm::batches
                                     : OutputForm::summed,
                         .is_weighted = std::string_view(name) != "all_to_all_batched"};
        auto exchange = testing::make(given, *ranks);
        ASSERT_TRUE(exchange);
        for (std::uint64_t round = 0; round <= when; ++round) {
          Input input(given, ranks->rank(), 2);
          if (round == when && ranks->rank() == who) {
            if (how == Failure::leaves_before) return;
            if (how == Failure::too_many_tokens) input.ids.clear();  // a wrong input, in fact
            const auto in = (*exchange)->prepare(input.tokens(), {});
            if (how == Failure::too_many_tokens) {
              ASSERT_EQ(in.why().id, "exchange.ids");
            } else if (how == Failure::experts_fail) {
              (*exchange)->abandon(error(ErrorCode::exhausted, "test.memory", "no memory"));
            }
            return;
          }
          const auto out = call(given, **exchange, {ranks->rank(), 4}, input);
          if (round < when) {
            ASSERT_TRUE(out) << text(out.why());
            continue;
          }
          ASSERT_FALSE(out);
          const bool leaves = how == Failure::leaves_before || how == Failure::leaves_between;
          EXPECT_EQ(out.why().id, leaves ? "comm.left" : "comm.aborted") << text(out.why());
          EXPECT_NE(out.why().message.find("rank " + std::to_string(who)), std::string::npos);
        }
      });
    }
}

// --- what travels is what the model says

// All sets of top_k of the experts, one token each: the average over them is the model's.
std::vector<std::int32_t> all_choices(std::uint64_t experts, std::uint64_t top_k) {
  std::vector<std::int32_t> ids;
  for (std::uint64_t set = 0; set < std::uint64_t{1} << experts; ++set) {
    if (static_cast<std::uint64_t>(std::popcount(set)) != top_k) continue;
    for (std::uint64_t e = 0; e < experts; ++e)
      if ((set >> e & 1) != 0) ids.push_back(static_cast<std::int32_t>(e));
  }
  return ids;
}

TEST(Cost, TheModelGivesTheBytesThatTravel) {
  for (const char* name : {"gather", "all_to_all", "all_to_all_batched"})
    for (const std::uint64_t size : {1u, 2u, 3u, 4u})
      for (const ActivationKey key : {ActivationKey::none, ActivationKey::nvfp4}) {
        const bool is_batched = std::string_view(name) == "all_to_all_batched";
        Case given{.exchange = name,
                   .experts = 5,
                   .top_k = 2,
                   .max_tokens = 100,
                   .form = is_batched ? OutputForm::batches : OutputForm::summed,
                   .is_weighted = !is_batched,
                   .quantizer = {key, 1.0f},
                   .adapters = size == 3};
        const auto ids = all_choices(5, 2);
        ASSERT_EQ(ids.size(), 2u * 10);
        std::vector<std::uint64_t> sent(size);
        run_ranks(size, {}, [&](std::unique_ptr<Communicator> ranks) {
          const auto exchange = testing::make(given, *ranks);
          ASSERT_TRUE(exchange);
          Input input(given, ranks->rank(), 10);
          input.ids = ids;
          ASSERT_TRUE(call(given, **exchange, {ranks->rank(), size}, input));
          sent[ranks->rank()] = ranks->traffic().sent;
        });

        const Cost cost = cost_of(name, {.ranks = size,
                                         .experts = 5,
                                         .top_k = 2,
                                         .hidden = given.hidden,
                                         .activations = key,
                                         .type = DType::f32,
                                         .adapters = given.adapters});

        const double total =
            static_cast<double>(std::accumulate(sent.begin(), sent.end(), std::uint64_t{0}));
        EXPECT_NEAR(total,
                    static_cast<double>(size) * (10 * cost.sum() + static_cast<double>(cost.call)),
                    1e-6 * total)
            << name << " on " << size;
        EXPECT_LE(cost.sum(), cost.sum_at_worst());
      }
}

TEST(Cost, AnAllReduceSendsEveryRowTwiceButForItsOwnPart) {
  run_ranks(4, {}, [](std::unique_ptr<Communicator> ranks) {
    std::vector<std::uint16_t> rows(8 * 64);
    Parcel parcel;
    ASSERT_TRUE(all_reduce(*ranks, parcel, dense_rows(std::span(rows), DType::bf16, 8, 64)));
    const Cost cost = cost_of("all_reduce", {.ranks = 4, .experts = 1, .hidden = 64});
    EXPECT_EQ(static_cast<double>(ranks->traffic().sent), 8 * cost.sum());
  });
  EXPECT_EQ(cost_of("local", {.ranks = 4, .experts = 4}).sum(), 0.0);
}

TEST(Cost, ATokenGoesToNoMoreRanksThanThereAre) {
  // More experts chosen than there are ranks: nearly every rank is hit.
  EXPECT_NEAR(expected_ranks({.ranks = 2, .experts = 64, .top_k = 32}), 1.0, 1e-6);
  EXPECT_EQ(expected_ranks({.ranks = 4, .experts = 4, .top_k = 9}), 3.0);
  EXPECT_EQ(expected_ranks({.ranks = 4, .experts = 4, .top_k = 1}), 0.75);
  EXPECT_EQ(expected_experts({.ranks = 4, .experts = 4, .top_k = 9}), 3.0);
}

}  // namespace exchange_test
}  // namespace fp4moe::moe::exchange
