// The cost of an exchange: bytes that a rank sends for each of its tokens, on the way to
// the experts and on the way back. The model of what the exchanges here do; a test holds it against
// the bytes they really send.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "fp4moe/moe/quantized_rows.hpp"
#include "fp4moe/moe/rows.hpp"

namespace fp4moe::moe::exchange {

struct CostRequest {
  std::uint64_t ranks = 1;
  std::uint64_t experts = 0, top_k = 1, hidden = 0;
  ActivationKey activations = ActivationKey::none;  // on the way to the experts
  DType type = DType::bf16;                         // of tokens that are not quantized, and of sums
  bool adapters = false;
};

// Bytes per token. Routers are taken to choose top_k different experts, every choice as likely as
// any other; at worst, all of them are on other ranks, and each on one of its own.
struct Cost {
  std::string_view exchange{};
  ActivationKey activations = ActivationKey::none;
  double dispatch = 0, combine = 0;
  double dispatch_at_worst = 0, combine_at_worst = 0;
  std::uint64_t call = 0;  // bytes that a rank sends in a call, whatever the tokens

  double sum() const { return dispatch + combine; }
  double sum_at_worst() const { return dispatch_at_worst + combine_at_worst; }
};

// Other ranks that a token is sent to, on average over tokens and their ranks.
double expected_ranks(const CostRequest& request);
// Experts of other ranks that a token is sent to.
double expected_experts(const CostRequest& request);

// The cost of "gather", "all_to_all", "all_to_all_batched", and of "all_reduce", by which ranks that all
// have the same tokens sum their parts. Others, and groups of one, cost nothing.
Cost cost_of(std::string_view exchange, const CostRequest& request);

}  // namespace fp4moe::moe::exchange
