#include "fp4moe/oracle/parallel.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "fp4moe/base/text.hpp"

namespace fp4moe::oracle {
namespace {

constexpr EnumSet<PolicyDate> kUntilAprilAndOurs{PolicyDate::january_seed, PolicyDate::january_27,
                                                 PolicyDate::march_20,     PolicyDate::march_27,
                                                 PolicyDate::april_24,     PolicyDate::native};

// A name, what it means, and when. A removed name is accepted with a warning.
struct NameRow {
  std::string_view name;
  Exchange exchange;
  EnumSet<PolicyDate> policy_dates;
  EnumSet<PolicyDate> removed;
};

// In the order in which the reference lists them.
// clang-format off
constexpr NameRow kNames[] = {
    {"naive",                       Exchange::gather,               kJanuary2026,    kSinceMarch2026},
    {"pplx",                        Exchange::pplx,                 kJanuary2026,    kSinceMarch2026},
    {"deepep_high_throughput",      Exchange::deepep_ht,            kAllDates,     {}},
    {"deepep_low_latency",          Exchange::deepep_ll,            kAllDates,     {}},
    {"deepep_v2",                   Exchange::deepep_v2,            kSinceAugust2026, {}},
    {"mori",                        Exchange::mori,                 kUntilAprilAndOurs, {}},
    {"mori_high_throughput",        Exchange::mori,                 kSinceAugust2026, {}},
    {"mori_low_latency",            Exchange::mori,                 kSinceAugust2026, {}},
    {"moonep",                      Exchange::moonep,               kVllm033,    {}},
    {"nixl_ep",                     Exchange::nixl,                 kSinceMarch2026, {}},
    {"allgather_reducescatter",     Exchange::gather,               kAllDates,     {}},
    {"flashinfer_all2allv",         Exchange::flashinfer_two_sided, kAllDates,     {}},
    {"flashinfer_nvlink_two_sided", Exchange::flashinfer_two_sided, kSinceMarch2026, {}},
    {"flashinfer_nvlink_one_sided", Exchange::flashinfer_one_sided, kSinceMarch2026, {}},
    {"passthrough",                 Exchange::passthrough,          kVllm033,    {}},
};
// clang-format on

constexpr std::string_view kReplacement = "allgather_reducescatter";

// The reference's name for "the layer uses this exchange", if it has one.
struct PropertyRow {
  std::string_view name;
  Exchange exchange;
  EnumSet<PolicyDate> policy_dates;
};

// clang-format off
constexpr PropertyRow kProperties[] = {
    {"use_pplx_kernels",             Exchange::pplx,                 kJanuary2026},
    {"use_deepep_ht_kernels",        Exchange::deepep_ht,            kAllDates},
    {"use_deepep_ll_kernels",        Exchange::deepep_ll,            kAllDates},
    {"use_fi_all2allv_kernels",      Exchange::flashinfer_two_sided, kJanuary2026},
    {"use_fi_nvl_two_sided_kernels", Exchange::flashinfer_two_sided, kSinceMarch2026},
    {"use_fi_nvl_one_sided_kernels", Exchange::flashinfer_one_sided, kSinceMarch2026},
    {"use_naive_all2all_kernels",    Exchange::gather,               kJanuary2026},
    {"use_ag_rs_all2all_kernels",    Exchange::gather,               kSinceMarch2026},
    {"use_mori_kernels",             Exchange::mori,                 kAllDates},
    {"use_nixl_ep_kernels",          Exchange::nixl,                 kSinceMarch2026},
    {"use_deepep_v2_kernels",        Exchange::deepep_v2,            kSinceAugust2026},
    {"use_moonep_kernels",           Exchange::moonep,               kVllm033},
    {"use_passthrough_all2all",      Exchange::passthrough,          kVllm033},
};

// Which exchanges batch tokens per expert, and which number experts through routing tables.
struct ExchangeRow {
  Exchange exchange;
  EnumSet<PolicyDate> batched, tables;
};
constexpr ExchangeRow kExchanges[] = {
    {Exchange::deepep_ll, kAllDates,     kAllDates},
    {Exchange::pplx,      kJanuary2026,    {}},
    {Exchange::nixl,      kSinceApril2026, kSinceApril2026},
};
// clang-format on

const ExchangeRow* find_row(Exchange exchange) {
  const auto* row = std::ranges::find(kExchanges, exchange, &ExchangeRow::exchange);
  return row == std::end(kExchanges) ? nullptr : row;
}

constexpr std::int64_t kMaxRanks = 1 << 20;

int clamped(std::int64_t value) {
  return static_cast<int>(std::min<std::int64_t>(value, std::numeric_limits<int>::max()));
}

std::string_view python(bool value) { return value ? "True" : "False"; }

// Backends that dispatch and combine themselves, and the models that one of them is made for.
constexpr std::string_view kSelfExchanging[] = {"flashinfer_moe_ep_cutedsl",
                                                "flashinfer_moe_ep_mega_deep_gemm"};
constexpr std::string_view kOnlyDeepseekV4 = "flashinfer_moe_ep_mega_deep_gemm";
constexpr std::string_view kDeepseekV4[] = {"DeepSeekV4MTPModel", "DeepseekV41ForCausalLM",
                                            "DeepseekV4ForCausalLM"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

std::string python_names(std::span<const std::string_view> names) {
  return fmt::format("['{}']", fmt::join(names, "', '"));
}

Error not_bound(std::string message, std::string_view remedy) {
  return usage("parallel.binding", std::move(message)).try_this(remedy);
}

}  // namespace

Result<Done> check(const Deployment& deployment) {
  struct Part {
    std::string_view name;
    int size, rank;
  };
  const Part parts[] = {{"tensor-parallel", deployment.tp_size, deployment.tp_rank},
                        {"prefill-context-parallel", deployment.pcp_size, deployment.pcp_rank},
                        {"data-parallel", deployment.dp_size, deployment.dp_rank},
                        {"sequence-parallel", deployment.sp_size, 0}};
  std::int64_t ranks = 1;
  for (const Part& part : parts) {
    if (part.size < 1 || part.size > kMaxRanks)
      return usage("parallel.size", fmt::format("the {} size is not a number of ranks", part.name))
          .expects(fmt::format("1 to {}", kMaxRanks), std::to_string(part.size));
    if (part.rank < 0 || part.rank >= part.size)
      return usage("parallel.rank", fmt::format("the {} rank is not one of the group", part.name))
          .expects(fmt::format("0 to {}", part.size - 1), std::to_string(part.rank));
    if (part.name != "sequence-parallel") ranks = std::min(ranks * part.size, kMaxRanks + 1);
  }
  if (ranks > kMaxRanks)
    return usage("parallel.size", "the sizes together ask for too many ranks")
        .expects(fmt::format("at most {}", kMaxRanks), fmt::format("more than {}", kMaxRanks));
  return Done{};
}

Parallel derive(const Deployment& deployment) {
  const std::int64_t tp = std::max(deployment.tp_size, 1), pcp = std::max(deployment.pcp_size, 1),
                     dp = std::max(deployment.dp_size, 1);
  const auto rank_in = [](std::int64_t size, int rank) {
    return size == 1 ? std::int64_t{0} : std::clamp<std::int64_t>(rank, 0, size - 1);
  };
  const std::int64_t tp_rank = rank_in(tp, deployment.tp_rank);
  const std::int64_t pcp_rank = rank_in(pcp, deployment.pcp_rank);
  const std::int64_t dp_rank = rank_in(dp, deployment.dp_rank);
  // Two factors fit; the third is taken once their product is known to fit an int.
  const std::int64_t inner = clamped(pcp * tp);
  const int flat_size = clamped(dp * inner);
  const int flat_rank = clamped(dp_rank * inner + clamped(pcp_rank * tp) + tp_rank);

  Parallel parallel{.pcp_size = clamped(pcp), .dp_size = clamped(dp)};
  parallel.pcp_rank = clamped(pcp_rank);
  parallel.dp_rank = clamped(dp_rank);
  parallel.sp_size = std::max(deployment.sp_size, 1);
  parallel.use_ep = flat_size > 1 && deployment.enable_expert_parallel;
  (parallel.use_ep ? parallel.ep_size : parallel.tp_size) = flat_size;
  (parallel.use_ep ? parallel.ep_rank : parallel.tp_rank) = flat_rank;
  parallel.all2all_backend = deployment.all2all_backend;
  parallel.enable_eplb = deployment.enable_eplb;
  return parallel;
}

bool uses_all2all(const Parallel& parallel, PolicyDate policy_date) {
  if (!parallel.use_ep) return false;
  if (parallel.dp_size > 1) return true;
  return kSinceAugust2026.contains(policy_date) &&
         (parallel.pcp_size > 1 || parallel.is_sequence_parallel());
}

Exchange exchange(const Parallel& parallel, PolicyDate policy_date) {
  const bool used = uses_all2all(parallel, policy_date);
  for (const NameRow& row : kNames)
    if (row.name == parallel.all2all_backend && row.policy_dates.contains(policy_date))
      return used || row.exchange == Exchange::passthrough ? row.exchange : Exchange::none;
  return used ? Exchange::unknown : Exchange::none;
}

bool is_batched(Exchange exchange, PolicyDate policy_date) {
  const ExchangeRow* row = find_row(exchange);
  return row != nullptr && row->batched.contains(policy_date);
}

bool needs_routing_tables(Exchange exchange, PolicyDate policy_date) {
  const ExchangeRow* row = find_row(exchange);
  return row != nullptr && row->tables.contains(policy_date);
}

std::vector<Property> derived_properties(const Parallel& parallel, PolicyDate policy_date) {
  const Exchange used = exchange(parallel, policy_date);
  std::vector<Property> properties{{"is_sequence_parallel", parallel.is_sequence_parallel()},
                                   {"use_all2all_kernels", uses_all2all(parallel, policy_date)}};
  for (const PropertyRow& row : kProperties)
    if (row.policy_dates.contains(policy_date))
      properties.push_back({row.name, row.exchange == used});
  properties.push_back({"use_batched_activation_format", is_batched(used, policy_date)});
  if (kSinceApril2026.contains(policy_date))
    properties.push_back(
        {"needs_round_robin_routing_tables", needs_routing_tables(used, policy_date)});
  return properties;
}

std::uint64_t local_expert_count(const Parallel& parallel, std::uint64_t experts) {
  const auto ranks = static_cast<std::uint64_t>(std::max(parallel.ep_size, 1));
  const auto rank = static_cast<std::uint64_t>(std::max(parallel.ep_rank, 0));
  return experts / ranks + (rank < experts % ranks ? 1 : 0);
}

std::string printed(const Parallel& p, PolicyDate policy_date) {
  std::string text = fmt::format(
      "FusedMoEParallelConfig(tp_size={}, pcp_size={}, dp_size={}, ep_size={}, tp_rank={}, "
      "pcp_rank={}, dp_rank={}, ep_rank={}, ",
      p.tp_size, p.pcp_size, p.dp_size, p.ep_size, p.tp_rank, p.pcp_rank, p.dp_rank, p.ep_rank);
  const std::string ep =
      fmt::format("use_ep={}, all2all_backend='{}', ", python(p.use_ep), p.all2all_backend);
  text += kJanuary2026.contains(policy_date)
              ? ep + fmt::format("is_sequence_parallel={}, ", python(p.is_sequence_parallel()))
              : fmt::format("sp_size={}, ", p.sp_size) + ep;
  return text + fmt::format("enable_eplb={})", python(p.enable_eplb));
}

std::vector<std::string_view> exchange_names(PolicyDate policy_date) {
  std::vector<std::string_view> names;
  for (const NameRow& row : kNames)
    if (row.policy_dates.contains(policy_date)) names.push_back(row.name);
  return names;
}

Result<AcceptedExchange> accept_exchange(std::string_view name, PolicyDate policy_date) {
  for (const NameRow& row : kNames) {
    if (row.name != name) continue;
    if (row.policy_dates.contains(policy_date)) return AcceptedExchange{std::string(name), {}};
    if (row.removed.contains(policy_date))
      return AcceptedExchange{
          std::string(kReplacement),
          fmt::format("The '{}' all2all backend has been removed. Falling back to '{}'.", name,
                      kReplacement)};
  }
  const std::vector<std::string_view> names = exchange_names(policy_date);
  Error why =
      usage("parallel.all2all", "no such exchange of tokens between ranks is known")
          .expects(fmt::format("one of {}", fmt::join(names, ", ")), "\"" + printable(name) + "\"");
  if (const std::string_view near = nearest(name, names); !near.empty())
    why.remedy = fmt::format("Did you mean {}?", near);
  return why;
}

Result<Binding> bind_exchange(const BindingRequest& request, PolicyDate policy_date) {
  Binding result{.all2all = std::string(request.all2all)};
  if (!kVllm033.contains(policy_date)) return result;
  constexpr std::string_view kPassthrough = "passthrough";
  if (!is_one_of(kSelfExchanging, request.backend)) {
    if (request.all2all != kPassthrough) return result;
    return not_bound(
        fmt::format("all2all_backend='passthrough' is only valid with a moe_backend that "
                    "dispatches and combines itself ({}), got moe_backend='{}'.",
                    python_names(kSelfExchanging), request.backend),
        "leave --all2all out");
  }
  if (request.backend == kOnlyDeepseekV4 && !request.architecture.empty() &&
      !is_one_of(kDeepseekV4, request.architecture))
    return not_bound(fmt::format("moe_backend='{}' is only supported for DeepSeek-V4 models ({}), "
                                 "but the model is ['{}'].",
                                 kOnlyDeepseekV4, python_names(kDeepseekV4), request.architecture),
                     "name another backend");
  if (!request.all2all.empty() && request.all2all != kPassthrough)
    return not_bound(fmt::format("moe_backend='{}' dispatches and combines itself and cannot be "
                                 "paired with all2all_backend='{}'; leave --all2all-backend unset.",
                                 request.backend, request.all2all),
                     "leave --all2all out");
  result.all2all = kPassthrough;
  result.log = fmt::format(
      "moe_backend='{}': using all2all_backend='passthrough' (dispatch and combine run inside the "
      "MoE backend).",
      request.backend);
  return result;
}

}  // namespace fp4moe::oracle
