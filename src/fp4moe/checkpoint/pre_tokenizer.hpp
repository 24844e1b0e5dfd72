// How llama.cpp calls the way a tokenizer splits text before its merges (tokenizer.ggml.pre).
//
// Its converter runs the tokenizer on a text and looks the hash of the numbers up. Here the split
// is read: the regular expressions of tokenizer.json's pre_tokenizer.
#pragma once
#include <string>
#include <string_view>

#include "fp4moe/base/json.hpp"

namespace fp4moe::checkpoint {

struct PreTokenizer {
  std::string name{};  // "default" where the split is not known
  // The name that llama.cpp's converter writes for the published tokenizer of this family; empty:
  // not known.
  std::string_view usual{};
  bool is_known = false;
  bool differs_in_merges = false;  // llama.cpp takes whole words from the vocabulary first, or not
};

PreTokenizer pre_tokenizer_of(const Json& pre_tokenizer, bool ignores_merges,
                              std::string_view model_type);

// llama.cpp puts a BOS token in front under this name unless the file says otherwise.
bool adds_bos_by_itself(std::string_view pre);

}  // namespace fp4moe::checkpoint
