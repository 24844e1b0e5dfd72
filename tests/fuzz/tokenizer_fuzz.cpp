// A tokenizer.json and, after a zero byte, a tokenizer_config.json: what becomes GGUF metadata.
#include <algorithm>
#include <set>
#include <string>

#include "fp4moe/checkpoint/gguf_tokenizer.hpp"
#include "fuzz.hpp"

namespace fp4moe {
namespace {

template <class T>
const T* field(const checkpoint::GgufTokenizer& tokenizer, std::string_view key) {
  for (const tensor::GgufField& one : tokenizer.fields)
    if (one.key == key) return std::get_if<T>(&one.value);
  return nullptr;
}

// What llama.cpp takes for granted.
void require_loadable(const checkpoint::GgufTokenizer& tokenizer, std::uint64_t rows) {
  const auto* model = field<std::string>(tokenizer, "tokenizer.ggml.model");
  fuzz::require(model != nullptr);
  if (*model == "none") return;
  using Texts = std::vector<std::string>;
  const auto* tokens = field<Texts>(tokenizer, "tokenizer.ggml.tokens");
  const auto* types = field<std::vector<std::int64_t>>(tokenizer, "tokenizer.ggml.token_type");
  const auto* merges = field<Texts>(tokenizer, "tokenizer.ggml.merges");
  fuzz::require(tokens != nullptr && types != nullptr && merges != nullptr);
  fuzz::require(tokens->size() == types->size() && !merges->empty());
  fuzz::require(rows == 0 || tokens->size() == rows);
  fuzz::require(std::set<std::string>(tokens->begin(), tokens->end()).size() == tokens->size());
  for (const std::string& merge : *merges) fuzz::require(std::ranges::count(merge, ' ') == 1);
  for (const char* name : {"bos", "eos", "padding", "unknown"})
    if (const auto* id =
            field<std::uint64_t>(tokenizer, "tokenizer.ggml." + std::string(name) + "_token_id"))
      fuzz::require(*id < tokens->size());
  std::set<std::string> keys;
  for (const tensor::GgufField& one : tokenizer.fields) fuzz::require(keys.insert(one.key).second);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view whole = fuzz::characters(data, size);
  const std::size_t end = std::min(whole.find('\0'), whole.size());
  const auto tokenizer = checkpoint::parse_tokenizer(whole.substr(0, end));
  if (!tokenizer) {
    fuzz::require_complete(tokenizer.why(), "vocabulary.malformed");
    return 0;
  }
  const auto config = parse_json(whole.substr(std::min(end + 1, whole.size())));
  // A number that nobody meant would only make a long vocabulary of unused tokens.
  if (tokenizer->tokens.size() > 100'000) return 0;
  for (const checkpoint::AddedToken& added : tokenizer->added)
    if (added.id > 100'000) return 0;
  for (const std::uint64_t rows : {std::uint64_t{0}, std::uint64_t{64}}) {
    const auto fields =
        checkpoint::gguf_tokenizer(*tokenizer, {.model_type = "glm4_moe",
                                                .rows = rows,
                                                .config = config ? *config : Json(),
                                                .tokenizer_config = config ? *config : Json()});
    if (fields)
      require_loadable(*fields, rows);
    else
      fuzz::require_complete(fields.why(), "vocabulary.");
  }
  return 0;
}

}  // namespace fp4moe
