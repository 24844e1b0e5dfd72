// Tokens for a run: from a safetensors file, or seeded.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fp4moe/base/result.hpp"
#include "fp4moe/moe/rows.hpp"
#include "fp4moe/runtime/facts.hpp"

namespace fp4moe::runtime {

struct RunInput {
  std::uint64_t tokens = 0, hidden = 0;
  std::vector<std::uint16_t> x{};        // bf16, [tokens, hidden]
  std::vector<float> logits{};           // [tokens, experts]; empty: not given
  std::vector<float> router_x{};         // [tokens, what the router reads]; empty: x
  std::vector<std::int32_t> ids{};       // [tokens, top_k]; empty: not given
  std::vector<float> weights{};          // with ids
  std::vector<std::int32_t> adapters{};  // [tokens], -1: none; empty: not given
  std::uint64_t top_k = 0;               // with ids
  std::string origin{};                  // human-readable: "x.safetensors", "seed 1"
  bool is_seeded = false;

  moe::ConstRows rows() const;
};

// hidden_states [T, H] and router_logits [T, E], or topk_ids and topk_weights [T, k]; or hidden
// states alone, where the model's own router chooses, from router_hidden_states [T, any] where they
// are given (experts that read a projection of them); token_lora_mapping [T] names adapters.
// Errors: those of the file; run.input, naming the tensor, what was expected and found.
Result<RunInput> read_input(const std::string& path);

// Hidden states of about unit variance, exact in bf16. Errors: interrupted.
Result<RunInput> seeded_input(std::uint64_t tokens, std::uint64_t hidden, std::uint64_t seed);

// Logits for one layer: the input's, else the model's router on the hidden states. Where the model
// has no router, seeded tokens get seeded noise. `how` says which. Where logits choose nothing
// (LayerFacts::no_routing), seeded tokens get seeded experts; others must bring theirs. Errors:
// facts.routing, facts.router, run.input.
struct Routed {
  std::vector<float> logits{};
  std::vector<std::int32_t> ids{};  // [tokens, top_k] instead of logits
  std::vector<float> weights{};
  std::string how{};
};
Result<Routed> route_for(const RunInput& input, const LayerFacts& facts, const FindTensor& find,
                         std::uint64_t seed);

}  // namespace fp4moe::runtime
