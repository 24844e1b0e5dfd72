// The documents that tell a loader how a checkpoint is quantised, in each dialect's own form.
#pragma once
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/weights/dialect.hpp"

namespace fp4moe::weights {

struct QuantFacts {
  bool has_input_scale = false;       // absent: weights only
  std::vector<std::string> ignore{};  // modules that are not quantised, by full name
};

// config.json's quantization_config; null for dialects that have none (OpenAI's, GGUF).
Json quantization_config(const DialectRow& row, const QuantFacts& facts);

// ModelOpt's hf_quant_config.json.
Json hf_quant_config(const QuantFacts& facts);

// `config` with its quantization_config replaced, in its old place if it had one; all other keys
// and their order stay.
Json with_quantization(Json config, const DialectRow& row, const QuantFacts& facts);

}  // namespace fp4moe::weights
