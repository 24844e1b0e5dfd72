// One token's choice, two ways: what router.cpp calls for each row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "fp4moe/moe/routing/router.hpp"

namespace fp4moe::moe::routing {

// A router's options as its rows need them.
struct RowPlan {
  Score key = Score::logit, weight = Score::logit;
  Normalization normalization = Normalization::none;  // never `optional`
  std::size_t columns = 0, top_k = 0;
  std::size_t groups = 1, chosen_groups = 1;   // one group: plain
  bool adds_two_per_group = false;             // its score; else its largest key
  std::span<const float> bias{};               // or none; none where all of it is 0
  std::span<const std::int32_t> hash_table{};  // or none
  double scale = 1;
  bool scores_in_logits_dtype = false;
};

struct Row {
  const void* logits = nullptr;  // plan.columns of them
  tensor::DType dtype = tensor::DType::f32;
  std::int32_t token_id = 0;      // a row of the hash table
  std::span<std::int32_t> ids{};  // [top_k], out
  std::span<float> weights{};     // [top_k], out
};

// False when the order cannot be proven; then ids and weights mean nothing.
bool route_row_fast(const RowPlan& plan, const Row& row) noexcept;
void route_row_exact(const RowPlan& plan, const Row& row) noexcept;

// Seeded noise instead of logits: the same for a token whatever the batch and the threads.
//
//   u(i) = (z(i) >> 11) / 2^53 with z(i) output i of splitmix64 seeded with seed + token * 2^32
//   uniform_random   the k experts e with the largest z(e), equal ones by number; weights 1
//   normal_routing   n(j) = sqrt(-2 log(1 - u(2j))) cos(2 pi u(2j + 1)) for j in [0, 2k);
//                    expert j = floor(sigmoid(n(j)) E), twice the same perhaps;
//                    weights |n(k + j)| over their sum
struct SimulatedRow {
  Simulation simulation = Simulation::uniform_random;
  std::uint64_t seed = 0, token = 0;
  std::size_t experts = 0;
};
void simulate_row(const SimulatedRow& asked, std::span<std::int32_t> ids,
                  std::span<float> weights) noexcept;

// `count` logits as float32.
void load_logits(const void* from, tensor::DType dtype, std::size_t count, float* to) noexcept;

}  // namespace fp4moe::moe::routing
