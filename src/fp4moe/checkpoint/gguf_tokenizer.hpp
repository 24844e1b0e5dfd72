// The tokenizer beside a Hugging Face checkpoint as GGUF metadata: tokenizer.ggml.* and the chat
// template, under the rules of llama.cpp's converter.
//
//   byte-level BPE   tokens, types, merges, special tokens, the split's name
//   anything else    no vocabulary: llama.cpp loads the model, but reads and writes no text
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"
#include "fp4moe/checkpoint/tokenizer_json.hpp"
#include "fp4moe/tensor/files/gguf.hpp"
#include "fp4moe/tensor/files/store.hpp"

namespace fp4moe::checkpoint {

struct GgufTokenizer {
  std::vector<tensor::GgufField> fields{};
  std::vector<std::string> notes{};  // what a person should know
};

// The files and sizes that a tokenizer is read together with.
struct TokenizerContext {
  std::string_view model_type{};
  std::uint64_t rows = 0;       // of the embedding; 0: not known
  Json config{};                // config.json: ids of special tokens
  Json tokenizer_config{};      // or null
  std::string chat_template{};  // chat_template.jinja or chat_template.json; empty: none
};

// Errors: vocabulary.ids, vocabulary.malformed.
Result<GgufTokenizer> gguf_tokenizer(const TokenizerJson& tokenizer,
                                     const TokenizerContext& context);

// Reads the files beside the tensors. As above, and the errors of reading.
Result<GgufTokenizer> read_gguf_tokenizer(const tensor::Store& store, std::string_view model_type,
                                          const Json& config, std::uint64_t rows);

}  // namespace fp4moe::checkpoint
