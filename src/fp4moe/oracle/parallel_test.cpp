#include "fp4moe/oracle/parallel.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace fp4moe::oracle {
namespace parallel_test {

constexpr PolicyDate kDates[] = {
    PolicyDate::january_seed, PolicyDate::january_27, PolicyDate::march_20, PolicyDate::march_27,
    PolicyDate::april_24,     PolicyDate::august_22,  PolicyDate::native};

bool property(const Parallel& parallel, PolicyDate policy_date, std::string_view name) {
  const auto all = derived_properties(parallel, policy_date);
  const auto found = std::ranges::find(all, name, &Property::name);
  EXPECT_NE(found, all.end()) << name;
  return found != all.end() && found->value;
}

bool has_property(PolicyDate policy_date, std::string_view name) {
  const auto all = derived_properties({}, policy_date);
  return std::ranges::find(all, name, &Property::name) != all.end();
}

Parallel spread(std::string_view exchange_name) {
  return {
      .dp_size = 2, .ep_size = 2, .use_ep = true, .all2all_backend = std::string(exchange_name)};
}

TEST(Parallel, WithoutExpertParallelAllRanksSplitEachExpert) {
  const Parallel got = derive(
      {.tp_size = 2, .pcp_size = 3, .dp_size = 4, .tp_rank = 1, .pcp_rank = 2, .dp_rank = 3});

  EXPECT_EQ(got.tp_size, 24);
  EXPECT_EQ(got.tp_rank, 3 * 6 + 2 * 2 + 1);
  EXPECT_EQ(got.ep_size, 1);
  EXPECT_EQ(got.ep_rank, 0);
  EXPECT_FALSE(got.use_ep);
}

TEST(Parallel, WithExpertParallelAllRanksSplitTheExperts) {
  const Parallel got = derive({.tp_size = 2,
                               .pcp_size = 3,
                               .dp_size = 4,
                               .tp_rank = 1,
                               .pcp_rank = 2,
                               .dp_rank = 3,
                               .enable_expert_parallel = true});

  EXPECT_EQ(got.tp_size, 1);
  EXPECT_EQ(got.tp_rank, 0);
  EXPECT_EQ(got.ep_size, 24);
  EXPECT_EQ(got.ep_rank, 23);
  EXPECT_TRUE(got.use_ep);
}

TEST(Parallel, OneRankIsNeverExpertParallel) {
  EXPECT_FALSE(derive({.enable_expert_parallel = true}).use_ep);
}

TEST(Parallel, RanksOfGroupsOfOneDoNotCount) {
  const Parallel got = derive({.tp_size = 1, .dp_size = 2, .tp_rank = 7, .dp_rank = 1});

  EXPECT_EQ(got.tp_rank, 1);
  EXPECT_EQ(got.dp_rank, 1);
}

TEST(Parallel, AbsurdSizesNeitherOverflowNorCrash) {
  constexpr int kMax = std::numeric_limits<int>::max();
  const Parallel got = derive({.tp_size = kMax,
                               .pcp_size = kMax,
                               .dp_size = kMax,
                               .tp_rank = kMax,
                               .pcp_rank = kMax,
                               .dp_rank = -5});

  EXPECT_EQ(got.tp_size, kMax);
  EXPECT_EQ(derive({.tp_size = -3, .pcp_size = 0}).tp_size, 1);
}

TEST(Parallel, SizesAndRanksAreChecked) {
  EXPECT_TRUE(check({.tp_size = 8, .tp_rank = 7}));
  EXPECT_EQ(check({.tp_size = 0}).why().id, "parallel.size");
  EXPECT_EQ(check({.sp_size = 0}).why().id, "parallel.size");
  EXPECT_EQ(check({.tp_size = 1 << 15, .dp_size = 1 << 15}).why().id, "parallel.size");
  EXPECT_EQ(check({.tp_size = 2, .tp_rank = 2}).why().id, "parallel.rank");
  EXPECT_EQ(check({.dp_size = 2, .dp_rank = -1}).why().id, "parallel.rank");
  EXPECT_EQ(check({.tp_size = 0}).why().code, ErrorCode::usage);
}

TEST(Parallel, OnlyTheNewestReferenceExchangesTokensForContextAndSequenceParallel) {
  const Parallel context{.pcp_size = 2, .ep_size = 2, .use_ep = true};
  const Parallel sequence{.ep_size = 2, .sp_size = 2, .use_ep = true};
  for (const PolicyDate policy_date : kDates) {
    EXPECT_EQ(uses_all2all(context, policy_date), policy_date == PolicyDate::august_22);
    EXPECT_EQ(uses_all2all(sequence, policy_date), policy_date == PolicyDate::august_22);
    EXPECT_TRUE(uses_all2all(spread("mori"), policy_date));
    EXPECT_FALSE(uses_all2all({.tp_size = 4, .dp_size = 2}, policy_date));
  }
}

TEST(Parallel, NamesMeanExchangesOfTheirTime) {
  EXPECT_EQ(exchange({}, PolicyDate::april_24), Exchange::none);
  EXPECT_EQ(exchange(spread("naive"), PolicyDate::january_27), Exchange::gather);
  EXPECT_EQ(exchange(spread("naive"), PolicyDate::april_24), Exchange::unknown);
  EXPECT_EQ(exchange(spread("pplx"), PolicyDate::january_seed), Exchange::pplx);
  EXPECT_EQ(exchange(spread("mori"), PolicyDate::april_24), Exchange::mori);
  EXPECT_EQ(exchange(spread("mori"), PolicyDate::august_22), Exchange::unknown);
  EXPECT_EQ(exchange(spread("mori_low_latency"), PolicyDate::august_22), Exchange::mori);
  EXPECT_EQ(exchange(spread("deepep_v2"), PolicyDate::august_22), Exchange::deepep_v2);
  EXPECT_EQ(exchange(spread("nixl_ep"), PolicyDate::january_27), Exchange::unknown);
  EXPECT_EQ(exchange(spread("flashinfer_all2allv"), PolicyDate::april_24),
            Exchange::flashinfer_two_sided);
}

TEST(Parallel, ExchangesThatBatchPerExpertDependOnTheTime) {
  for (const PolicyDate policy_date : kDates) {
    EXPECT_TRUE(is_batched(Exchange::deepep_ll, policy_date));
    EXPECT_FALSE(is_batched(Exchange::deepep_ht, policy_date));
    EXPECT_FALSE(is_batched(Exchange::none, policy_date));
    EXPECT_EQ(is_batched(Exchange::pplx, policy_date), kJanuary2026.contains(policy_date));
    EXPECT_EQ(is_batched(Exchange::nixl, policy_date), policy_date == PolicyDate::april_24 ||
                                                           policy_date == PolicyDate::august_22 ||
                                                           policy_date == PolicyDate::native);
  }
}

TEST(Parallel, PropertiesHaveTheNamesOfTheirTime) {
  EXPECT_TRUE(has_property(PolicyDate::january_27, "use_pplx_kernels"));
  EXPECT_TRUE(has_property(PolicyDate::january_27, "use_fi_all2allv_kernels"));
  EXPECT_TRUE(has_property(PolicyDate::january_27, "use_naive_all2all_kernels"));
  EXPECT_FALSE(has_property(PolicyDate::january_27, "use_nixl_ep_kernels"));
  EXPECT_FALSE(has_property(PolicyDate::march_27, "needs_round_robin_routing_tables"));
  EXPECT_FALSE(has_property(PolicyDate::march_27, "use_pplx_kernels"));
  EXPECT_TRUE(has_property(PolicyDate::april_24, "needs_round_robin_routing_tables"));
  EXPECT_FALSE(has_property(PolicyDate::april_24, "use_deepep_v2_kernels"));
  EXPECT_TRUE(has_property(PolicyDate::august_22, "use_deepep_v2_kernels"));
}

TEST(Parallel, ExactlyOneExchangeIsTrueAndTheRestFalse) {
  for (const PolicyDate policy_date : kDates) {
    for (const std::string_view name : exchange_names(policy_date)) {
      const auto all = derived_properties(spread(name), policy_date);
      const auto is_exchange = [](const Property& row) {
        return row.value && row.name != "use_all2all_kernels" &&
               row.name != "use_batched_activation_format" &&
               row.name != "needs_round_robin_routing_tables";
      };
      EXPECT_EQ(std::ranges::count_if(all, is_exchange), 1) << name;
      EXPECT_TRUE(property(spread(name), policy_date, "use_all2all_kernels"));
    }
  }
}

TEST(Parallel, PrintsAsTheReferenceDoes) {
  const Parallel parallel = spread("deepep_low_latency");

  EXPECT_EQ(printed(parallel, PolicyDate::april_24),
            "FusedMoEParallelConfig(tp_size=1, pcp_size=1, dp_size=2, ep_size=2, tp_rank=0, "
            "pcp_rank=0, dp_rank=0, ep_rank=0, sp_size=1, use_ep=True, "
            "all2all_backend='deepep_low_latency', enable_eplb=False)");
  EXPECT_EQ(printed(parallel, PolicyDate::january_27),
            "FusedMoEParallelConfig(tp_size=1, pcp_size=1, dp_size=2, ep_size=2, tp_rank=0, "
            "pcp_rank=0, dp_rank=0, ep_rank=0, use_ep=True, all2all_backend='deepep_low_latency', "
            "is_sequence_parallel=False, enable_eplb=False)");
}

TEST(Parallel, RemovedNamesAreReplacedWithAWarning) {
  const auto accepted = accept_exchange("pplx", PolicyDate::april_24);

  ASSERT_TRUE(accepted);
  EXPECT_EQ(accepted->name, "allgather_reducescatter");
  EXPECT_EQ(accepted->warning,
            "The 'pplx' all2all backend has been removed. Falling back to "
            "'allgather_reducescatter'.");
  EXPECT_TRUE(accept_exchange("pplx", PolicyDate::january_27)->warning.empty());
}

TEST(Parallel, UnknownNamesAreRefusedWithTheNearestOne) {
  const auto refused = accept_exchange("deepep_low_latncy", PolicyDate::april_24);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.why().id, "parallel.all2all");
  EXPECT_EQ(refused.why().code, ErrorCode::usage);
  EXPECT_NE(refused.why().expected.find("nixl_ep"), std::string::npos);
  EXPECT_NE(refused.why().remedy.find("deepep_low_latency"), std::string::npos);
  EXPECT_FALSE(accept_exchange("mori", PolicyDate::august_22));
}

TEST(Parallel, TheFirstRanksHoldTheExpertsThatAreLeftOver) {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < 6; ++rank) {
    const std::uint64_t count = local_expert_count({.ep_size = 6, .ep_rank = rank}, 128);
    EXPECT_EQ(count, rank < 2 ? 22u : 21u);
    sum += count;
  }
  EXPECT_EQ(sum, 128u);
  EXPECT_EQ(local_expert_count({}, 32), 32u);
}

TEST(Parallel, PassthroughDoesNotDependOnTheLayoutAndMoonepDoes) {
  const Parallel alone{.all2all_backend = "passthrough"};
  EXPECT_EQ(exchange(alone, PolicyDate::vllm_033), Exchange::passthrough);
  EXPECT_FALSE(uses_all2all(alone, PolicyDate::vllm_033));
  EXPECT_EQ(exchange(alone, PolicyDate::august_22), Exchange::none);
  const Parallel moonep{.dp_size = 2, .ep_size = 2, .use_ep = true, .all2all_backend = "moonep"};
  EXPECT_EQ(exchange(moonep, PolicyDate::vllm_033), Exchange::moonep);
  EXPECT_EQ(exchange(moonep, PolicyDate::august_22), Exchange::unknown);
  EXPECT_EQ(exchange({.all2all_backend = "moonep"}, PolicyDate::vllm_033), Exchange::none);
  EXPECT_FALSE(is_batched(Exchange::moonep, PolicyDate::vllm_033));
  EXPECT_FALSE(is_batched(Exchange::passthrough, PolicyDate::vllm_033));
  EXPECT_TRUE(accept_exchange("moonep", PolicyDate::vllm_033));
  EXPECT_FALSE(accept_exchange("moonep", PolicyDate::august_22));
  EXPECT_EQ(accept_exchange("pplx", PolicyDate::vllm_033)->name, "allgather_reducescatter");
}

TEST(Parallel, BackendsThatExchangeThemselvesFixTheExchange) {
  const auto bound = [](const BindingRequest& request,
                        PolicyDate policy_date = PolicyDate::vllm_033) {
    const Result<Binding> result = bind_exchange(request, policy_date);
    return result ? result->all2all + "|" + result->log : result.why().message;
  };
  EXPECT_EQ(bound({.backend = "auto"}), "|");
  EXPECT_EQ(bound({.backend = "marlin", .all2all = "nixl_ep"}), "nixl_ep|");
  EXPECT_EQ(bound({.backend = "flashinfer_moe_ep_cutedsl"}),
            "passthrough|moe_backend='flashinfer_moe_ep_cutedsl': using "
            "all2all_backend='passthrough' (dispatch and combine run inside the MoE backend).");
  EXPECT_EQ(bound({.backend = "flashinfer_moe_ep_cutedsl", .all2all = "nixl_ep"}),
            "moe_backend='flashinfer_moe_ep_cutedsl' dispatches and combines itself and cannot be "
            "paired with all2all_backend='nixl_ep'; leave --all2all-backend unset.");
  EXPECT_EQ(bound({.backend = "triton", .all2all = "passthrough"}),
            "all2all_backend='passthrough' is only valid with a moe_backend that dispatches and "
            "combines itself (['flashinfer_moe_ep_cutedsl', 'flashinfer_moe_ep_mega_deep_gemm']), "
            "got moe_backend='triton'.");
  EXPECT_EQ(
      bound({.backend = "flashinfer_moe_ep_mega_deep_gemm", .architecture = "GptOssForCausalLM"}),
      "moe_backend='flashinfer_moe_ep_mega_deep_gemm' is only supported for DeepSeek-V4 "
      "models (['DeepSeekV4MTPModel', 'DeepseekV41ForCausalLM', 'DeepseekV4ForCausalLM']), "
      "but the model is ['GptOssForCausalLM'].");
  EXPECT_TRUE(bound({.backend = "flashinfer_moe_ep_mega_deep_gemm",
                     .architecture = "DeepseekV4ForCausalLM"})
                  .starts_with("passthrough|"));
  EXPECT_EQ(bound({.backend = "triton", .all2all = "passthrough"}, PolicyDate::august_22),
            "passthrough|");
}

TEST(Parallel, RoutingTablesAreForExchangesThatRenumber) {
  EXPECT_TRUE(needs_routing_tables(Exchange::deepep_ll, PolicyDate::march_20));
  EXPECT_FALSE(needs_routing_tables(Exchange::nixl, PolicyDate::march_27));
  EXPECT_TRUE(needs_routing_tables(Exchange::nixl, PolicyDate::april_24));
  EXPECT_FALSE(needs_routing_tables(Exchange::pplx, PolicyDate::january_27));
}

}  // namespace parallel_test
}  // namespace fp4moe::oracle
