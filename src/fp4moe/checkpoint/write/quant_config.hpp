// The documents that tell a loader how a checkpoint is quantized, in each dialect's own form.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/fp8_module.hpp"
#include "fp4moe/checkpoint/write/writer.hpp"

namespace fp4moe::checkpoint {

struct QuantFacts {
  bool has_input_scale = false;       // absent: weights only
  std::vector<std::string> ignore{};  // modules that are not quantized, by full name
  std::vector<Fp8Module> fp8{};       // those of mixed precision, sorted
  std::vector<std::string> fp4{};     // all in FP4, where such a list is needed: with `fp8`
};

// The linear modules among tensors that hold no experts: matrices of plain numbers.
std::vector<std::string> unquantized_modules(std::span<const OtherTensor> others);

// config.json's quantization_config; null for dialects that have none (OpenAI's, GGUF).
Json quantization_config(const DialectRow& row, const QuantFacts& facts);

// ModelOpt's hf_quant_config.json.
Json hf_quant_config(const DialectRow& row, const QuantFacts& facts);

// The documents of a checkpoint: config.json, and hf_quant_config.json where the dialect has one.
std::vector<std::pair<std::string, Json>> quantized_documents(Json config, const DialectRow& row,
                                                              const QuantFacts& facts);

// `config` with its quantization_config replaced, in its old place if it had one; all other keys
// and their order stay.
Json with_quantization(Json config, const DialectRow& row, const QuantFacts& facts);

}  // namespace fp4moe::checkpoint
