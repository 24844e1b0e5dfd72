// How a layer is spread over ranks, and which exchange of tokens that implies.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/oracle/words.hpp"

namespace fp4moe::oracle {

// A deployment: sizes and ranks of the three kinds of parallelism.
struct Deployment {
  int tp_size = 1, pcp_size = 1, dp_size = 1;  // tensor, prefill context, data
  int tp_rank = 0, pcp_rank = 0, dp_rank = 0;
  int sp_size = 1;  // sequence parallelism; 1: off
  bool enable_expert_parallel = false;
  std::string all2all_backend = "allgather_reducescatter";
  bool enable_eplb = false;
};

// The split of a MoE layer: either the experts are split (tp_size 1) or each expert is.
struct Parallel {
  int tp_size = 1, pcp_size = 1, dp_size = 1, ep_size = 1;
  int tp_rank = 0, pcp_rank = 0, dp_rank = 0, ep_rank = 0;
  int sp_size = 1;
  bool use_ep = false;
  std::string all2all_backend = "allgather_reducescatter";
  bool enable_eplb = false;

  bool is_sequence_parallel() const { return sp_size > 1; }
};

// Sizes of at least 1 whose product is a sensible number of ranks, and ranks within them; else an
// error with id parallel.size or parallel.rank.
Result<Done> check(const Deployment& deployment);
// Total: sizes below 1 count as 1, a product beyond an int becomes the largest int.
Parallel derive(const Deployment& deployment);

// How tokens travel between ranks.
enum class Exchange : std::uint8_t {
  none,       // no exchange: every rank has all its tokens
  unknown,    // the layout asks for an exchange, but no known one
  gather,     // allgather, then reduce-scatter
  deepep_ht,  // DeepEP, high throughput
  deepep_ll,  // DeepEP, low latency: batches per expert
  deepep_v2,
  pplx,
  mori,
  nixl,
  flashinfer_two_sided,
  flashinfer_one_sided,
  moonep,
  passthrough,  // the experts exchange tokens themselves
};

// True when the layout sends tokens between ranks through a kernel of its own.
bool uses_all2all(const Parallel& parallel, PolicyDate policy_date);
// `passthrough` does not depend on the layout; all others are `none` without an all2all.
Exchange exchange(const Parallel& parallel, PolicyDate policy_date);
// Exchanges that deliver a fixed-size batch per expert.
bool is_batched(Exchange exchange, PolicyDate policy_date);
// Exchanges that renumber experts when they are sharded to the ranks in turn.
bool needs_routing_tables(Exchange exchange, PolicyDate policy_date);

// A property that the reference derives, by its own name and in its order.
struct Property {
  std::string_view name;
  bool value;
};
std::vector<Property> derived_properties(const Parallel& parallel, PolicyDate policy_date);

// How many of `experts` a rank holds: the first (experts % ep_size) ranks hold one more.
std::uint64_t local_expert_count(const Parallel& parallel, std::uint64_t experts);

// The reference's printed form.
std::string printed(const Parallel& parallel, PolicyDate policy_date);

// An accepted name of an exchange, its replacement if the policy date removed it (with the warning
// it gives), or an error with id parallel.all2all that lists the names.
struct AcceptedExchange {
  std::string name;
  std::string warning;  // empty: none
};
Result<AcceptedExchange> accept_exchange(std::string_view name, PolicyDate policy_date);
std::vector<std::string_view> exchange_names(PolicyDate policy_date);

// Backends that dispatch and combine themselves fix the exchange when a deployment is configured.
// `all2all` is empty where the user chose none. Errors with id parallel.binding, in the
// reference's words.
struct Binding {
  std::string all2all{};
  std::string log{};  // at information level; empty: none
};
struct BindingRequest {
  std::string_view backend{};       // as `backend=` names it
  std::string_view all2all{};       // accepted already
  std::string_view architecture{};  // of the model, e.g. DeepseekV4ForCausalLM; empty: not known
};
Result<Binding> bind_exchange(const BindingRequest& request, PolicyDate policy_date);

}  // namespace fp4moe::oracle
