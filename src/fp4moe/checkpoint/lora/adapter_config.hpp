// adapter_config.json as PEFT writes it: how large a LoRA adapter is, and how it is scaled.
//
//   delta W = scale * B A        scale = alpha / r, with use_rslora alpha / sqrt(r)
//
// Settings under which that formula does not hold (DoRA, ...) are refused by name.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::checkpoint {

inline constexpr std::uint64_t kMaxLoraRank = std::uint64_t{1} << 20;

struct AdapterConfig {
  std::uint64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  // For modules whose name a pattern matches, the first that does: see lora_pattern_matches.
  std::vector<std::pair<std::string, std::uint64_t>> rank_pattern{};
  std::vector<std::pair<std::string, double>> alpha_pattern{};
  std::vector<std::string> target_parameters{};
  std::string base_model{};  // human-readable
};

// Errors: adapter.config (a field is missing or is no such thing), adapter.type (not LoRA),
// adapter.unsupported (a setting that changes the formula), adapter.pattern.
Result<AdapterConfig> parse_adapter_config(const Json& document, std::string_view path);

struct LoraScale {
  std::uint64_t rank = 0;
  float scale = 0;
};
// The scale of a module, by its name in the model ("model.layers.3.mlp.experts.7.gate_proj").
LoraScale lora_scale(const AdapterConfig& config, std::string_view module);

// True if PEFT's pattern matches the name, or its end after a dot. Patterns are regular
// expressions there; here characters, '.', "\.", "\d", "[0-9]", each with an optional '*', '+' or
// '?', and '^' in front. False, too, for patterns that are not understood.
bool lora_pattern_matches(std::string_view pattern, std::string_view name);
bool is_lora_pattern(std::string_view pattern);

}  // namespace fp4moe::checkpoint
