// A model's configuration as GGUF metadata and back.
//
// The whole config.json travels along as one string (fp4moe.config_json), so that the way back
// restores it exactly; files made by others are read by the keys llama.cpp uses.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/checkpoint/dialect.hpp"
#include "fp4moe/checkpoint/moe_shape.hpp"
#include "fp4moe/checkpoint/origin.hpp"
#include "fp4moe/tensor/dtype.hpp"
#include "fp4moe/tensor/files/gguf.hpp"

namespace fp4moe::checkpoint {

inline constexpr std::string_view kGgufConfigKey = "fp4moe.config_json";

struct GgufModel {
  std::string model_type{};
  Json config{};  // config.json, or null
  MoeShape shape{};
  std::uint64_t layers = 0, top_k = 0;
  std::uint64_t vocabulary = 0;   // rows of the embedding; 0: there is none
  std::uint64_t next_layers = 0;  // of `layers`, those at the end that predict further tokens
  std::string name{};             // of the model, human-readable; may be empty
  Origin origin{};
};

std::string gguf_architecture(std::string_view model_type);
std::vector<tensor::GgufField> gguf_fields(const GgufModel& model);

// config.json as it was, or made from the architecture's own keys.
Json config_from_gguf(std::span<const tensor::GgufField> fields);
// config.json as it was; null when another program wrote the file.
Json kept_config(std::span<const tensor::GgufField> fields);

// How llama.cpp's expert_gating_func scores, in config.json's words; its number where there is none.
std::string gguf_scoring(std::uint64_t function);

}  // namespace fp4moe::checkpoint
