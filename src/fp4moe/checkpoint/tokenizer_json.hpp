// tokenizer.json of Hugging Face, as far as a byte-level BPE tokenizer needs it.
//
// The file is walked, not built: a vocabulary has hundreds of thousands of entries, and it is not
// trusted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fp4moe/base/json.hpp"
#include "fp4moe/base/result.hpp"

namespace fp4moe::checkpoint {

inline constexpr std::size_t kMaxTokenizerBytes = std::size_t{100} << 20;
inline constexpr std::size_t kMaxTokens = std::size_t{1} << 21;  // and as many merges
inline constexpr std::size_t kMaxAddedTokens = std::size_t{1} << 17;

struct AddedToken {
  std::uint32_t id = 0;
  std::string content{};
  bool is_special = false;
};

struct TokenizerJson {
  std::string model{};  // "BPE"
  bool has_byte_fallback = false, ignores_merges = false;
  std::vector<std::string> tokens{};  // by number; of `is_there` alone
  std::vector<bool> is_there{};       // the model's; added tokens that it lacks are not
  std::vector<AddedToken> added{};
  std::vector<std::string> merges{};  // "a b"; a blank inside a part is U+0120, as llama.cpp has it
  Json pre_tokenizer{}, post_processor{}, decoder{};
};

// Errors: vocabulary.malformed.
Result<TokenizerJson> parse_tokenizer(std::string_view text);

}  // namespace fp4moe::checkpoint
